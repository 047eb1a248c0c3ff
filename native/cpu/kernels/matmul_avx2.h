// Tiles by AVX2, with AVX-VNNI where the compiler has it: 8 weight rows in a register, the group in two halves. Integer
// sums are exact, so that all instruction sets agree.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstring>

#include "matmul_parts.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

// Not std::array, whose template argument would lose the vector types' attributes.
struct Codes256 {
    __m256i at[8];  // by column quad
    __m256i & operator[](std::size_t i) { return at[i]; }
    const __m256i & operator[](std::size_t i) const { return at[i]; }
};

__m256i load(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }

/// The bytes' bits of a word of 32, as bytes of `value` or 0.
__m256i spread_bits(std::uint32_t bits, char value) {
    const __m256i of_byte = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3,
                                             3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), of_byte);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), _mm256_set1_epi8(value));
}

/// Codes of the half's 8 rows; `p` points to the half's bytes of the block, `fifths` to its fifth bits.
template <Codes C>
[[gnu::always_inline]] inline void load_codes(const Layout & layout, const std::byte * p, std::size_t half,
                                              Codes256 & w) {
    const std::byte * const from = p + 32 * half;
    if constexpr (C == Codes::bytes) {
        for (std::size_t q = 0; q < 8; ++q) {
            w[q] = load(from + 64 * q);
        }
        return;
    }
    const __m256i low = _mm256_set1_epi8(15);
    for (std::size_t k = 0; k < 4; ++k) {
        const __m256i both = load(from + 64 * k);
        w[k] = _mm256_and_si256(both, low);
        w[k + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
    if constexpr (C == Codes::fives) {
        for (std::size_t q = 0; q < 8; ++q) {
            std::uint32_t bits = 0;
            std::memcpy(&bits, p + 256 + 8 * q + 4 * half, 4);
            w[q] = _mm256_or_si256(w[q], spread_bits(bits, 16));
        }
    } else if constexpr (C == Codes::sixes) {
        const __m256i upper = _mm256_set1_epi8(0x30);
        for (std::size_t h = 0; h < 2; ++h) {
            const __m256i pairs = load(from + 256 + 64 * h);
            w[h] = _mm256_or_si256(w[h], _mm256_and_si256(_mm256_slli_epi16(pairs, 4), upper));
            w[h + 2] = _mm256_or_si256(w[h + 2], _mm256_and_si256(_mm256_slli_epi16(pairs, 2), upper));
            w[h + 4] = _mm256_or_si256(w[h + 4], _mm256_and_si256(pairs, upper));
            w[h + 6] = _mm256_or_si256(w[h + 6], _mm256_and_si256(_mm256_srli_epi16(pairs, 2), upper));
        }
    } else if constexpr (C == Codes::table) {
        const __m256i table =
            _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(layout.table)));
        for (__m256i & quad : w.at) {
            quad = _mm256_shuffle_epi8(table, quad);
        }
    }
}

__m256i quad_of(const std::byte * codes, std::size_t q) {
    std::int32_t quad = 0;
    std::memcpy(&quad, codes + 4 * q, 4);
    return _mm256_set1_epi32(quad);
}

#if defined(__AVXVNNI__)

/// Sums over the quads [first, last) of weights times activations, onto `into`.
template <Codes C, std::size_t first, std::size_t last>
[[gnu::always_inline]] inline __m256i dot(const Codes256 & w, const std::byte * codes, __m256i into) {
#pragma GCC unroll 8
    for (std::size_t q = first; q < last; ++q) {
        into = _mm256_dpbusd_avx_epi32(into, w[q], quad_of(codes, q));
    }
    return into;
}

#else

/// Quads whose products of two columns sum up in 16 bit: codes below 16, 32, 64 times 127, twice.
constexpr std::size_t quads_in_16(Codes codes) {
    return codes == Codes::nibbles ? 8 : codes == Codes::fives ? 4 : codes == Codes::sixes ? 2 : 1;
}

/// As above. Codes up to 255 are turned to -128 to 127 first, which takes 128 times the activations' sum away; it is
/// given back by `into`, that then lacks it.
template <Codes C, std::size_t first, std::size_t last>
[[gnu::always_inline]] inline __m256i dot(const Codes256 & w, const std::byte * codes, __m256i into) {
    const __m256i ones = _mm256_set1_epi16(1);
    constexpr std::size_t step = quads_in_16(C) < last - first ? quads_in_16(C) : last - first;
#pragma GCC unroll 8
    for (std::size_t q = first; q < last; q += step) {
        __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (std::size_t i = q; i < q + step; ++i) {
            __m256i pairs;
            if constexpr (C == Codes::bytes || C == Codes::table) {
                pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(quad_of(codes, i), w[i]));
            } else {
                pairs = _mm256_maddubs_epi16(w[i], quad_of(codes, i));
            }
            sum = step == 1 ? pairs : _mm256_add_epi16(sum, pairs);
        }
        into = _mm256_add_epi32(into, _mm256_madd_epi16(sum, ones));
    }
    return into;
}

#endif

/// With AVX2 alone, large codes are signed, and their constant offset is in them.
template <Codes C>
constexpr bool is_signed() {
#if defined(__AVXVNNI__)
    return false;
#else
    return C == Codes::bytes || C == Codes::table;
#endif
}

struct Scales256 {
    __m256 scale;
    __m256 second;  // offset, or the scale of the second 16 columns
};

__m256 halves(const std::byte * p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
__m256 unsigned_bytes(const std::byte * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}
__m256 signed_bytes(const std::byte * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
}

/// Of one half's 8 rows. `p`: the scales of the group; `b`: a block of 32 columns.
template <Scales S>
[[gnu::always_inline]] inline Scales256 load_scales(const std::byte * p, std::int64_t b, std::int64_t half) {
    const std::int64_t part = b % 8;
    const std::int64_t in_halves = 16 * half;
    const std::int64_t in_bytes = 8 * half;
    if constexpr (S == Scales::half) {
        return {halves(p + 32 * b + in_halves), _mm256_setzero_ps()};
    } else if constexpr (S == Scales::half_pair) {
        return {halves(p + 64 * b + in_halves), halves(p + 64 * b + 32 + in_halves)};
    } else if constexpr (S == Scales::super_pair) {
        p += 320 * (b / 8);
        return {_mm256_mul_ps(halves(p + in_halves), unsigned_bytes(p + 64 + 16 * part + in_bytes)),
                _mm256_mul_ps(halves(p + 32 + in_halves), unsigned_bytes(p + 192 + 16 * part + in_bytes))};
    } else if constexpr (S == Scales::super_16) {
        p += 288 * (b / 8);
        const __m256 d = halves(p + in_halves);
        return {_mm256_mul_ps(d, signed_bytes(p + 32 + 32 * part + in_bytes)),
                _mm256_mul_ps(d, signed_bytes(p + 48 + 32 * part + in_bytes))};
    } else if constexpr (S == Scales::super_32) {
        p += 160 * (b / 8);
        return {_mm256_mul_ps(halves(p + in_halves), signed_bytes(p + 32 + 16 * part + in_bytes)), _mm256_setzero_ps()};
    } else {
        const __m256i e =
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p + 16 * b + in_bytes)));
        const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
        const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        return {_mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny)), _mm256_setzero_ps()};
    }
}

void store_rows(float * y, const __m256 (&sums)[2], std::int32_t n_valid) {
    if (n_valid == 16) {
        _mm256_storeu_ps(y, sums[0]);
        _mm256_storeu_ps(y + 8, sums[1]);
        return;
    }
    float values[16];
    _mm256_storeu_ps(values, sums[0]);
    _mm256_storeu_ps(values + 8, sums[1]);
    std::memcpy(y, values, static_cast<std::size_t>(n_valid) * sizeof(float));
}

template <Codes C, Scales S, int R>
void tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
          float * const * y, std::int32_t n_valid) {
    const std::byte * const scales = group + scales_offset(layout, n_cols);
    const std::int64_t block_lines = lines_of_block(layout);
    __m256 sums[R][2];
    for (auto & row : sums) {
        row[0] = row[1] = _mm256_setzero_ps();
    }
    for (std::int64_t b = 0; b < n_cols / 32; ++b) {
        fetch(group + 64 * b * block_lines, block_lines);
        for (std::size_t half = 0; half < 2; ++half) {
            Codes256 w;
            load_codes<C>(layout, group + b * layout.code_bytes, half, w);
            if constexpr (is_signed<C>()) {
                for (__m256i & quad : w.at) {
                    quad = _mm256_xor_si256(quad, _mm256_set1_epi8(-128));
                }
            }
            const Scales256 s = load_scales<S>(scales, b, static_cast<std::int64_t>(half));
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
                const ActivationHead & head = heads_of(x[r], n_cols)[b];
                const std::byte * const codes = x[r] + 32 * b;
                const __m256 x_scale = _mm256_set1_ps(head.scale);
                __m256 & sum = sums[r][half];
                if constexpr (S == Scales::super_16) {
                    const __m256i first = dot<C, 0, 4>(w, codes, _mm256_set1_epi32(head.shift));
                    const __m256i last = dot<C, 4, 8>(w, codes, _mm256_set1_epi32(head.shift_2));
                    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(first), _mm256_mul_ps(s.scale, x_scale), sum);
                    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(last), _mm256_mul_ps(s.second, x_scale), sum);
                    continue;
                }
                const bool no_shift = has_offsets(S) || is_signed<C>();
                const __m256i all = dot<C, 0, 8>(w, codes, _mm256_set1_epi32(no_shift ? 0 : head.shift));
                sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), _mm256_mul_ps(s.scale, x_scale), sum);
                if constexpr (S == Scales::half_pair) {
                    sum = _mm256_fmadd_ps(s.second, _mm256_set1_ps(head.sum), sum);
                } else if constexpr (S == Scales::super_pair) {
                    sum = _mm256_fnmadd_ps(s.second, _mm256_set1_ps(head.sum), sum);
                }
            }
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        store_rows(y[r], sums[r], n_valid);
    }
}

template <Codes C>
__m256 load_floats(const std::byte * p) {
    if constexpr (C == Codes::halves) {
        return halves(p);
    } else {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
}

template <Codes C, int R>
void float_tile(std::int64_t n_cols, const std::byte * group, const std::byte * const * x, float * const * y,
                std::int32_t n_valid) {
    __m256 sums[R][2];
    for (std::size_t half = 0; half < 2; ++half) {
        __m256 even[R];
        __m256 odd[R];
        for (std::size_t r = 0; r < R; ++r) {
            even[r] = odd[r] = _mm256_setzero_ps();
        }
        for (std::int64_t c = 0; c < n_cols; c += 2) {
            if (half == 0) {
                fetch(group + 32 * c, 1);
            }
            const __m256 w0 = load_floats<C>(group + 32 * c + 16 * half);
            const __m256 w1 = load_floats<C>(group + 32 * c + 32 + 16 * half);
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
                const auto * const row = reinterpret_cast<const float *>(x[r]);
                even[r] = _mm256_fmadd_ps(w0, _mm256_set1_ps(row[c]), even[r]);
                odd[r] = _mm256_fmadd_ps(w1, _mm256_set1_ps(row[c + 1]), odd[r]);
            }
        }
        for (std::size_t r = 0; r < R; ++r) {
            sums[r][half] = _mm256_add_ps(even[r], odd[r]);
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        store_rows(y[r], sums[r], n_valid);
    }
}

}  // namespace

}  // namespace dflash::cpu::DFLASH_ISA
