// The tree of candidate tokens that one round verifies. Pure.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dflash/drafter.h"

namespace dflash {

constexpr std::int32_t max_tree_leaves = 32;  // one sequence id each

enum class NodeSource : std::uint8_t { drafter, copy, grammar };

struct DraftNode {
    llama_token token;
    std::int32_t parent;  // index of a node, -1: the anchor
    std::int32_t depth;   // 1: right after the anchor
    float log_prob;       // the drafter's, of the token given its slot; 0 where it comes from elsewhere
    float prob = 1.0F;    // calibrated, given that its parent is accepted
    float path_prob = 1.0F;
    NodeSource source = NodeSource::drafter;
    std::int32_t rank = 0;  // among the candidates of its slot
};

/// What a tree is grown from. Slots are independent given the anchor; a copy or a grammar gives one chain.
struct TreeInputs {
    const DraftCandidates * candidates = nullptr;  // null: no draft pass
    std::span<const float> probs;                  // [n_slots x top_k], calibrated, at most 1 in sum per slot; 0: never
    std::span<const llama_token> chain;            // copied or forced tokens after the anchor
    std::span<const float> chain_probs;            // each given the one before it
    NodeSource chain_source = NodeSource::copy;
};

struct TreeLimits {
    std::int32_t max_nodes = 0;
    std::int32_t max_leaves = 1;  // 1: a chain
    std::int32_t seed_depth = 0;  // nodes of the top-1 chain that come first whatever their probability
};

/// Nodes in an order in which parents precede children and, after the seed, the likeliest path comes first.
class DraftTree {
  public:
    /// The top-1 candidates of the first n slots (n is cut to the slots there are).
    static DraftTree chain(const DraftCandidates & candidates, std::int32_t n);
    /// Best-first by path probability (DDTree, arXiv 2604.12989, chain pre-seeded). Where the path so far equals the
    /// given chain, its next token joins the drafter's candidates with the larger of both probabilities, and the other
    /// candidates share what is left.
    static DraftTree grow(const TreeInputs & inputs, const TreeLimits & limits);

    /// Keeps the first n nodes.
    void cut(std::int32_t n);
    [[nodiscard]] std::span<const DraftNode> nodes() const noexcept { return nodes_; }
    [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(nodes_.size()); }
    [[nodiscard]] std::int32_t n_leaves() const noexcept;
    /// Index of the child of `parent` (-1: the anchor) that carries `token`, or -1.
    [[nodiscard]] std::int32_t child(std::int32_t parent, llama_token token) const noexcept;

  private:
    std::vector<DraftNode> nodes_;
};

}  // namespace dflash
