// Tiles by AVX-512 with VNNI: 16 weight rows in a register.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstring>

#include "matmul_parts.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

// Not std::array, whose template argument would lose the vector types' attributes.
template <std::size_t n>
struct Ints512 {
    __m512i at[n];
    __m512i & operator[](std::size_t i) { return at[i]; }
};
template <std::size_t n>
struct Floats512 {
    __m512 at[n];
    __m512 & operator[](std::size_t i) { return at[i]; }
};

using Codes512 = Ints512<8>;

__m512i load(const void * p) { return _mm512_loadu_si512(p); }

void split_nibbles(const std::byte * p, Codes512 & w) {
    const __m512i low = _mm512_set1_epi8(15);
    for (std::size_t k = 0; k < 4; ++k) {
        const __m512i both = load(p + 64 * k);
        w[k] = _mm512_and_si512(both, low);
        w[k + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
}

template <Codes C>
inline __attribute__((always_inline)) void load_codes(const Layout & layout, const std::byte * p, Codes512 & w) {
    if constexpr (C == Codes::bytes) {
        for (std::size_t q = 0; q < 8; ++q) {
            w[q] = load(p + 64 * q);
        }
        return;
    }
    split_nibbles(p, w);
    if constexpr (C == Codes::fives) {
        const __m512i fifth = _mm512_set1_epi8(16);
        for (std::size_t q = 0; q < 8; ++q) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, p + 256 + 8 * q, 8);
            w[q] = _mm512_or_si512(w[q], _mm512_maskz_mov_epi8(bits, fifth));
        }
    } else if constexpr (C == Codes::sixes) {
        const __m512i upper = _mm512_set1_epi8(0x30);
        for (std::size_t h = 0; h < 2; ++h) {
            const __m512i pairs = load(p + 256 + 64 * h);
            w[h] = _mm512_or_si512(w[h], _mm512_and_si512(_mm512_slli_epi16(pairs, 4), upper));
            w[h + 2] = _mm512_or_si512(w[h + 2], _mm512_and_si512(_mm512_slli_epi16(pairs, 2), upper));
            w[h + 4] = _mm512_or_si512(w[h + 4], _mm512_and_si512(pairs, upper));
            w[h + 6] = _mm512_or_si512(w[h + 6], _mm512_and_si512(_mm512_srli_epi16(pairs, 2), upper));
        }
    } else if constexpr (C == Codes::table) {
        const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(layout.table)));
        for (__m512i & quad : w.at) {
            quad = _mm512_shuffle_epi8(table, quad);
        }
    }
}

struct Scales512 {
    __m512 scale;
    __m512 second;  // offset, or the scale of the second 16 columns
};

__m512 halves(const std::byte * p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
__m512 unsigned_bytes(const std::byte * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}
__m512 signed_bytes(const std::byte * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
}

/// `p`: the scales of the group; `b`: a block of 32 columns.
template <Scales S>
inline __attribute__((always_inline)) Scales512 load_scales(const std::byte * p, std::int64_t b) {
    const std::int64_t part = b % 8;
    if constexpr (S == Scales::half) {
        return {halves(p + 32 * b), _mm512_setzero_ps()};
    } else if constexpr (S == Scales::half_pair) {
        return {halves(p + 64 * b), halves(p + 64 * b + 32)};
    } else if constexpr (S == Scales::super_pair) {
        p += 320 * (b / 8);
        return {_mm512_mul_ps(halves(p), unsigned_bytes(p + 64 + 16 * part)),
                _mm512_mul_ps(halves(p + 32), unsigned_bytes(p + 192 + 16 * part))};
    } else if constexpr (S == Scales::super_16) {
        p += 288 * (b / 8);
        const __m512 d = halves(p);
        return {_mm512_mul_ps(d, signed_bytes(p + 32 + 32 * part)), _mm512_mul_ps(d, signed_bytes(p + 48 + 32 * part))};
    } else if constexpr (S == Scales::super_32) {
        p += 160 * (b / 8);
        return {_mm512_mul_ps(halves(p), signed_bytes(p + 32 + 16 * part)), _mm512_setzero_ps()};
    } else {
        const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 16 * b)));
        const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
        const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
        const __mmask16 is_tiny = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
        return {_mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny)), _mm512_setzero_ps()};
    }
}

template <Codes C, Scales S, int R>
void tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
          float * const * y, std::int32_t n_valid) {
    const std::byte * const scales = group + scales_offset(layout, n_cols);
    const std::int64_t block_lines = lines_of_block(layout);
    Floats512<R> sums;
    std::array<const std::byte *, R> codes;
    std::array<const ActivationHead *, R> heads;
    for (std::size_t r = 0; r < R; ++r) {
        sums[r] = _mm512_setzero_ps();
        codes[r] = x[r];
        heads[r] = heads_of(x[r], n_cols);
    }
    const std::int64_t n_blocks = n_cols / 32;
    const std::int64_t stride = layout.code_bytes;
    for (std::int64_t b = 0; b < n_blocks; ++b) {
        fetch(group + 64 * b * block_lines, block_lines);
        Codes512 w;
        load_codes<C>(layout, group + b * stride, w);
        const Scales512 s = load_scales<S>(scales, b);
        Ints512<R> dots;
        Ints512<R> dots_2;
        for (std::size_t r = 0; r < R; ++r) {
            dots[r] = has_offsets(S) ? _mm512_setzero_si512() : _mm512_set1_epi32(heads[r][b].shift);
            if constexpr (S == Scales::super_16) {
                dots_2[r] = _mm512_set1_epi32(heads[r][b].shift_2);
            }
        }
#pragma GCC unroll 8
        for (std::size_t q = 0; q < 8; ++q) {
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
                std::int32_t quad = 0;
                std::memcpy(&quad, codes[r] + 32 * b + 4 * q, 4);
                Ints512<R> & into = S == Scales::super_16 && q >= 4 ? dots_2 : dots;
                into[r] = _mm512_dpbusd_epi32(into[r], w[q], _mm512_set1_epi32(quad));
            }
        }
        for (std::size_t r = 0; r < R; ++r) {
            const __m512 x_scale = _mm512_set1_ps(heads[r][b].scale);
            sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r]), _mm512_mul_ps(s.scale, x_scale), sums[r]);
            if constexpr (S == Scales::super_16) {
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots_2[r]), _mm512_mul_ps(s.second, x_scale), sums[r]);
            } else if constexpr (S == Scales::half_pair) {
                sums[r] = _mm512_fmadd_ps(s.second, _mm512_set1_ps(heads[r][b].sum), sums[r]);
            } else if constexpr (S == Scales::super_pair) {
                sums[r] = _mm512_fnmadd_ps(s.second, _mm512_set1_ps(heads[r][b].sum), sums[r]);
            }
        }
    }
    const auto mask = static_cast<__mmask16>((1U << static_cast<unsigned>(n_valid)) - 1U);
    for (std::size_t r = 0; r < R; ++r) {
        _mm512_mask_storeu_ps(y[r], mask, sums[r]);
    }
}

template <Codes C>
__m512 load_floats(const std::byte * p) {
    if constexpr (C == Codes::halves) {
        return halves(p);
    } else {
        const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
}

template <Codes C, int R>
void float_tile(std::int64_t n_cols, const std::byte * group, const std::byte * const * x, float * const * y,
                std::int32_t n_valid) {
    Floats512<R> even;
    Floats512<R> odd;
    std::array<const float *, R> rows;
    for (std::size_t r = 0; r < R; ++r) {
        even[r] = odd[r] = _mm512_setzero_ps();
        rows[r] = reinterpret_cast<const float *>(x[r]);
    }
    for (std::int64_t c = 0; c < n_cols; c += 2) {
        fetch(group + 32 * c, 1);
        const __m512 w0 = load_floats<C>(group + 32 * c);
        const __m512 w1 = load_floats<C>(group + 32 * c + 32);
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r) {
            even[r] = _mm512_fmadd_ps(w0, _mm512_set1_ps(rows[r][c]), even[r]);
            odd[r] = _mm512_fmadd_ps(w1, _mm512_set1_ps(rows[r][c + 1]), odd[r]);
        }
    }
    const auto mask = static_cast<__mmask16>((1U << static_cast<unsigned>(n_valid)) - 1U);
    for (std::size_t r = 0; r < R; ++r) {
        _mm512_mask_storeu_ps(y[r], mask, _mm512_add_ps(even[r], odd[r]));
    }
}

}  // namespace

}  // namespace dflash::cpu::DFLASH_ISA
