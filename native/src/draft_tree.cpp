// Builds draft trees out of slot candidates.
#include "dflash/draft_tree.h"

#include <algorithm>

namespace dflash {

DraftTree DraftTree::chain(const DraftCandidates & candidates, std::int32_t n) {
    DraftTree tree;
    const std::int32_t depth_max = std::min(n, candidates.n_slots);
    for (std::int32_t slot = 0; slot < depth_max; ++slot) {
        const std::size_t best = static_cast<std::size_t>(slot) * candidates.top_k;
        tree.nodes_.push_back({candidates.ids[best], slot - 1, slot + 1, candidates.log_probs[best]});
    }
    return tree;
}

std::int32_t DraftTree::child(std::int32_t parent, llama_token token) const noexcept {
    const auto it = std::ranges::find_if(
        nodes_, [&](const DraftNode & node) { return node.parent == parent && node.token == token; });
    return it == nodes_.end() ? -1 : static_cast<std::int32_t>(it - nodes_.begin());
}

}  // namespace dflash
