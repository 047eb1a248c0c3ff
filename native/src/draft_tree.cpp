// Builds draft trees out of slot candidates and a given chain.
#include "dflash/draft_tree.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace dflash {

namespace {

struct Candidate {
    llama_token token;
    float prob;
    float log_prob;
    std::int32_t rank;
    NodeSource source;
};

using Candidates = std::vector<Candidate>;

void sort_likeliest_first(Candidates & list) {
    std::ranges::sort(list, [](const Candidate & a, const Candidate & b) {
        return std::tuple(b.prob, a.rank, a.source) < std::tuple(a.prob, b.rank, b.source);
    });
}

/// What may follow at each depth, off the given chain and on it.
class Choices {
  public:
    explicit Choices(const TreeInputs & inputs) : inputs_(inputs) {
        const std::int32_t n_slots = inputs.candidates != nullptr ? inputs.candidates->n_slots : 0;
        const std::size_t on_chain = std::min(inputs.chain.size(), inputs.chain_probs.size());
        free_.resize(static_cast<std::size_t>(n_slots));
        for (std::int32_t slot = 0; slot < n_slots; ++slot) {
            free_[static_cast<std::size_t>(slot)] = of_slot(slot);
        }
        chained_.reserve(on_chain);
        for (std::size_t i = 0; i < on_chain; ++i) {
            chained_.push_back(with_chain(i));
        }
        for (Candidates & list : free_) {
            sort_likeliest_first(list);
        }
    }

    /// After a path of `depth` tokens; `on_chain`: it equals the chain so far.
    [[nodiscard]] const Candidates & after(std::size_t depth, bool on_chain) const {
        if (on_chain && depth < chained_.size()) {
            return chained_[depth];
        }
        return depth < free_.size() ? free_[depth] : none_;
    }
    [[nodiscard]] bool chain_goes_on(std::size_t depth, llama_token token) const {
        return depth < chained_.size() && inputs_.chain[depth] == token;
    }

  private:
    const TreeInputs & inputs_;
    std::vector<Candidates> free_;
    std::vector<Candidates> chained_;
    Candidates none_;

    [[nodiscard]] Candidates of_slot(std::int32_t slot) const {
        const DraftCandidates & drafted = *inputs_.candidates;
        Candidates list;
        list.reserve(static_cast<std::size_t>(drafted.top_k) + 1);
        for (std::int32_t rank = 0; rank < drafted.top_k; ++rank) {
            const std::size_t at = static_cast<std::size_t>(slot) * drafted.top_k + rank;
            const float prob = at < inputs_.probs.size() ? inputs_.probs[at] : 0.0F;
            const llama_token token = drafted.ids[at];
            const bool known = std::ranges::any_of(list, [&](const Candidate & c) { return c.token == token; });
            if (!known && prob > 0.0F && std::isfinite(drafted.log_probs[at])) {
                list.push_back({token, std::min(prob, 1.0F), drafted.log_probs[at], rank, NodeSource::drafter});
            }
        }
        return list;
    }

    [[nodiscard]] Candidates with_chain(std::size_t i) const {
        Candidates list = i < free_.size() ? free_[i] : Candidates{};
        const llama_token token = inputs_.chain[i];
        Candidate next{token, std::clamp(inputs_.chain_probs[i], 0.0F, 1.0F), 0.0F, 0, inputs_.chain_source};
        float others = 0.0F;
        for (const Candidate & candidate : list) {
            if (candidate.token != token) {
                others += candidate.prob;
                continue;
            }
            next.log_prob = candidate.log_prob;
            next.rank = candidate.rank;
            if (candidate.prob >= next.prob) {
                next.prob = candidate.prob;
                next.source = NodeSource::drafter;
            }
        }
        std::erase_if(list, [&](const Candidate & candidate) { return candidate.token == token; });
        const float left = 1.0F - next.prob;
        for (Candidate & candidate : list) {
            candidate.prob *= others > left ? left / others : 1.0F;
        }
        std::erase_if(list, [](const Candidate & candidate) { return candidate.prob <= 0.0F; });
        if (next.prob > 0.0F) {
            list.push_back(next);
        }
        sort_likeliest_first(list);
        return list;
    }
};

/// A node that may join the tree: the index-th choice after `parent`.
struct Open {
    float path_prob;
    std::int32_t parent;
    std::int32_t depth;  // of the parent
    std::int32_t index;
    bool on_chain;  // the parent's path
};

/// Likelier first; among equals the deeper parent, then the older, so that the order is one and the same everywhere.
bool later(const Open & a, const Open & b) {
    if (a.path_prob != b.path_prob) {
        return a.path_prob < b.path_prob;
    }
    return a.depth != b.depth ? a.depth < b.depth : a.parent > b.parent;
}

class Grower {
  public:
    Grower(const TreeInputs & inputs, const TreeLimits & limits, std::vector<DraftNode> & nodes)
        : choices_(inputs), limits_(limits), nodes_(nodes) {
        nodes_.reserve(static_cast<std::size_t>(std::max(limits.max_nodes, 0)));
    }

    void run() {
        offer(-1, 0, 0, true);
        std::int32_t seeded = 0;
        while (!heap_.empty() && static_cast<std::int32_t>(nodes_.size()) < limits_.max_nodes) {
            const Open open = seeded < limits_.seed_depth ? take_newest() : take_likeliest();
            const bool branches = open.index > 0;  // its older sibling is in the tree
            if (branches && leaves_ >= limits_.max_leaves) {
                continue;
            }
            leaves_ += branches ? 1 : 0;
            if (add(open)) {
                ++seeded;
            } else {
                seeded = limits_.seed_depth;
            }
        }
    }

  private:
    const Choices choices_;
    const TreeLimits & limits_;
    std::vector<DraftNode> & nodes_;
    std::vector<Open> heap_;
    std::int32_t leaves_ = 1;

    bool offer(std::int32_t parent, std::int32_t depth, std::int32_t index, bool on_chain) {
        const Candidates & list = choices_.after(static_cast<std::size_t>(depth), on_chain);
        if (index >= static_cast<std::int32_t>(list.size())) {
            return false;
        }
        const float path = parent < 0 ? 1.0F : nodes_[static_cast<std::size_t>(parent)].path_prob;
        heap_.push_back({path * list[static_cast<std::size_t>(index)].prob, parent, depth, index, on_chain});
        std::ranges::push_heap(heap_, later);
        return true;
    }

    Open take_likeliest() {
        std::ranges::pop_heap(heap_, later);
        const Open open = heap_.back();
        heap_.pop_back();
        return open;
    }

    /// The first child of the deepest node: the seed goes straight down.
    Open take_newest() {
        const auto it = std::ranges::max_element(heap_, {}, [](const Open & open) { return open.depth; });
        const Open open = *it;
        heap_.erase(it);
        std::ranges::make_heap(heap_, later);
        return open;
    }

    /// Tells whether the new node has a child to offer.
    bool add(const Open & open) {
        const Candidate & chosen =
            choices_.after(static_cast<std::size_t>(open.depth), open.on_chain)[static_cast<std::size_t>(open.index)];
        const auto node = static_cast<std::int32_t>(nodes_.size());
        nodes_.push_back({chosen.token, open.parent, open.depth + 1, chosen.log_prob, chosen.prob, open.path_prob,
                          chosen.source, chosen.rank});
        offer(open.parent, open.depth, open.index + 1, open.on_chain);
        const bool on = open.on_chain && choices_.chain_goes_on(static_cast<std::size_t>(open.depth), chosen.token);
        return offer(node, open.depth + 1, 0, on);
    }
};

}  // namespace

DraftTree DraftTree::chain(const DraftCandidates & candidates, std::int32_t n) {
    DraftTree tree;
    const std::int32_t depth_max = std::min(n, candidates.n_slots);
    for (std::int32_t slot = 0; slot < depth_max; ++slot) {
        const std::size_t best = static_cast<std::size_t>(slot) * candidates.top_k;
        tree.nodes_.push_back({candidates.ids[best], slot - 1, slot + 1, candidates.log_probs[best]});
    }
    return tree;
}

DraftTree DraftTree::grow(const TreeInputs & inputs, const TreeLimits & limits) {
    DraftTree tree;
    Grower(inputs, limits, tree.nodes_).run();
    return tree;
}

void DraftTree::cut(std::int32_t n) {
    if (n < size()) {
        nodes_.erase(nodes_.begin() + std::max(n, 0), nodes_.end());
    }
}

std::int32_t DraftTree::n_leaves() const noexcept {
    // Every node but its parent's first child adds a leaf.
    std::int32_t leaves = nodes_.empty() ? 0 : 1;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const auto first = std::ranges::find(nodes_, nodes_[i].parent, &DraftNode::parent);
        leaves += first != nodes_.begin() + static_cast<std::ptrdiff_t>(i) ? 1 : 0;
    }
    return leaves;
}

std::int32_t DraftTree::child(std::int32_t parent, llama_token token) const noexcept {
    const auto it = std::ranges::find_if(
        nodes_, [&](const DraftNode & node) { return node.parent == parent && node.token == token; });
    return it == nodes_.end() ? -1 : static_cast<std::int32_t>(it - nodes_.begin());
}

}  // namespace dflash
