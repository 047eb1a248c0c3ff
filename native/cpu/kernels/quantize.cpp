// Activation rows in 8 bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

#include "matmul_parts.h"

namespace dflash::cpu::DFLASH_ISA {

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
