// Runs a drafter: fills the inputs of its cached graphs, computes, reads candidates, commits the context's interval.
#include "dflash/drafter.h"

#include <ggml-alloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "dflash/draft_context.h"
#include "dflash/draft_io.h"
#include "dflash/draft_plan.h"
#include "dflash/draft_weights.h"
#include "dflash/embedding_rows.h"
#include "dflash/error.h"
#include "dflash/llama_bridge.h"

namespace dflash {

namespace {

constexpr std::size_t max_cached_graphs = 16;  // per context

std::pair<DrafterSpec, TargetSpec> read_fitting_pair(const GgufFile & drafter_file, const GgufFile & target_file) {
    std::pair<DrafterSpec, TargetSpec> pair = read_pair(drafter_file, target_file);
    const std::vector<PairMismatch> mismatches = check_pair(pair.first, pair.second);
    if (mismatches.empty()) {
        return pair;
    }
    std::string message = "the drafter does not fit the target:";
    for (const PairMismatch & m : mismatches) {
        message += " " + m.field + " is " + m.drafter_value + " in the drafter and " + m.target_value +
                   " in the target (" + m.advice + ");";
    }
    message.pop_back();
    throw Error(ErrorCode::incompatible_drafter, message, mismatches.front().field);
}

DrafterParams checked_threads(const DrafterParams & params) {
    check_params(params, max_top_k);
    return params;
}

// The engine's copy of one batch, and what the way of tapping takes besides: see TapMode.
std::size_t tap_bytes(const DrafterSpec & spec, const std::string & architecture, std::int32_t n_batch,
                      bool layers_on_device) {
    const std::size_t row = static_cast<std::size_t>(spec.n_embd_tap) * sizeof(float);
    const std::size_t one_tap = static_cast<std::size_t>(n_batch) * row;
    const std::size_t copy = one_tap * spec.tap_inputs.size();
    const std::size_t pending = static_cast<std::size_t>(2 * max_pending_rows) * row * spec.tap_inputs.size();
    if (!layers_on_device) {
        return copy + pending;
    }
    return copy + pending + (exports_layer_inputs(architecture) ? copy : one_tap);
}

// Sums of x * 0, in lanes that vectorize: zero unless an x is infinite or no number.
bool all_finite(std::span<const float> values) {
    std::array<float, 16> lanes{};
    std::size_t i = 0;
    for (; i + lanes.size() <= values.size(); i += lanes.size()) {
        for (std::size_t j = 0; j < lanes.size(); ++j) {
            lanes[j] += values[i + j] * 0.0F;
        }
    }
    const auto rest = values.subspan(i);
    return std::ranges::all_of(lanes, [](float x) { return x == 0.0F; }) &&
           std::ranges::all_of(rest, [](float x) { return std::isfinite(x); });
}

}  // namespace

struct Drafter::Impl {
    Impl(const GgufFile & drafter_file, const GgufFile & target_file, const llama_model * target,
         const DrafterParams & drafter_params);

    RingContext & own(DraftContext & ctx) const;
    std::int32_t count_rows(std::span<const float> taps, std::int32_t pos0) const;
    void inject_all(RingContext & ring, std::int32_t & pos0, std::span<const float> & taps, std::int32_t n_keep);
    DraftGraph & graph(RingContext & ring, const DraftShape & shape);
    void run(RingContext & ring, std::int32_t pos0, std::span<const float> taps, std::int32_t n_slots,
             DraftCandidates * out);

    DrafterParams params;
    std::pair<DrafterSpec, TargetSpec> pair;
    const DrafterSpec & spec = pair.first;
    std::shared_ptr<DraftDevice> device;
    DraftWeights weights;
    EmbeddingRows embeddings;
    KvLayout layout;
    ComputeSize compute;
    std::shared_ptr<std::atomic<std::size_t>> context_bytes = std::make_shared<std::atomic<std::size_t>>(0);
    ggml_gallocr_ptr arena;              // one compute buffer for all graphs
    std::uint64_t arena_generation = 0;  // grows when the buffer moves: older graphs point into nowhere
    std::vector<float> anchor_row;
    std::unique_ptr<DraftInputs> inputs;
};

Drafter::Impl::Impl(const GgufFile & drafter_file, const GgufFile & target_file, const llama_model * target,
                    const DrafterParams & drafter_params)
    : params(checked_threads(drafter_params)),
      pair(read_fitting_pair(drafter_file, target_file)),
      device(std::make_shared<DraftDevice>(params.device)),
      weights(drafter_file, target_file, spec, *device, target),
      embeddings(GgufFile::open(spec.has_own_embd ? drafter_file.path() : target_file.path()), spec.n_embd) {
    if (target == nullptr && weights.head_source != HeadSource::drafter) {
        throw Error(ErrorCode::invalid_argument, "the drafter borrows the head of its target, which is not loaded",
                    "model");
    }
    check_params(params, weights.head->ne[1]);
    device->set_n_threads(params.n_threads);
    weights.load();
    layout = kv_layout(spec, weights, context_capacity(spec, params.n_ctx, pair.second.n_ctx_train));
    arena.reset(ggml_gallocr_new(device->buffer_type()));
    compute = measure_compute(spec, weights, layout, *device, params.top_k, arena.get());

    anchor_row.resize(static_cast<std::size_t>(spec.n_embd));
    embeddings.read(spec.mask_token_id, anchor_row);
    inputs = std::make_unique<DraftInputs>(spec, layout, anchor_row);
}

RingContext & Drafter::Impl::own(DraftContext & ctx) const {
    auto * const ring = dynamic_cast<RingContext *>(&ctx);
    if (ring == nullptr || ring->layout().fingerprint != layout.fingerprint ||
        ring->layout().capacity != layout.capacity) {
        throw Error(ErrorCode::invalid_argument, "this draft context was made by another drafter", "ctx");
    }
    return *ring;
}

std::int32_t Drafter::Impl::count_rows(std::span<const float> taps, std::int32_t pos0) const {
    const auto row = static_cast<std::size_t>(weights.fc->ne[0]);
    if (taps.size() % row != 0) {
        throw Error(
            ErrorCode::invalid_argument,
            "taps hold " + std::to_string(taps.size()) + " floats, expected a multiple of " + std::to_string(row),
            "taps");
    }
    const std::size_t n = taps.size() / row;
    const auto n_positions = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max() - spec.block_size);
    if (pos0 < 0 || n > n_positions - std::min(n_positions, static_cast<std::size_t>(pos0))) {
        throw Error(ErrorCode::invalid_argument,
                    std::to_string(n) + " rows at position " + std::to_string(pos0) + " are outside 0.." +
                        std::to_string(n_positions),
                    "pos0");
    }
    if (!all_finite(taps)) {
        throw Error(ErrorCode::decode_failed,
                    "the taps hold values that are not numbers: the target's hidden states are "
                    "damaged",
                    "taps");
    }
    return static_cast<std::int32_t>(n);
}

// Injects all but the last n_keep rows; what the ring would not keep anyway is skipped.
void Drafter::Impl::inject_all(RingContext & ring, std::int32_t & pos0, std::span<const float> & taps,
                               std::int32_t n_keep) {
    const auto row = static_cast<std::size_t>(weights.fc->ne[0]);
    auto n = static_cast<std::int32_t>(taps.size() / row);
    const auto drop = [&](std::int32_t count) {
        taps = taps.subspan(static_cast<std::size_t>(count) * row);
        pos0 += count;
        n -= count;
    };
    drop(std::max(0, n - layout.capacity));
    while (n > n_keep) {
        const std::int32_t chunk = inject_chunk(n - n_keep);
        run(ring, pos0, taps.first(static_cast<std::size_t>(chunk) * row), 0, nullptr);
        drop(chunk);
    }
}

DraftGraph & Drafter::Impl::graph(RingContext & ring, const DraftShape & shape) {
    const auto found = ring.graphs.find(shape);
    if (found != ring.graphs.end() && found->second->arena_generation == arena_generation) {
        return *found->second;
    }
    if (ring.graphs.size() >= max_cached_graphs) {
        ring.graphs.clear();
    }
    auto made = std::make_unique<DraftGraph>(spec, weights, ring.kv(), shape, params.top_k, device->is_cpu());
    const std::size_t bytes_before = ggml_gallocr_get_buffer_size(arena.get(), 0);
    const bool allocated = ggml_gallocr_alloc_graph(arena.get(), made->graph());
    const std::size_t bytes_after = ggml_gallocr_get_buffer_size(arena.get(), 0);
    if (!allocated || bytes_after != bytes_before || !device->keeps_graphs()) {
        ++arena_generation;
    }
    if (!allocated) {
        throw Error(ErrorCode::out_of_memory, "cannot allocate a compute buffer for the drafter's graph");
    }
    compute.buffer = bytes_after;
    device->require(made->graph());
    made->runs = device->split(made->graph());
    made->arena_generation = arena_generation;
    return *(ring.graphs[shape] = std::move(made));
}

void Drafter::Impl::run(RingContext & ring, std::int32_t pos0, std::span<const float> taps, std::int32_t n_slots,
                        DraftCandidates * out) {
    const auto n = static_cast<std::int32_t>(taps.size() / static_cast<std::size_t>(weights.fc->ne[0]));
    RingInterval next = ring.interval();
    if (n > 0) {
        next.evict(pos0, n);
    }
    const RingInterval survivors = next;
    if (n > 0) {
        next.commit(pos0, n);
    }
    const bool has_block = n_slots > 0;
    const std::int32_t n_kv = has_block ? kv_bucket(next.cells_in_use(), layout.capacity) : 0;
    const DraftGraph & g = graph(ring, {inject_bucket(n), n_kv, n_slots});
    if (n > 0) {
        inputs->set_inject(g, next, pos0, taps);
    }
    if (has_block) {
        inputs->set_block(g, next, anchor_row);
    }
    const ggml_status status = DraftDevice::compute(g.runs);
    if (status != GGML_STATUS_SUCCESS) {
        ring.interval() = survivors;
        throw Error(ErrorCode::decode_failed, std::string("the draft graph failed: ") + ggml_status_to_string(status));
    }
    if (has_block && !read_candidates(g, weights.d2t, *out)) {
        ring.wipe();
        throw Error(ErrorCode::decode_failed,
                    "the drafter's probabilities are not numbers: its weights or the taps it was given are damaged");
    }
    ring.interval() = next;
}

Drafter::Drafter(const GgufFile & drafter_file, const GgufFile & target_file, const llama_model * target,
                 const DrafterParams & params)
    : impl_(std::make_unique<Impl>(drafter_file, target_file, target, params)) {}

Drafter::~Drafter() = default;

const DrafterSpec & Drafter::spec() const { return impl_->spec; }

DraftMemory Drafter::memory() const {
    return {.weights = impl_->weights.bytes(), .context = *impl_->context_bytes, .compute = impl_->compute.total()};
}

std::int32_t Drafter::feature_size() const { return static_cast<std::int32_t>(impl_->weights.fc->ne[0]); }

ggml_backend_dev_t Drafter::device() const { return impl_->device->device(); }

void Drafter::set_n_threads(std::int32_t n_threads) {
    DrafterParams changed = impl_->params;
    changed.n_threads = n_threads;
    impl_->params = checked_threads(changed);
    impl_->device->set_n_threads(n_threads);
}

std::unique_ptr<DraftContext> Drafter::new_context() const {
    return std::make_unique<RingContext>(impl_->layout, impl_->device, impl_->context_bytes);
}

void Drafter::inject(DraftContext & ctx, std::int32_t pos0, std::span<const float> taps) {
    impl_->count_rows(taps, pos0);
    impl_->inject_all(impl_->own(ctx), pos0, taps, 0);
}

void Drafter::draft(DraftContext & ctx, std::int32_t pos0, std::span<const float> taps, llama_token anchor,
                    DraftCandidates & out, std::int32_t n_slots) {
    Impl & impl = *impl_;
    RingContext & ring = impl.own(ctx);
    impl.count_rows(taps, taps.empty() ? ring.end() : pos0);
    if (n_slots < 1) {
        throw Error(ErrorCode::invalid_argument, "n_slots is " + std::to_string(n_slots) + ", expected 1 or more",
                    "n_slots");
    }
    impl.embeddings.read(anchor, impl.anchor_row);
    const std::int32_t end_before = ring.end();
    try {
        impl.inject_all(ring, pos0, taps, impl.spec.block_size);
        impl.run(ring, pos0, taps, slot_bucket(n_slots, impl.spec.block_size), &out);
    } catch (...) {
        ring.rewind(std::min(ring.end(), end_before));
        throw;
    }
}

DraftMemory Drafter::estimate(const GgufFile & drafter_file, const GgufFile & target_file, const DrafterParams & params,
                              std::int32_t n_batch, bool layers_on_device) {
    const auto [spec, target_spec] = read_fitting_pair(drafter_file, target_file);
    DraftDevice device(checked_threads(params).device);
    device.set_n_threads(params.n_threads);
    DraftWeights weights(drafter_file, target_file, spec, device, nullptr);
    const KvLayout layout = kv_layout(spec, weights, context_capacity(spec, params.n_ctx, target_spec.n_ctx_train));
    DraftMemory memory{.weights = weights.bytes(), .context = layout.bytes()};
    weights.pretend_loaded();
    memory.compute = measure_compute(spec, weights, layout, device, params.top_k, nullptr).total();
    memory.taps = tap_bytes(spec, target_file.architecture(), n_batch, layers_on_device);
    return memory;
}

}  // namespace dflash
