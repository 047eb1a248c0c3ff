// What the code compiled for one instruction set offers; the best one for this CPU is chosen once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../packed_layout.h"

namespace dflash::cpu {

/// One K/V head's cells against a tile of query rows. All pointers are read only but `out`.
struct AttentionTile {
    const float * queries = nullptr;  // [n_rows][head_size], already scaled
    std::int32_t n_rows = 0;          // query heads of the group times batch rows
    std::int32_t head_size = 0;
    std::int32_t value_size = 0;
    ggml_type k_type = GGML_TYPE_F16;
    ggml_type v_type = GGML_TYPE_F16;
    const std::byte * keys = nullptr;  // first cell of the chunk
    std::int64_t key_stride = 0;       // bytes between cells
    const std::byte * values = nullptr;
    std::int64_t value_stride = 0;
    std::int32_t n_cells = 0;           // at most most_cells
    const std::byte * mask = nullptr;   // halves of the first row's first cell, or null
    std::int64_t mask_row_stride = 0;   // bytes between batch rows
    std::int64_t mask_head_stride = 0;  // and between query heads; 0: one mask for all
    std::int32_t group = 1;             // query heads of a batch row
    const float * slopes = nullptr;     // [group], of the mask
    float softcap = 0.0F;               // 0: none
    float * scratch = nullptr;          // attention_scratch() floats
    float * sums = nullptr;             // [n_rows][2]: maximum and sum of exponents
    float * out = nullptr;              // [n_rows][value_size padded to 16], not divided by the sum
};

constexpr std::int32_t most_cells = 4096;  // of a tile

constexpr std::int32_t pad16(std::int32_t n) { return (n + 15) / 16 * 16; }

/// Floats that a tile of n_rows over at most n_cells needs.
constexpr std::int64_t attention_scratch(std::int32_t n_rows, std::int32_t n_cells, std::int32_t head_size,
                                         std::int32_t value_size) {
    const std::int32_t widest = pad16(head_size > value_size ? head_size : value_size);
    return static_cast<std::int64_t>(n_rows) * ((n_cells + 63) / 64 * 64) +
           (64 + 16) * static_cast<std::int64_t>(widest);
}

struct Kernels {
    const char * name;
    /// `zero` and `by_16`: of the weights' layout.
    void (*quantize)(const float * row, std::int64_t n_cols, std::int32_t zero, bool by_16, std::byte * out);
    /// One group times n_x activation rows; writes `n_valid` outputs (1 to 16) of each to y[r].
    void (*multiply)(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
                     float * const * y, std::int32_t n_x, std::int32_t n_valid);
    void (*attend)(const AttentionTile & tile);
    /// y = x * weight / rms(x); weight may be null.
    void (*rms_norm)(const float * x, const float * weight, float * y, std::int64_t n, float eps);
    void (*silu_mul)(const float * gate, const float * up, float * y, std::int64_t n);
    void (*gelu_mul)(const float * gate, const float * up, float * y, std::int64_t n);
    void (*to_half)(const float * x, ggml_fp16_t * y, std::int64_t n);
};

[[nodiscard]] const Kernels & kernels();
/// Not plain C++ where nobody asked for it: ggml's kernels are faster.
[[nodiscard]] bool are_worth_loading();

}  // namespace dflash::cpu
