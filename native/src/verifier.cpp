// Verification of draft trees by sampling the target at each node.
#include "dflash/verifier.h"

#include <bit>
#include <string>

#include "dflash/error.h"

namespace dflash {

static_assert(max_tree_leaves <= max_sequences);

std::vector<Row> verify_rows(std::span<const std::int32_t> parents, std::span<const llama_token> tokens,
                             llama_pos pos) {
    std::vector<Row> rows;
    rows.reserve(tokens.size());
    rows.push_back({tokens[0], pos, true, 0});
    for (std::size_t i = 0; i < parents.size(); ++i) {
        const Row & parent = rows[static_cast<std::size_t>(parents[i] + 1)];
        rows.push_back({tokens[i + 1], parent.pos + 1, true, 0});
    }
    std::vector<bool> has_child(rows.size(), false);
    for (const std::int32_t parent : parents) {
        has_child[static_cast<std::size_t>(parent + 1)] = true;
    }
    std::int32_t leaf = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) {
        if (has_child[row]) {
            continue;
        }
        if (leaf == max_sequences) {
            throw Error(ErrorCode::invalid_argument,
                        "a draft tree has more than " + std::to_string(max_sequences) + " leaves");
        }
        rows[row].seqs = 1U << static_cast<std::uint32_t>(leaf++);
    }
    for (std::size_t i = parents.size(); i-- > 0;) {
        rows[static_cast<std::size_t>(parents[i] + 1)].seqs |= rows[i + 1].seqs;
    }
    return rows;
}

std::vector<Row> verify_rows(const DraftTree & tree, llama_token anchor, llama_pos pos) {
    std::vector<llama_token> tokens{anchor};
    tokens.reserve(tree.nodes().size() + 1);
    for (const DraftNode & node : tree.nodes()) {
        tokens.push_back(node.token);
    }
    return verify_rows(parents_of(tree), tokens, pos);
}

std::vector<std::int32_t> parents_of(const DraftTree & tree) {
    std::vector<std::int32_t> parents;
    parents.reserve(tree.nodes().size());
    for (const DraftNode & node : tree.nodes()) {
        parents.push_back(node.parent);
    }
    return parents;
}

std::int32_t n_leaves(std::span<const Row> rows) noexcept {
    return static_cast<std::int32_t>(std::bit_width(rows[0].seqs));
}

std::int32_t leaf_of(const Row & row) noexcept { return std::countr_zero(row.seqs); }

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
