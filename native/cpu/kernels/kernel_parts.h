// The functions that make up one instruction set's table, and F16 without its help.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels.h"

namespace dflash::cpu::DFLASH_ISA {

void quantize(const float * row, std::int64_t n_cols, std::int32_t zero, bool by_16, std::byte * out);
void multiply(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
              float * const * y, std::int32_t n_x, std::int32_t n_valid);
void attend(const AttentionTile & tile);
void rms_norm(const float * x, const float * weight, float * y, std::int64_t n, float eps);
void silu_mul(const float * gate, const float * up, float * y, std::int64_t n);
void gelu_mul(const float * gate, const float * up, float * y, std::int64_t n);
void to_half(const float * x, ggml_fp16_t * y, std::int64_t n);

/// Exact.
inline float half_to_float(ggml_fp16_t half) {
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const std::uint32_t rest = half & 0x7FFFU;
    if (rest >= 0x7C00U) {
        return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13U);
    }
    // 2^112 times the same bits with the exponent of a float: subnormal halves come out right too.
    const float value = std::bit_cast<float>(rest << 13U) * 0x1p112F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

/// To the nearest, ties to even.
inline ggml_fp16_t float_to_half(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = bits >> 16U & 0x8000U;
    const std::uint32_t rest = bits & 0x7FFFFFFFU;
    if (rest > 0x7F800000U) {
        return static_cast<ggml_fp16_t>(sign | 0x7E00U);
    }
    if (rest >= 0x477FF000U) {
        return static_cast<ggml_fp16_t>(sign | 0x7C00U);
    }
    if (rest < 0x38800000U) {
        // Adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
        const float shifted = std::bit_cast<float>(rest) + 0.5F;
        return static_cast<ggml_fp16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
    }
    const std::uint32_t rounded = rest + 0xFFFU + (rest >> 13U & 1U);
    return static_cast<ggml_fp16_t>(sign | (rounded - 0x38000000U) >> 13U);
}

}  // namespace dflash::cpu::DFLASH_ISA
