// Times one attention operation on the CPU, built as llama.cpp builds it with and without flash attention.
#pragma once

#include <ggml-backend.h>

#include <cstdint>

namespace dflash {

struct AttentionShape {
    std::int32_t n_head = 0;
    std::int32_t n_head_kv = 0;  // divides n_head
    std::int32_t head_dim = 0;
    std::int32_t n_kv = 0;    // cells of the K/V cache that are read
    std::int32_t n_rows = 0;  // tokens of the batch
    bool flash = false;
};

/// Most bytes that one timing may allocate.
constexpr std::int64_t max_attention_bytes = std::int64_t{1} << 30;

/// Median milliseconds of the operation with K/V in F16, over as many runs as fit into budget_ms, at least one.
/// `device`: null for ggml's CPU backend. Throws Error: invalid_argument (which one and why), out_of_memory,
/// unsupported (no CPU backend), decode_failed.
[[nodiscard]] double time_attention(const AttentionShape & shape, std::int32_t n_threads, double budget_ms,
                                    ggml_backend_dev_t device = nullptr);

}  // namespace dflash
