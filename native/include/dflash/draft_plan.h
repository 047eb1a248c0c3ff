// Sizes of a drafter before anything is allocated: context cells, shapes of its graphs, compute memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dflash/draft_context.h"
#include "dflash/draft_weights.h"
#include "dflash/drafter.h"
#include "dflash/pair_spec.h"

namespace dflash {

constexpr std::int32_t max_inject_rows = 128;  // of one graph
constexpr std::int32_t max_top_k = 64;
constexpr std::int32_t max_threads = 512;  // ggml's GGML_MAX_N_THREADS

/// Throws Error(invalid_argument) naming the parameter; top_k is checked against the head's rows.
void check_params(const DrafterParams & params, std::int64_t n_head_rows);

/// Context cells: params.n_ctx, or what the windows can see, bounded by default_draft_ctx and the target's training
/// length; rounded up to whole buckets.
[[nodiscard]] std::int32_t context_capacity(const DrafterSpec & spec, std::int32_t n_ctx, std::int32_t n_ctx_train);

[[nodiscard]] KvLayout kv_layout(const DrafterSpec & spec, const DraftWeights & weights, std::int32_t capacity);

/// Ring cells a graph sees, at least n_cells: few steps, so that few graphs serve a conversation.
[[nodiscard]] std::int32_t kv_bucket(std::int32_t n_cells, std::int32_t capacity);
/// Rows of a graph that injects n rows: a power of two.
[[nodiscard]] std::int32_t inject_bucket(std::int32_t n);
/// Slots of a graph that serves n slots: whole groups of head rows, as far as the block goes.
[[nodiscard]] std::int32_t slot_bucket(std::int32_t n_slots, std::int32_t block_size);
/// Rows to inject at once of n that are left: whole buckets first, so that little is padded.
[[nodiscard]] std::int32_t inject_chunk(std::int32_t n);

/// Bytes of the compute buffer for the largest graphs, and of the CPU's work buffer for them.
struct ComputeSize {
    std::size_t buffer = 0;
    std::size_t work = 0;
    [[nodiscard]] std::size_t total() const { return buffer + work; }
};

/// Measures with tensors that are loaded, or pretend to be. `arena`: reserved for these graphs where not null. Throws
/// Error: unsupported (an operation that the device lacks), out_of_memory.
[[nodiscard]] ComputeSize measure_compute(const DrafterSpec & spec, const DraftWeights & weights,
                                          const KvLayout & layout, const DraftDevice & device, std::int32_t top_k,
                                          ggml_gallocr_t arena);

}  // namespace dflash
