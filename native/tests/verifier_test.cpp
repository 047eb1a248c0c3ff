// Draft chains and the walk over them.
#include "dflash/verifier.h"

#include <doctest/doctest.h>

#include <map>

using namespace dflash;

namespace {

DraftCandidates candidates_of(const std::vector<std::int32_t> & best, std::int32_t top_k) {
    DraftCandidates out;
    out.n_slots = static_cast<std::int32_t>(best.size());
    out.top_k = top_k;
    for (const std::int32_t id : best) {
        for (std::int32_t rank = 0; rank < top_k; ++rank) {
            out.ids.push_back(id + rank * 1000);
            out.log_probs.push_back(-0.5F - static_cast<float>(rank));
        }
    }
    return out;
}

Walk walk_on(const DraftTree & tree, std::int32_t max_emit, const std::map<std::int32_t, llama_token> & target,
             llama_token end = -1) {
    return walk(
        tree, max_emit, [&](std::int32_t row) { return target.at(row); },
        [&](llama_token token) { return token == end; });
}

}  // namespace

TEST_CASE("a chain takes the best candidate of each slot") {
    const DraftTree tree = DraftTree::chain(candidates_of({5, 6, 7}, 3), 2);
    REQUIRE(tree.size() == 2);
    CHECK(tree.nodes()[0].token == 5);
    CHECK(tree.nodes()[1].token == 6);
    CHECK(tree.nodes()[1].parent == 0);
    CHECK(tree.nodes()[1].depth == 2);
    CHECK(tree.nodes()[0].log_prob == doctest::Approx(-0.5));
    CHECK(DraftTree::chain(candidates_of({5, 6, 7}, 1), 9).size() == 3);
    CHECK(DraftTree::chain(candidates_of({5}, 1), 0).size() == 0);
}

TEST_CASE("rows follow the anchor at consecutive positions") {
    const auto rows = verify_rows(DraftTree::chain(candidates_of({5, 6}, 1), 2), 9, 40);
    REQUIRE(rows.size() == 3);
    CHECK(rows[0].token == 9);
    CHECK(rows[0].pos == 40);
    CHECK(rows[2].token == 6);
    CHECK(rows[2].pos == 42);
    CHECK(rows[2].logits);
}

TEST_CASE("the walk accepts what the target says and ends at the first difference") {
    const DraftTree tree = DraftTree::chain(candidates_of({5, 6, 7}, 2), 3);
    const Walk path = walk_on(tree, 100, {{0, 5}, {1, 6}, {2, 8}});
    CHECK(path.emitted == std::vector<llama_token>{5, 6, 8});
    CHECK(path.kept_rows == std::vector<std::int32_t>{0, 1, 2});
}

TEST_CASE("a fully accepted chain yields one token more than was drafted") {
    const DraftTree tree = DraftTree::chain(candidates_of({5, 6}, 1), 2);
    CHECK(walk_on(tree, 100, {{0, 5}, {1, 6}, {2, 7}}).emitted == std::vector<llama_token>{5, 6, 7});
}

TEST_CASE("the walk ends at the limit and at an end token, drafted or not") {
    const DraftTree tree = DraftTree::chain(candidates_of({5, 6, 7}, 1), 3);
    CHECK(walk_on(tree, 2, {{0, 5}, {1, 6}, {2, 7}}).emitted == std::vector<llama_token>{5, 6});
    CHECK(walk_on(tree, 100, {{0, 5}, {1, 6}}, 6).emitted == std::vector<llama_token>{5, 6});
    CHECK(walk_on(tree, 1, {{0, 1}}).emitted == std::vector<llama_token>{1});
}

TEST_CASE("without drafts the walk is one plain token") {
    CHECK(walk_on(DraftTree{}, 100, {{0, 3}}).emitted == std::vector<llama_token>{3});
}
