// Positions, cells, masks and embeddings that a draft graph reads; candidates that it leaves.
#include "dflash/draft_io.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace dflash {

namespace {

template <typename T>
void set_input(ggml_tensor * tensor, const std::vector<T> & values) {
    ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(T));
}

}  // namespace

DraftInputs::DraftInputs(const DrafterSpec & spec, const KvLayout & layout, std::span<const float> mask_row)
    : spec_(spec), layout_(layout), block_embd_(static_cast<std::size_t>(spec.block_size) * mask_row.size()) {
    for (std::size_t slot = 1; slot < static_cast<std::size_t>(spec.block_size); ++slot) {
        set_row(slot, mask_row);
    }
}

void DraftInputs::set_row(std::size_t slot, std::span<const float> row) {
    const float scale = spec_.embedding_scale != 0.0F ? spec_.embedding_scale : 1.0F;
    const auto at = block_embd_.begin() + static_cast<std::ptrdiff_t>(slot * row.size());
    std::ranges::transform(row, at, [scale](float x) { return x * scale; });
}

void DraftInputs::set_inject(const DraftGraph & graph, const RingInterval & interval, std::int32_t pos0,
                             std::span<const float> taps) {
    const auto n = static_cast<std::int32_t>(taps.size() / static_cast<std::size_t>(graph.taps->ne[0]));
    const auto n_padded = static_cast<std::size_t>(graph.taps->ne[1]);
    ggml_backend_tensor_set(graph.taps, taps.data(), 0, taps.size_bytes());
    if (taps.size_bytes() < ggml_nbytes(graph.taps)) {
        // Not ggml_backend_tensor_memset: some backends lack it, and it aborts there.
        zeros_.resize(ggml_nbytes(graph.taps) - taps.size_bytes());
        ggml_backend_tensor_set(graph.taps, zeros_.data(), taps.size_bytes(), zeros_.size());
    }
    positions_.assign(n_padded, 0);
    std::iota(positions_.begin(), positions_.begin() + n, pos0);
    set_input(graph.inject_pos, positions_);
    cells_.assign(n_padded, layout_.scratch_cell());
    for (std::int32_t i = 0; i < n; ++i) {
        cells_[static_cast<std::size_t>(i)] = layout_.block_size + interval.cell(pos0 + i);
    }
    set_input(graph.k_cells, cells_);

    // V is stored transposed: channel c of a row is element c * n_cells + cell.
    const auto n_embd_kv = static_cast<std::size_t>(layout_.n_embd_kv);
    cells_.resize(n_padded * n_embd_kv);
    for (std::size_t row = n_padded; row-- > 0;) {
        const std::int64_t cell = cells_[row];
        for (std::size_t channel = n_embd_kv; channel-- > 0;) {
            cells_[row * n_embd_kv + channel] = static_cast<std::int64_t>(channel) * layout_.n_cells() + cell;
        }
    }
    set_input(graph.v_cells, cells_);
}

void DraftInputs::set_block(const DraftGraph & graph, const RingInterval & interval,
                            std::span<const float> anchor_row) {
    set_row(0, anchor_row);
    set_input(graph.block_embd, block_embd_);
    positions_.resize(static_cast<std::size_t>(spec_.block_size));
    std::iota(positions_.begin(), positions_.end(), interval.end());
    set_input(graph.block_pos, positions_);
    for (std::size_t kind = 0; kind < n_mask_kinds; ++kind) {
        if (graph.masks[kind] != nullptr) {
            fill_mask(kind, interval, static_cast<std::size_t>(graph.masks[kind]->ne[0]));
            set_input(graph.masks[kind], mask_);
        }
    }
}

// Rows are block slots; columns are the block's cells, then ring cells.
void DraftInputs::fill_mask(std::size_t kind, const RingInterval & interval, std::size_t n_columns) {
    const std::int32_t window = kind / 2 == 1 ? spec_.sliding_window : std::numeric_limits<std::int32_t>::max();
    const bool causal = kind % 2 == 1;
    mask_.assign(static_cast<std::size_t>(spec_.block_size) * n_columns, -std::numeric_limits<float>::infinity());
    for (std::int32_t slot = 0; slot < spec_.block_size; ++slot) {
        const std::span row = std::span(mask_).subspan(static_cast<std::size_t>(slot) * n_columns, n_columns);
        for (std::int32_t other = 0; other < spec_.block_size; ++other) {
            if ((!causal || other <= slot) && std::abs(slot - other) < window) {
                row[static_cast<std::size_t>(other)] = 0.0F;
            }
        }
        const std::int32_t first_seen = std::max(0, interval.end() + slot - window + 1);
        for (const RingInterval::Run & run : interval.runs()) {
            const std::int32_t skip = std::clamp(first_seen - run.pos, 0, run.count);
            const auto from = static_cast<std::size_t>(spec_.block_size + run.cell + skip);
            std::ranges::fill(row.subspan(from, static_cast<std::size_t>(run.count - skip)), 0.0F);
        }
    }
}

bool read_candidates(const DraftGraph & graph, std::span<const std::int64_t> d2t, DraftCandidates & out) {
    const TopkPlan & plan = graph.topk_plan();
    const auto k = static_cast<std::size_t>(plan.top_k);
    const auto n = static_cast<std::size_t>(plan.n_rows) * k;
    out.n_slots = plan.n_rows;
    out.top_k = plan.top_k;
    out.ids.resize(n);
    out.log_probs.resize(n);
    bool usable = true;
    if (graph.fused_topk()) {
        std::vector<float> parts(static_cast<std::size_t>(ggml_nelements(graph.topk_parts)));
        ggml_backend_tensor_get(graph.topk_parts, parts.data(), 0, parts.size() * sizeof(float));
        usable = merge_topk_parts(plan, parts, out.ids, out.log_probs);
    } else {
        ggml_backend_tensor_get(graph.topk_ids, out.ids.data(), 0, n * sizeof(std::int32_t));
        ggml_backend_tensor_get(graph.topk_log_probs, out.log_probs.data(), 0, n * sizeof(float));
        usable = std::ranges::none_of(out.log_probs, [](float x) { return std::isnan(x); }) &&
                 std::ranges::all_of(out.ids, [&](std::int32_t id) { return id >= 0 && id < plan.n_vocab; });
        for (std::size_t row = 0; usable && row < n; row += k) {
            sort_candidates(std::span(out.ids).subspan(row, k), std::span(out.log_probs).subspan(row, k));
        }
    }
    if (usable && !d2t.empty()) {
        for (std::int32_t & id : out.ids) {
            id = static_cast<std::int32_t>(d2t[static_cast<std::size_t>(id)]);
        }
    }
    return usable;
}

}  // namespace dflash
