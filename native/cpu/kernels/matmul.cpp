// Products of a packed group with activation rows, and the quantization of such rows.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernel_parts.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

namespace dflash::cpu::DFLASH_ISA {

namespace {

constexpr int most_rows = 8;  // of a tile

const ActivationHead * heads_of(const std::byte * x, std::int64_t n_cols) {
    return reinterpret_cast<const ActivationHead *>(x + heads_offset(n_cols));
}

constexpr bool is_float(Codes codes) { return codes == Codes::halves || codes == Codes::bfloats; }
constexpr bool has_offsets(Scales scales) { return scales == Scales::half_pair || scales == Scales::super_pair; }

#if defined(__AVX512VNNI__)

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

// Weights lie in no cache: without asking, memory waits for the products and the products for memory. Beyond the group
// comes the next one, and beyond the matrix mostly the next matrix.
constexpr std::int64_t bytes_ahead = 8192;

inline void fetch(const std::byte * p, std::int64_t n_lines) {
    for (std::int64_t i = 0; i < n_lines; ++i) {
        __builtin_prefetch(p + bytes_ahead + 64 * i, 0, 2);
    }
}

template <Codes C, Scales S, int R>
void tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
          float * const * y, std::int32_t n_valid) {
    const std::byte * const scales = group + scales_offset(layout, n_cols);
    const std::int64_t block_lines = (layout.code_bytes + 32 * layout.scale_bytes / layout.scale_cols + 63) / 64;
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

#else

using Block = std::array<std::array<std::uint8_t, 32>, 16>;

template <Codes C>
void load_codes(const Layout & layout, const std::byte * p, Block & w) {
    const auto * const bytes = reinterpret_cast<const std::uint8_t *>(p);
    for (std::size_t q = 0; q < 8; ++q) {
        for (std::size_t i = 0; i < 16; ++i) {
            for (std::size_t j = 0; j < 4; ++j) {
                const std::size_t at = 4 * i + j;
                unsigned code = bytes[64 * (C == Codes::bytes ? q : q % 4) + at];
                if constexpr (C != Codes::bytes) {
                    code = q < 4 ? code & 15U : code >> 4U;
                }
                if constexpr (C == Codes::fives) {
                    code |= (bytes[256 + 8 * q + at / 8] >> (at % 8) & 1U) << 4U;
                } else if constexpr (C == Codes::sixes) {
                    code |= (bytes[256 + 64 * (q % 2) + at] >> (2 * (q / 2)) & 3U) << 4U;
                } else if constexpr (C == Codes::table) {
                    code = static_cast<std::uint8_t>(layout.table[code]);
                }
                w[i][4 * q + j] = static_cast<std::uint8_t>(code);
            }
        }
    }
}

float half_at(const std::byte * p, std::size_t i) {
    ggml_fp16_t half = 0;
    std::memcpy(&half, p + 2 * i, 2);
    return half_to_float(half);
}
float unsigned_at(const std::byte * p, std::size_t i) { return static_cast<float>(static_cast<std::uint8_t>(p[i])); }
float signed_at(const std::byte * p, std::size_t i) { return static_cast<float>(static_cast<std::int8_t>(p[i])); }

struct ScalePair {
    float scale;
    float second;
};

template <Scales S>
ScalePair scales_at(const std::byte * p, std::int64_t b, std::size_t i) {
    const std::int64_t part = b % 8;
    if constexpr (S == Scales::half) {
        return {half_at(p + 32 * b, i), 0.0F};
    } else if constexpr (S == Scales::half_pair) {
        return {half_at(p + 64 * b, i), half_at(p + 64 * b + 32, i)};
    } else if constexpr (S == Scales::super_pair) {
        p += 320 * (b / 8);
        return {half_at(p, i) * unsigned_at(p + 64 + 16 * part, i),
                half_at(p + 32, i) * unsigned_at(p + 192 + 16 * part, i)};
    } else if constexpr (S == Scales::super_16) {
        p += 288 * (b / 8);
        return {half_at(p, i) * signed_at(p + 32 + 32 * part, i), half_at(p, i) * signed_at(p + 48 + 32 * part, i)};
    } else if constexpr (S == Scales::super_32) {
        p += 160 * (b / 8);
        return {half_at(p, i) * signed_at(p + 32 + 16 * part, i), 0.0F};
    } else {
        const auto e = static_cast<std::uint32_t>(p[16 * b + static_cast<std::int64_t>(i)]);
        return {std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23U), 0.0F};
    }
}

template <Codes C, Scales S, int R>
void tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
          float * const * y, std::int32_t n_valid) {
    const std::byte * const scales = group + scales_offset(layout, n_cols);
    std::array<std::array<float, 16>, R> sums{};
    for (std::int64_t b = 0; b < n_cols / 32; ++b) {
        Block w;
        load_codes<C>(layout, group + b * layout.code_bytes, w);
        for (std::size_t i = 0; i < static_cast<std::size_t>(n_valid); ++i) {
            const ScalePair s = scales_at<S>(scales, b, i);
            for (std::size_t r = 0; r < R; ++r) {
                const ActivationHead & head = heads_of(x[r], n_cols)[b];
                const auto * const codes = reinterpret_cast<const std::int8_t *>(x[r]) + 32 * b;
                std::array<std::int32_t, 2> dots{};
                for (std::size_t c = 0; c < 32; ++c) {
                    dots[c / 16] += w[i][c] * codes[c];
                }
                float & sum = sums[r][i];
                if constexpr (S == Scales::super_16) {
                    sum = __builtin_fmaf(static_cast<float>(dots[0] + head.shift), s.scale * head.scale, sum);
                    sum = __builtin_fmaf(static_cast<float>(dots[1] + head.shift_2), s.second * head.scale, sum);
                } else {
                    const std::int32_t shift = has_offsets(S) ? 0 : head.shift;
                    sum = __builtin_fmaf(static_cast<float>(dots[0] + dots[1] + shift), s.scale * head.scale, sum);
                    if constexpr (has_offsets(S)) {
                        sum = __builtin_fmaf(S == Scales::super_pair ? -s.second : s.second, head.sum, sum);
                    }
                }
            }
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        std::copy_n(sums[r].begin(), n_valid, y[r]);
    }
}

template <Codes C, int R>
void float_tile(std::int64_t n_cols, const std::byte * group, const std::byte * const * x, float * const * y,
                std::int32_t n_valid) {
    for (std::size_t r = 0; r < R; ++r) {
        std::array<std::array<float, 16>, 2> sums{};
        const auto * const row = reinterpret_cast<const float *>(x[r]);
        for (std::int64_t c = 0; c < n_cols; ++c) {
            std::array<float, 16> & sum = sums[static_cast<std::size_t>(c % 2)];
            for (std::size_t i = 0; i < 16; ++i) {
                ggml_fp16_t bits = 0;
                std::memcpy(&bits, group + 32 * c + 2 * static_cast<std::int64_t>(i), 2);
                const float w = C == Codes::halves ? half_to_float(bits)
                                                   : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
                sum[i] = __builtin_fmaf(w, row[c], sum[i]);
            }
        }
        for (std::size_t i = 0; i < static_cast<std::size_t>(n_valid); ++i) {
            y[r][i] = sums[0][i] + sums[1][i];
        }
    }
}

#endif

using Tile = void (*)(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
                      float * const * y, std::int32_t n_valid);
using Tiles = std::array<Tile, most_rows>;

template <Codes C, Scales S, int R>
void any_tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
              float * const * y, std::int32_t n_valid) {
    if constexpr (is_float(C)) {
        float_tile<C, R>(n_cols, group, x, y, n_valid);
    } else {
        tile<C, S, R>(layout, n_cols, group, x, y, n_valid);
    }
}

template <Codes C, Scales S, int... I>
constexpr Tiles tiles_of(std::integer_sequence<int, I...> /*rows less one*/) {
    return {any_tile<C, S, I + 1>...};
}

/// By rows less one.
template <Codes C, Scales S>
constexpr Tiles tiles = tiles_of<C, S>(std::make_integer_sequence<int, most_rows>{});

const Tiles & tiles_for(const Layout & layout) {
    const auto with = [&]<Codes C>() -> const Tiles & {
        return layout.scales == Scales::half        ? tiles<C, Scales::half>
               : layout.scales == Scales::half_pair ? tiles<C, Scales::half_pair>
                                                    : tiles<C, Scales::super_pair>;
    };
    switch (layout.codes) {
        case Codes::nibbles: return with.template operator()<Codes::nibbles>();
        case Codes::fives: return with.template operator()<Codes::fives>();
        case Codes::sixes: return tiles<Codes::sixes, Scales::super_16>;
        case Codes::bytes: return tiles<Codes::bytes, Scales::half>;
        case Codes::table:
            return layout.scales == Scales::half       ? tiles<Codes::table, Scales::half>
                   : layout.scales == Scales::exponent ? tiles<Codes::table, Scales::exponent>
                                                       : tiles<Codes::table, Scales::super_32>;
        case Codes::halves: return tiles<Codes::halves, Scales::none>;
        default: return tiles<Codes::bfloats, Scales::none>;
    }
}

}  // namespace

void multiply(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
              float * const * y, std::int32_t n_x, std::int32_t n_valid) {
    const Tiles & by_rows = tiles_for(layout);
    for (std::int32_t left = n_x; left > 0;) {
        // Tiles of about one size: a single row left over would cost as much as several.
        const std::int32_t n_tiles = (left + most_rows - 1) / most_rows;
        const std::int32_t n = (left + n_tiles - 1) / n_tiles;
        by_rows[static_cast<std::size_t>(n - 1)](layout, n_cols, group, x, y, n_valid);
        x += n;
        y += n;
        left -= n;
    }
}

void quantize(const float * row, std::int64_t n_cols, std::int32_t zero, bool by_16, std::byte * out) {
    auto * const codes = reinterpret_cast<std::int8_t *>(out);
    auto * const heads = reinterpret_cast<ActivationHead *>(out + heads_offset(n_cols));
    for (std::int64_t b = 0; b < n_cols / 32; ++b) {
        const float * const in = row + 32 * b;
        float largest = 0.0F;
        float poison = 0.0F;  // NaN where a value is not finite, and then so is what is multiplied with the block
        for (int i = 0; i < 32; ++i) {
            largest = std::max(largest, std::abs(in[i]));
            poison += in[i] * 0.0F;
        }
        const float scale = largest / 127.0F + poison;
        const float inverse = largest > 1e-36F && largest < 3e38F ? 127.0F / largest : 0.0F;
        std::int32_t sum_1 = 0;
        std::int32_t sum_2 = 0;
        for (int i = 0; i < 32; ++i) {
            // Adding 1.5 * 2^23 rounds to nearest, ties to even, in the low bits.
            const float shifted = __builtin_fmaf(in[i], inverse, 12582912.0F);
            const auto code = static_cast<std::int8_t>(std::bit_cast<std::int32_t>(shifted) & 0xFF);
            codes[32 * b + i] = code;
            (i < 16 ? sum_1 : sum_2) += code;
        }
        heads[b].scale = scale;
        heads[b].shift = -zero * (by_16 ? sum_1 : sum_1 + sum_2);
        heads[b].shift_2 = by_16 ? -zero * sum_2 : 0;
        heads[b].sum = scale * static_cast<float>(sum_1 + sum_2);
    }
}

}  // namespace dflash::cpu::DFLASH_ISA
