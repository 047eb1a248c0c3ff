// What the products of every instruction set share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_parts.h"

namespace dflash::cpu::DFLASH_ISA {

constexpr int most_rows = 8;  // of a tile

inline const ActivationHead * heads_of(const std::byte * x, std::int64_t n_cols) {
    return reinterpret_cast<const ActivationHead *>(x + heads_offset(n_cols));
}

constexpr bool is_float(Codes codes) { return codes == Codes::halves || codes == Codes::bfloats; }
constexpr bool has_offsets(Scales scales) { return scales == Scales::half_pair || scales == Scales::super_pair; }

// Weights lie in no cache: without asking, memory waits for the products and the products for memory. Beyond the group
// comes the next one, and beyond the matrix mostly the next matrix.
constexpr std::int64_t bytes_ahead = 8192;

inline void fetch(const std::byte * p, std::int64_t n_lines) {
    for (std::int64_t i = 0; i < n_lines; ++i) {
        __builtin_prefetch(p + bytes_ahead + 64 * i, 0, 2);
    }
}

/// Cache lines of a block of 32 columns, its share of the scales included.
inline std::int64_t lines_of_block(const Layout & layout) {
    return (layout.code_bytes + 32 * layout.scale_bytes / layout.scale_cols + 63) / 64;
}

}  // namespace dflash::cpu::DFLASH_ISA
