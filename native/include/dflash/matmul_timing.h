// Times one multiplication by quantized weights on the CPU, the weights laid out as llama.cpp would load them.
#pragma once

#include <ggml.h>

#include <cstdint>

namespace dflash {

struct MatmulShape {
    ggml_type type = GGML_TYPE_F16;
    std::int64_t n_in = 0;    // a multiple of the type's block
    std::int64_t n_out = 0;   // rows of the weights
    std::int32_t n_rows = 0;  // tokens of the batch
    bool ours = false;        // by our CPU kernels, not ggml's
};

struct MatmulTime {
    double ms = 0.0;
    bool repacked = false;  // the CPU has kernels of its own layout for these weights
};

/// Most bytes that one timing may allocate.
constexpr std::int64_t max_matmul_bytes = std::int64_t{1} << 30;

/// Median over as many runs as fit into budget_ms, at least one. Throws Error: invalid_argument (which one and why),
/// out_of_memory, unsupported (no such backend, a type it cannot multiply by), decode_failed.
[[nodiscard]] MatmulTime time_matmul(const MatmulShape & shape, std::int32_t n_threads, double budget_ms);

}  // namespace dflash
