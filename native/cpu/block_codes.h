// A block of one of ggml's quantized types, taken apart into codes and scales, and put together again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace dflash::cpu {

struct BlockCodes {
    std::array<std::uint8_t, 256> codes{};  // of the block's columns in order
    std::uint16_t scale = 0;                // bits of an F16
    std::uint16_t offset = 0;               // bits of an F16
    std::array<std::uint8_t, 16> scales{};  // of 16 or 32 columns each; MXFP4: its exponent first
    std::array<std::uint8_t, 8> offsets{};
};

/// `block`: ggml_type_size(type) bytes of a quantized type that has a packed layout.
[[nodiscard]] BlockCodes read_block(ggml_type type, const std::byte * block);
/// Exactly the bytes that read_block saw.
void write_block(ggml_type type, const BlockCodes & block, std::byte * out);

}  // namespace dflash::cpu
