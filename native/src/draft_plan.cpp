// Chooses buckets and capacities and measures the largest graphs, for the estimate and for the compute buffer.
#include "dflash/draft_plan.h"

#include <ggml-alloc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>

#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::int32_t cell_bucket = 64;
constexpr std::int32_t whole_rows = 16;  // from here on rows are injected in whole powers of two

std::int32_t round_up(std::int32_t n, std::int32_t multiple) { return (n + multiple - 1) / multiple * multiple; }

std::uint64_t fnv(std::uint64_t hash, const void * data, std::size_t size) {
    for (const std::byte byte : std::span(static_cast<const std::byte *>(data), size)) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
    }
    return hash;
}

std::uint64_t fingerprint(const DrafterSpec & spec, const DraftWeights & weights) {
    std::uint64_t hash = fnv(0xcbf29ce484222325ULL, spec.name.data(), spec.name.size());
    hash = fnv(hash, spec.tap_inputs.data(), spec.tap_inputs.size() * sizeof(spec.tap_inputs[0]));
    hash = fnv(hash, &spec.rope.freq_base, sizeof spec.rope.freq_base);
    hash = fnv(hash, &weights.sample_hash, sizeof weights.sample_hash);
    return hash;
}

// The CPU converts the input of a multiplication to the weight's dot type, at most two bytes an element.
std::size_t work_bytes(ggml_cgraph * graph) {
    std::int64_t largest = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * const node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL_MAT && node->src[0]->type != GGML_TYPE_F32) {
            largest = std::max(largest, ggml_nelements(node->src[1]));
        }
    }
    return static_cast<std::size_t>(largest) * 2;
}

}  // namespace

void check_params(const DrafterParams & params, std::int64_t n_head_rows) {
    const auto refuse = [](const char * name, std::int64_t value, std::int64_t low, std::int64_t high) {
        if (value < low || value > high) {
            throw Error(ErrorCode::invalid_argument,
                        std::string(name) + " is " + std::to_string(value) + ", expected " + std::to_string(low) +
                            " to " + std::to_string(high),
                        name);
        }
    };
    constexpr std::int64_t max_context = std::int64_t{1} << 24;
    refuse("n_ctx", params.n_ctx, 0, max_context);
    refuse("n_threads", params.n_threads, 1, max_threads);
    refuse("top_k", params.top_k, 1, std::min<std::int64_t>(max_top_k, n_head_rows));
}

std::int32_t context_capacity(const DrafterSpec & spec, std::int32_t n_ctx, std::int32_t n_ctx_train) {
    if (n_ctx > 0) {
        return round_up(n_ctx, cell_bucket);
    }
    std::int32_t capacity = default_draft_ctx;
    const bool all_slide = spec.sliding_window > 0 && std::ranges::all_of(spec.layer_sliding, [](bool b) { return b; });
    if (all_slide) {
        capacity = std::min(capacity, spec.sliding_window + spec.block_size);
    }
    if (n_ctx_train > 0) {
        capacity = std::min(capacity, n_ctx_train);
    }
    return round_up(capacity, cell_bucket);
}

KvLayout kv_layout(const DrafterSpec & spec, const DraftWeights & weights, std::int32_t capacity) {
    return {.n_layer = spec.n_layer,
            .n_embd_kv = spec.head_dim * spec.n_head_kv,
            .block_size = spec.block_size,
            .capacity = capacity,
            .type = weights.kv_type,
            .fingerprint = fingerprint(spec, weights)};
}

std::int32_t kv_bucket(std::int32_t n_cells, std::int32_t capacity) {
    std::int32_t step = cell_bucket;
    for (std::int32_t limit = 8 * cell_bucket; n_cells > limit && step < 8 * cell_bucket; limit *= 2) {
        step *= 2;
    }
    return std::min(round_up(n_cells, step), capacity);
}

std::int32_t inject_bucket(std::int32_t n) {
    return n > 0 ? static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(n))) : 0;
}

std::int32_t slot_bucket(std::int32_t n_slots, std::int32_t block_size) {
    return std::min(round_up(n_slots, head_row_multiple), block_size - 1);
}

std::int32_t inject_chunk(std::int32_t n) {
    if (n <= whole_rows) {
        return n;
    }
    return std::min(static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(n))), max_inject_rows);
}

ComputeSize measure_compute(const DrafterSpec & spec, const DraftWeights & weights, const KvLayout & layout,
                            const DraftDevice & device, std::int32_t top_k, ggml_gallocr_t arena) {
    KvCache cache(layout);
    cache.buffer.reset(ggml_backend_buft_alloc_buffer(device.buffer_type(), 0));
    for (ggml_tensor * t = ggml_get_first_tensor(cache.ctx.get()); t != nullptr;
         t = ggml_get_next_tensor(cache.ctx.get(), t)) {
        t->buffer = cache.buffer.get();
    }
    const std::array<DraftShape, 2> largest{
        DraftShape{max_inject_rows, 0, 0},
        DraftShape{inject_bucket(spec.block_size), layout.capacity, spec.block_size - 1}};
    ComputeSize size;
    for (const DraftShape & shape : largest) {
        const DraftGraph graph(spec, weights, cache.tensors, shape, top_k, device.is_cpu());
        device.require(graph.graph());
        std::size_t bytes = 0;
        const ggml_gallocr_ptr measure(ggml_gallocr_new(device.buffer_type()));
        ggml_gallocr_reserve_n_size(measure.get(), graph.graph(), nullptr, nullptr, &bytes);
        size.buffer = std::max(size.buffer, bytes);
        if (arena != nullptr && !ggml_gallocr_reserve(arena, graph.graph())) {
            throw Error(ErrorCode::out_of_memory,
                        "cannot allocate " + std::to_string(bytes) + " bytes for the drafter's graphs");
        }
        if (device.is_cpu()) {
            size.work = std::max(size.work, work_bytes(graph.graph()));
        }
    }
    return size;
}

}  // namespace dflash
