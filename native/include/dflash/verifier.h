// Exact-match verification: lays a draft tree out as a target batch and walks it with the user's sampler. Pure.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dflash/draft_tree.h"
#include "dflash/llama_bridge.h"

namespace dflash {

/// Row 0 is the anchor at `pos`, row i + 1 is node i at `pos` + its depth; all rows ask for logits. Each row belongs to
/// the sequences of the leaves beneath it, leaf s being the s-th node without children: llama.cpp then shows it exactly
/// its ancestors. A chain has one leaf, sequence 0. Throws Error(invalid_argument) beyond max_sequences leaves.
[[nodiscard]] std::vector<Row> verify_rows(const DraftTree & tree, llama_token anchor, llama_pos pos);

/// The same from what a record remembers: parents[i] is the parent of node i (-1: the anchor), tokens[i] that of row i.
[[nodiscard]] std::vector<Row> verify_rows(std::span<const std::int32_t> parents, std::span<const llama_token> tokens,
                                           llama_pos pos);

/// Parent of each node, -1: the anchor.
[[nodiscard]] std::vector<std::int32_t> parents_of(const DraftTree & tree);

/// Leaves of the tree that the rows are laid out for.
[[nodiscard]] std::int32_t n_leaves(std::span<const Row> rows) noexcept;

/// A leaf beneath a row: the sequence that holds the path to it.
[[nodiscard]] std::int32_t leaf_of(const Row & row) noexcept;

struct Walk {
    std::vector<llama_token> emitted;     // one per sampled row; all but the last were drafted
    std::vector<std::int32_t> kept_rows;  // rows on the accepted path, the anchor's first; as many as `emitted`
};

/// Draws one token of the target at each node from the anchor on: a child that carries it is accepted and the walk goes
/// on there; else the token is emitted and the walk ends. It also ends after `max_emit` tokens and after a token for
/// which `ends` is true. Whatever was drafted, the law of the output is that of plain sampling.
[[nodiscard]] Walk walk(const DraftTree & tree, std::int32_t max_emit,
                        const std::function<llama_token(std::int32_t row)> & sample,
                        const std::function<bool(llama_token)> & ends);

}  // namespace dflash
