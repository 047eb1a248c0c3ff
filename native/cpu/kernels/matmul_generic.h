// Tiles in plain C++, for any CPU and as the reference of the others.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "matmul_parts.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

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

}  // namespace

}  // namespace dflash::cpu::DFLASH_ISA
