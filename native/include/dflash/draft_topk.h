// Top-k and logsumexp of head rows on the CPU in one pass, as a ggml custom op, and the merge of its parts.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace dflash {

/// Work is cut into fixed parts of a row, so that results do not depend on the number of threads.
struct TopkPlan {
    std::int32_t top_k = 0;
    std::int32_t n_vocab = 0;
    std::int32_t n_parts = 1;    // per row
    std::int32_t first_row = 0;  // rows before it are skipped
    std::int32_t n_rows = 0;

    /// One part: [max, sum of exp(x - max), top_k ids as int32 bits, top_k logits], best first.
    [[nodiscard]] std::int32_t part_size() const { return 2 + 2 * top_k; }

    static TopkPlan make(std::int32_t top_k, std::int32_t n_vocab, std::int32_t first_row, std::int32_t n_rows);
};

/// Node [part_size, n_parts, n_rows] over logits [n_vocab, rows] F32. `plan` must outlive the graph.
[[nodiscard]] ggml_tensor * build_topk_parts(ggml_context * ctx, ggml_tensor * logits, TopkPlan & plan);

/// ids and log-probabilities [n_rows x top_k], best first, ties by lower id. False where a row has no finite logsumexp.
[[nodiscard]] bool merge_topk_parts(const TopkPlan & plan, std::span<const float> parts, std::span<std::int32_t> ids,
                                    std::span<float> log_probs);

/// Sorts one slot's candidates as merge_topk_parts does.
void sort_candidates(std::span<std::int32_t> ids, std::span<float> log_probs);

}  // namespace dflash
