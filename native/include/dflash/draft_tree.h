// The tree of candidate tokens that one round verifies. Pure. For now a chain: the top-1 candidate of each slot.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dflash/drafter.h"

namespace dflash {

struct DraftNode {
    llama_token token;
    std::int32_t parent;  // index of a node, -1: the anchor
    std::int32_t depth;   // 1: right after the anchor
    float log_prob;       // of the token given its slot
};

/// Nodes in an order in which parents precede children.
class DraftTree {
  public:
    /// The top-1 candidates of the first n slots (n is cut to the slots there are).
    static DraftTree chain(const DraftCandidates & candidates, std::int32_t n);

    [[nodiscard]] std::span<const DraftNode> nodes() const noexcept { return nodes_; }
    [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(nodes_.size()); }
    /// Index of the child of `parent` (-1: the anchor) that carries `token`, or -1.
    [[nodiscard]] std::int32_t child(std::int32_t parent, llama_token token) const noexcept;

  private:
    std::vector<DraftNode> nodes_;
};

}  // namespace dflash
