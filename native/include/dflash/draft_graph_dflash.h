// The fixed-shape ggml graph of a DFlash v1 drafter: inject rows, run one block, pick candidates.
#pragma once

#include <ggml-cpp.h>
#include <ggml.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dflash/draft_device.h"
#include "dflash/draft_topk.h"
#include "dflash/draft_weights.h"
#include "dflash/pair_spec.h"

namespace dflash {

/// Per layer K [n_embd_kv, n_cells] and V transposed [n_cells, n_embd_kv]; cells are block, ring, scratch.
struct KvTensors {
    std::vector<ggml_tensor *> k;
    std::vector<ggml_tensor *> v;
    std::int64_t n_cells = 0;
};

struct DraftShape {
    std::int32_t n_inject = 0;  // rows, padded
    std::int32_t n_kv = 0;      // ring cells that the block sees
    std::int32_t n_slots = 0;   // slots 1..n_slots of the block get candidates; 0: no block

    auto operator<=>(const DraftShape &) const = default;
};

constexpr std::int32_t head_row_multiple = 4;  // repacked kernels take rows by four; single rows cost as much

/// A layer's mask depends on these two only: index 2 * sliding + causal.
constexpr std::size_t n_mask_kinds = 4;
[[nodiscard]] std::size_t mask_kind(const DrafterSpec & spec, std::int32_t layer);

class DraftGraph {
  public:
    /// Only builds; the caller allocates. `fused_topk`: the CPU's custom op, else ggml's own operations.
    DraftGraph(const DrafterSpec & spec, const DraftWeights & weights, const KvTensors & kv, const DraftShape & shape,
               std::int32_t top_k, bool fused_topk);
    DraftGraph(const DraftGraph &) = delete;
    DraftGraph & operator=(const DraftGraph &) = delete;

    [[nodiscard]] ggml_cgraph * graph() const { return graph_; }
    [[nodiscard]] const TopkPlan & topk_plan() const { return topk_; }
    [[nodiscard]] bool fused_topk() const { return topk_parts != nullptr; }

    // Inputs, null where the shape has none.
    ggml_tensor * taps = nullptr;                     // F32 [feature_size, n_inject]
    ggml_tensor * inject_pos = nullptr;               // I32 [n_inject]
    ggml_tensor * k_cells = nullptr;                  // I64 [n_inject]
    ggml_tensor * v_cells = nullptr;                  // I64 [n_inject * n_embd_kv], element of V as one column
    ggml_tensor * block_embd = nullptr;               // F32 [n_embd, block_size]
    ggml_tensor * block_pos = nullptr;                // I32 [block_size]
    std::array<ggml_tensor *, n_mask_kinds> masks{};  // F32 [block_size + n_kv, block_size]

    // Outputs: either the parts of the fused operation, or ids I32 and log-probabilities F32 [top_k, n_slots],
    // unordered.
    ggml_tensor * topk_parts = nullptr;
    ggml_tensor * topk_ids = nullptr;
    ggml_tensor * topk_log_probs = nullptr;

    GraphRuns runs;                      // once allocated
    std::uint64_t arena_generation = 0;  // of the compute buffer that its tensors lie in

  private:
    [[nodiscard]] ggml_tensor * input(ggml_type type, std::int64_t ne0, std::int64_t ne1 = 1);
    [[nodiscard]] ggml_tensor * norm(ggml_tensor * x, ggml_tensor * weight);
    [[nodiscard]] ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos);
    void build_inject();
    void build_block();
    [[nodiscard]] ggml_tensor * attention(std::int32_t il, ggml_tensor * x);
    [[nodiscard]] ggml_tensor * feed_forward(const DraftLayer & layer, ggml_tensor * x);
    void build_candidates(ggml_tensor * hidden);

    const DrafterSpec & spec_;
    const DraftWeights & weights_;
    const KvTensors & kv_;
    DraftShape shape_;
    std::int64_t n_embd_kv_;
    ggml_context_ptr ctx_;
    ggml_cgraph * graph_ = nullptr;
    TopkPlan topk_;
    bool use_fused_topk_;
};

}  // namespace dflash
