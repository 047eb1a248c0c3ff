// Where the codes and scales of a packed group of 16 rows lie. Shared by packing and kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml.h"

namespace dflash::cpu {

/// How a column's values are stored. Codes are unsigned; a value is scale * code + offset.
enum class Codes : std::uint8_t {
    nibbles,  // 4 bits
    fives,    // 4 bits and a plane of fifth bits
    sixes,    // 4 bits and a plane of two upper bits
    bytes,    // 8 bits
    table,    // 4 bits that choose among 16 bytes
    halves,   // F16 values
    bfloats,  // BF16 values
};

/// How the scales of a block of 32 columns are stored.
enum class Scales : std::uint8_t {
    half,        // F16 a row and block; the offset is a constant code
    half_pair,   // F16 scale and F16 offset a row and block
    super_pair,  // Q4_K, Q5_K: F16 pair a row and 256 columns, a byte pair a row and block
    super_16,    // Q6_K: F16 a row and 256 columns, a signed byte a row and 16 columns
    exponent,    // MXFP4: a byte a row and block
    super_32,    // IQ4_XS: F16 a row and 256 columns, a signed byte a row and block
    none,
};

struct Layout {
    Codes codes = Codes::nibbles;
    Scales scales = Scales::half;
    std::int32_t zero = 0;         // the code that means 0, where that is constant
    std::int32_t block_cols = 32;  // columns that the type's own block holds
    std::int32_t code_bytes = 0;   // of 16 rows and 32 columns
    std::int32_t scale_bytes = 0;  // of 16 rows and `scale_cols` columns
    std::int32_t scale_cols = 32;
    const std::int8_t * table = nullptr;
};

/// Null: no packed layout.
[[nodiscard]] const Layout * layout_of(ggml_type type);

// A group holds the codes of all its blocks, then, at a multiple of 64, their scales.
// Codes of 32 columns by 16 rows, for column quads q = 0..7 (columns 4q .. 4q+3), row i, column j of the quad:
//   bytes:   byte 64q + 4i + j
//   nibbles: byte 64k + 4i + j, k = 0..3: the low half is quad k, the high half quad k + 4
//   fives:   nibbles, then 8 words of 64 bits, bit 4i + j of word q is the fifth bit
//   sixes:   nibbles, then 2 * 64 bytes: byte 64h + 4i + j holds the upper pairs of quads h, h + 2, h + 4, h + 6,
//   lowest first
// halves and bfloats: 16 values a column, columns in order.

constexpr std::int64_t pad64(std::int64_t n) { return (n + 63) / 64 * 64; }

[[nodiscard]] constexpr std::int64_t scales_offset(const Layout & layout, std::int64_t n_cols) {
    return pad64(n_cols / 32 * layout.code_bytes);
}

/// An activation row: codes[n_cols], then (at a multiple of 64) a Head for every block of 32.
struct ActivationHead {
    float scale;
    std::int32_t shift;    // minus `zero` times the sum of the codes; of the first 16 columns where scales are by 16
    std::int32_t shift_2;  // of the other 16
    float sum;             // scale times the sum of the codes
};

[[nodiscard]] constexpr std::int64_t heads_offset(std::int64_t n_cols) { return pad64(n_cols); }

}  // namespace dflash::cpu
