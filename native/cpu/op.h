// How the backend computes one kind of graph node: phases in order, each cut into chunks that any thread may take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ggml.h"

namespace dflash::cpu {

/// One kind of node. A result row must not depend, bit for bit, on the number of rows in the batch, on the number of
/// threads or on which thread takes which chunk.
struct OpKind {
    bool (*supports)(const ggml_tensor & node);
    /// Bytes shared by all chunks of the node, aligned to 64; 0: none.
    std::size_t (*scratch_bytes)(const ggml_tensor & node, std::int32_t n_threads);
    std::int32_t n_phases;
    /// 1 for work too small to share (below some 10 microseconds): the calling thread does it alone, without a barrier.
    std::int32_t (*n_chunks)(const ggml_tensor & node, std::int32_t phase, std::int32_t n_threads);
    void (*run)(const ggml_tensor & node, std::span<std::byte> scratch, std::int32_t phase, std::int32_t chunk,
                std::int32_t n_threads);
};

/// Null for an operation that is left to ggml's own CPU backend.
[[nodiscard]] const OpKind * find_op(ggml_op op);

}  // namespace dflash::cpu
