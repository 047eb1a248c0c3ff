// Draft chains, trees of rows, and the walk over them.
#include "dflash/verifier.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <utility>

#include "dflash/error.h"

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

std::vector<std::int32_t> random_parents(std::mt19937 & random, std::int32_t n) {
    std::vector<std::int32_t> parents;
    for (std::int32_t i = 0; i < n; ++i) {
        parents.push_back(std::uniform_int_distribution<std::int32_t>(-1, i - 1)(random));
    }
    return parents;
}

/// Is `row` the other one or beneath it?
bool is_beneath(const std::vector<std::int32_t> & parents, std::int32_t row, std::int32_t other) {
    while (row > other) {
        row = parents.at(static_cast<std::size_t>(row - 1)) + 1;
    }
    return row == other;
}

/// llama.cpp's rule: a row sees cells of its first sequence at positions up to its own.
bool sees(const Row & row, const Row & cell) {
    return ((cell.seqs >> static_cast<std::uint32_t>(leaf_of(row))) & 1U) != 0 && cell.pos <= row.pos;
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
    CHECK(rows[0].seqs == 1);
    CHECK(rows[2].seqs == 1);
    CHECK(n_leaves(rows) == 1);
}

TEST_CASE("a row of a tree sees its ancestors and itself alone") {
    std::mt19937 random(5);
    for (std::int32_t n = 0; n <= 24; ++n) {
        for (std::int32_t trial = 0; trial < 8; ++trial) {
            const std::vector<std::int32_t> parents = random_parents(random, n);
            const std::vector<llama_token> tokens(parents.size() + 1, 7);
            const std::vector<Row> rows = verify_rows(parents, tokens, 40);
            REQUIRE(std::cmp_equal(rows.size(), n + 1));
            for (std::int32_t i = 0; i <= n; ++i) {
                for (std::int32_t j = 0; j <= n; ++j) {
                    CHECK(sees(rows.at(static_cast<std::size_t>(i)), rows.at(static_cast<std::size_t>(j))) ==
                          is_beneath(parents, i, j));
                }
            }
        }
    }
}

TEST_CASE("each leaf of a tree is one sequence at consecutive positions, the anchor in all") {
    std::mt19937 random(6);
    for (std::int32_t n = 1; n <= 24; ++n) {
        const std::vector<std::int32_t> parents = random_parents(random, n);
        const std::vector<llama_token> tokens(parents.size() + 1, 7);
        const std::vector<Row> rows = verify_rows(parents, tokens, 40);
        for (std::int32_t leaf = 0; leaf < n_leaves(rows); ++leaf) {
            std::int32_t pos = 40;
            for (const Row & row : rows) {
                if (((row.seqs >> static_cast<std::uint32_t>(leaf)) & 1U) != 0) {
                    CHECK(row.pos == pos++);
                }
            }
            CHECK(pos > 41);
        }
        CHECK(rows[0].seqs == (n_leaves(rows) == 32 ? UINT32_MAX : (1U << n_leaves(rows)) - 1U));
    }
}

TEST_CASE("a tree takes 32 leaves and not one more") {
    std::vector<std::int32_t> parents(32, -1);
    const std::vector<llama_token> tokens(34, 7);
    CHECK(verify_rows(parents, std::span{tokens}.first(33), 1)[0].seqs == UINT32_MAX);
    parents.push_back(-1);
    CHECK_THROWS_WITH_AS(static_cast<void>(verify_rows(parents, tokens, 1)), "a draft tree has more than 32 leaves",
                         Error);
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
