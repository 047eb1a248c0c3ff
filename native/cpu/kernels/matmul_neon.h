// Tiles by ARM's dot product, or its 8 bit matrix product (i8mm) where the compiler has it: 4 weight rows in a
// register, the group in four quarters. Integer sums are exact, so that all instruction sets agree.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "matmul_parts.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

constexpr std::int64_t quarters = 4;  // of a group

// Not std::array, whose template argument would lose the vector types' attributes.
struct CodesNeon {
    int8x16_t at[8];  // by column quad; with i8mm by 8 columns, rows 0 and 1, then rows 2 and 3
    int8x16_t & operator[](std::size_t i) { return at[i]; }
    const int8x16_t & operator[](std::size_t i) const { return at[i]; }
};

uint8x16_t load(const std::byte * p) { return vld1q_u8(reinterpret_cast<const std::uint8_t *>(p)); }
int8x16_t load_signed(const std::byte * p) { return vld1q_s8(reinterpret_cast<const std::int8_t *>(p)); }

/// Large codes are taken as -128 to 127, and their constant offset is in them.
constexpr bool is_signed(Codes codes) { return codes == Codes::bytes || codes == Codes::table; }

/// 16 bits as bytes of `value` or 0.
uint8x16_t spread_bits(const std::byte * bits, std::uint8_t value) {
    const auto * const p = reinterpret_cast<const std::uint8_t *>(bits);
    const uint8x16_t of_byte = vcombine_u8(vld1_dup_u8(p), vld1_dup_u8(p + 1));
    const uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201ULL));
    return vandq_u8(vtstq_u8(of_byte, bit), vdupq_n_u8(value));
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
/// Quads of 4 rows become 8 columns of two rows.
[[gnu::always_inline]] inline void join_quads(CodesNeon & w) {
    for (std::size_t q = 0; q < 8; q += 2) {
        const int32x4_t even = vreinterpretq_s32_s8(w[q]);
        const int32x4_t odd = vreinterpretq_s32_s8(w[q + 1]);
        w[q] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
        w[q + 1] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
    }
}
#endif

/// Codes of the quarter's 4 rows; `p` points to the block.
template <Codes C>
[[gnu::always_inline]] inline void load_codes(const Layout & layout, const std::byte * p, std::int64_t quarter,
                                              CodesNeon & w) {
    const std::byte * const from = p + 16 * quarter;
    uint8x16_t u[8];
    if constexpr (C == Codes::bytes) {
        for (std::size_t q = 0; q < 8; ++q) {
            u[q] = veorq_u8(load(from + 64 * q), vdupq_n_u8(128));
        }
    } else {
        for (std::size_t k = 0; k < 4; ++k) {
            const uint8x16_t both = load(from + 64 * k);
            u[k] = vandq_u8(both, vdupq_n_u8(15));
            u[k + 4] = vshrq_n_u8(both, 4);
        }
    }
    if constexpr (C == Codes::fives) {
        for (std::size_t q = 0; q < 8; ++q) {
            u[q] = vorrq_u8(u[q], spread_bits(p + 256 + 8 * q + 2 * quarter, 16));
        }
    } else if constexpr (C == Codes::sixes) {
        const uint8x16_t upper = vdupq_n_u8(0x30);
        for (std::size_t h = 0; h < 2; ++h) {
            const uint8x16_t pairs = load(from + 256 + 64 * h);
            u[h] = vorrq_u8(u[h], vandq_u8(vshlq_n_u8(pairs, 4), upper));
            u[h + 2] = vorrq_u8(u[h + 2], vandq_u8(vshlq_n_u8(pairs, 2), upper));
            u[h + 4] = vorrq_u8(u[h + 4], vandq_u8(pairs, upper));
            u[h + 6] = vorrq_u8(u[h + 6], vandq_u8(vshrq_n_u8(pairs, 2), upper));
        }
    } else if constexpr (C == Codes::table) {
        const uint8x16_t table =
            veorq_u8(vld1q_u8(reinterpret_cast<const std::uint8_t *>(layout.table)), vdupq_n_u8(128));
        for (uint8x16_t & quad : u) {
            quad = vqtbl1q_u8(table, quad);
        }
    }
    for (std::size_t q = 0; q < 8; ++q) {
        w[q] = vreinterpretq_s8_u8(u[q]);
    }
#if defined(__ARM_FEATURE_MATMUL_INT8)
    join_quads(w);
#endif
}

/// Adds to sums[r] the products over 16 columns, whose codes begin at x[r] + at: the quads [first, first + 4) of w.
#if defined(__ARM_FEATURE_MATMUL_INT8)

template <std::size_t first, int R>
[[gnu::always_inline]] inline void dot(const CodesNeon & w, const std::byte * const * x, std::int64_t at,
                                       int32x4_t (&sums)[R]) {
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; r += 2) {
        constexpr std::size_t last = R - 1;
        const std::size_t other = r < last ? r + 1 : r;  // a row left over goes with itself
        const int64x2_t a = vreinterpretq_s64_s8(load_signed(x[r] + at));
        const int64x2_t b = vreinterpretq_s64_s8(load_signed(x[other] + at));
        const int8x16_t left = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        const int8x16_t right = vreinterpretq_s8_s64(vzip2q_s64(a, b));
        int32x4_t upper = vmmlaq_s32(vdupq_n_s32(0), w[first], left);
        int32x4_t lower = vmmlaq_s32(vdupq_n_s32(0), w[first + 1], left);
        upper = vmmlaq_s32(upper, w[first + 2], right);
        lower = vmmlaq_s32(lower, w[first + 3], right);
        sums[r] = vaddq_s32(sums[r], vuzp1q_s32(upper, lower));
        if (r < last) {
            sums[r + 1] = vaddq_s32(sums[r + 1], vuzp2q_s32(upper, lower));
        }
    }
}

#else

template <std::size_t first, int R>
[[gnu::always_inline]] inline void dot(const CodesNeon & w, const std::byte * const * x, std::int64_t at,
                                       int32x4_t (&sums)[R]) {
#pragma GCC unroll 8
    for (std::size_t r = 0; r < R; ++r) {
        const int8x16_t codes = load_signed(x[r] + at);
        sums[r] = vdotq_laneq_s32(sums[r], w[first], codes, 0);
        sums[r] = vdotq_laneq_s32(sums[r], w[first + 1], codes, 1);
        sums[r] = vdotq_laneq_s32(sums[r], w[first + 2], codes, 2);
        sums[r] = vdotq_laneq_s32(sums[r], w[first + 3], codes, 3);
    }
}

#endif

struct ScalesNeon {
    float32x4_t scale;
    float32x4_t second;  // offset, or the scale of the second 16 columns
};

float32x4_t halves(const std::byte * p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t *>(p))));
}
uint8x8_t four_bytes(const std::byte * p) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, p, 4);
    return vreinterpret_u8_u32(vdup_n_u32(bytes));
}
uint32x4_t wide_bytes(const std::byte * p) { return vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(p)))); }
float32x4_t unsigned_bytes(const std::byte * p) { return vcvtq_f32_u32(wide_bytes(p)); }
float32x4_t signed_bytes(const std::byte * p) {
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(p))))));
}

/// Of one quarter's 4 rows. `p`: the scales of the group; `b`: a block of 32 columns.
template <Scales S>
[[gnu::always_inline]] inline ScalesNeon load_scales(const std::byte * p, std::int64_t b, std::int64_t quarter) {
    const std::int64_t part = b % 8;
    const std::int64_t in_halves = 8 * quarter;
    const std::int64_t in_bytes = 4 * quarter;
    if constexpr (S == Scales::half) {
        return {halves(p + 32 * b + in_halves), vdupq_n_f32(0.0F)};
    } else if constexpr (S == Scales::half_pair) {
        return {halves(p + 64 * b + in_halves), halves(p + 64 * b + 32 + in_halves)};
    } else if constexpr (S == Scales::super_pair) {
        p += 320 * (b / 8);
        return {vmulq_f32(halves(p + in_halves), unsigned_bytes(p + 64 + 16 * part + in_bytes)),
                vmulq_f32(halves(p + 32 + in_halves), unsigned_bytes(p + 192 + 16 * part + in_bytes))};
    } else if constexpr (S == Scales::super_16) {
        p += 288 * (b / 8);
        const float32x4_t d = halves(p + in_halves);
        return {vmulq_f32(d, signed_bytes(p + 32 + 32 * part + in_bytes)),
                vmulq_f32(d, signed_bytes(p + 48 + 32 * part + in_bytes))};
    } else if constexpr (S == Scales::super_32) {
        p += 160 * (b / 8);
        return {vmulq_f32(halves(p + in_halves), signed_bytes(p + 32 + 16 * part + in_bytes)), vdupq_n_f32(0.0F)};
    } else {
        const uint32x4_t e = wide_bytes(p + 16 * b + in_bytes);
        const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
        const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
        const uint32x4_t is_tiny = vcltq_u32(e, vdupq_n_u32(2));
        return {vreinterpretq_f32_u32(vbslq_u32(is_tiny, tiny, normal)), vdupq_n_f32(0.0F)};
    }
}

void store_rows(float * y, const float32x4_t (&sums)[quarters], std::int32_t n_valid) {
    float values[16];
    for (std::size_t i = 0; i < quarters; ++i) {
        vst1q_f32(values + 4 * i, sums[i]);
    }
    std::memcpy(y, values, static_cast<std::size_t>(n_valid) * sizeof(float));
}

template <Codes C, Scales S, int R>
void tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
          float * const * y, std::int32_t n_valid) {
    const std::byte * const scales = group + scales_offset(layout, n_cols);
    const std::int64_t block_lines = lines_of_block(layout);
    constexpr bool has_shift = !has_offsets(S) && !is_signed(C);
    float32x4_t sums[R][quarters];
    for (auto & row : sums) {
        for (float32x4_t & sum : row) {
            sum = vdupq_n_f32(0.0F);
        }
    }
    for (std::int64_t b = 0; b < n_cols / 32; ++b) {
        fetch(group + 64 * b * block_lines, block_lines);
        for (std::int64_t quarter = 0; quarter < quarters; ++quarter) {
            CodesNeon w;
            load_codes<C>(layout, group + b * layout.code_bytes, quarter, w);
            const ScalesNeon s = load_scales<S>(scales, b, quarter);
            int32x4_t dots[R];
            int32x4_t dots_2[R];
            for (std::size_t r = 0; r < R; ++r) {
                const ActivationHead & head = heads_of(x[r], n_cols)[b];
                dots[r] = vdupq_n_s32(has_shift ? head.shift : 0);
                dots_2[r] = vdupq_n_s32(has_shift ? head.shift_2 : 0);
            }
            dot<0>(w, x, 32 * b, dots);
            dot<4>(w, x, 32 * b + 16, S == Scales::super_16 ? dots_2 : dots);
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
                const ActivationHead & head = heads_of(x[r], n_cols)[b];
                float32x4_t & sum = sums[r][quarter];
                sum = vfmaq_f32(sum, vcvtq_f32_s32(dots[r]), vmulq_n_f32(s.scale, head.scale));
                if constexpr (S == Scales::super_16) {
                    sum = vfmaq_f32(sum, vcvtq_f32_s32(dots_2[r]), vmulq_n_f32(s.second, head.scale));
                } else if constexpr (S == Scales::half_pair) {
                    sum = vfmaq_n_f32(sum, s.second, head.sum);
                } else if constexpr (S == Scales::super_pair) {
                    sum = vfmsq_n_f32(sum, s.second, head.sum);
                }
            }
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        store_rows(y[r], sums[r], n_valid);
    }
}

template <Codes C>
float32x4_t load_floats(const std::byte * p) {
    if constexpr (C == Codes::halves) {
        return halves(p);
    } else {
        return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const std::uint16_t *>(p)), 16));
    }
}

template <Codes C, int R>
void float_tile(std::int64_t n_cols, const std::byte * group, const std::byte * const * x, float * const * y,
                std::int32_t n_valid) {
    float32x4_t even[quarters][R];
    float32x4_t odd[quarters][R];
    for (std::size_t quarter = 0; quarter < quarters; ++quarter) {
        for (std::size_t r = 0; r < R; ++r) {
            even[quarter][r] = odd[quarter][r] = vdupq_n_f32(0.0F);
        }
    }
    for (std::int64_t b = 0; b < n_cols; b += 32) {
        fetch(group + 32 * b, 16);
        for (std::size_t quarter = 0; quarter < quarters; ++quarter) {
            float32x4_t first[R];
            float32x4_t second[R];
            std::memcpy(first, even[quarter], sizeof first);
            std::memcpy(second, odd[quarter], sizeof second);
            for (std::int64_t c = b; c < b + 32; c += 4) {
                const std::byte * const p = group + 32 * c + 8 * quarter;
                const float32x4_t w0 = load_floats<C>(p);
                const float32x4_t w1 = load_floats<C>(p + 32);
                const float32x4_t w2 = load_floats<C>(p + 64);
                const float32x4_t w3 = load_floats<C>(p + 96);
#pragma GCC unroll 8
                for (std::size_t r = 0; r < R; ++r) {
                    const float32x4_t v = vld1q_f32(reinterpret_cast<const float *>(x[r]) + c);
                    first[r] = vfmaq_laneq_f32(first[r], w0, v, 0);
                    second[r] = vfmaq_laneq_f32(second[r], w1, v, 1);
                    first[r] = vfmaq_laneq_f32(first[r], w2, v, 2);
                    second[r] = vfmaq_laneq_f32(second[r], w3, v, 3);
                }
            }
            std::memcpy(even[quarter], first, sizeof first);
            std::memcpy(odd[quarter], second, sizeof second);
        }
    }
    for (std::size_t r = 0; r < R; ++r) {
        float32x4_t sums[quarters];
        for (std::size_t quarter = 0; quarter < quarters; ++quarter) {
            sums[quarter] = vaddq_f32(even[quarter][r], odd[quarter][r]);
        }
        store_rows(y[r], sums, n_valid);
    }
}

}  // namespace

}  // namespace dflash::cpu::DFLASH_ISA
