// Verification of draft trees by sampling the target at each node.
#include "dflash/verifier.h"

namespace dflash {

std::vector<Row> verify_rows(const DraftTree & tree, llama_token anchor, llama_pos pos) {
    std::vector<Row> rows;
    rows.reserve(tree.nodes().size() + 1);
    rows.push_back({anchor, pos, true});
    for (const DraftNode & node : tree.nodes()) {
        rows.push_back({node.token, pos + node.depth, true});
    }
    return rows;
}

Walk walk(const DraftTree & tree, std::int32_t max_emit, const std::function<llama_token(std::int32_t row)> & sample,
          const std::function<bool(llama_token)> & ends) {
    Walk result;
    std::int32_t node = -1;
    while (static_cast<std::int32_t>(result.emitted.size()) < max_emit) {
        const std::int32_t row = node + 1;
        const llama_token token = sample(row);
        result.emitted.push_back(token);
        result.kept_rows.push_back(row);
        if (ends(token)) {
            break;
        }
        node = tree.child(node, token);
        if (node < 0) {
            break;
        }
    }
    return result;
}

}  // namespace dflash
