// Trees against brute force: the likeliest paths first, chains merged in, never a token twice under one parent.
#include "dflash/draft_tree.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

using namespace dflash;

namespace {

struct Offer {
    DraftCandidates candidates;
    std::vector<float> probs;
};

/// Slot s offers tokens 10s + 1, 10s + 2, ... with the given probabilities.
Offer offer_of(const std::vector<std::vector<float>> & slots) {
    Offer out;
    out.candidates.n_slots = static_cast<std::int32_t>(slots.size());
    out.candidates.top_k = static_cast<std::int32_t>(slots.front().size());
    for (std::size_t slot = 0; slot < slots.size(); ++slot) {
        for (std::size_t rank = 0; rank < slots[slot].size(); ++rank) {
            out.candidates.ids.push_back(static_cast<std::int32_t>(10 * slot + rank + 1));
            out.candidates.log_probs.push_back(-1.0F - static_cast<float>(rank));
            out.probs.push_back(slots[slot][rank]);
        }
    }
    return out;
}

TreeInputs inputs_of(const Offer & offer) { return {&offer.candidates, offer.probs, {}, {}, NodeSource::copy}; }

/// Path probabilities of every prefix there is, likeliest first.
std::vector<float> all_paths(const std::vector<std::vector<float>> & slots) {
    std::vector<float> out;
    std::vector<float> level{1.0F};
    for (const std::vector<float> & slot : slots) {
        std::vector<float> next;
        for (const float path : level) {
            for (const float prob : slot) {
                next.push_back(path * prob);
            }
        }
        out.insert(out.end(), next.begin(), next.end());
        level = std::move(next);
    }
    std::erase(out, 0.0F);
    std::ranges::sort(out, std::greater<>());
    return out;
}

void check_sound(const DraftTree & tree) {
    std::set<std::pair<std::int32_t, llama_token>> seen;
    for (std::int32_t i = 0; i < tree.size(); ++i) {
        const DraftNode & node = tree.nodes()[static_cast<std::size_t>(i)];
        REQUIRE(node.parent < i);
        const DraftNode * parent = node.parent < 0 ? nullptr : &tree.nodes()[static_cast<std::size_t>(node.parent)];
        CHECK(node.depth == (parent == nullptr ? 1 : parent->depth + 1));
        CHECK(node.path_prob == doctest::Approx((parent == nullptr ? 1.0F : parent->path_prob) * node.prob));
        CHECK(seen.emplace(node.parent, node.token).second);
    }
}

std::vector<llama_token> tokens_of(const DraftTree & tree) {
    std::vector<llama_token> out;
    for (const DraftNode & node : tree.nodes()) {
        out.push_back(node.token);
    }
    return out;
}

}  // namespace

TEST_CASE("a tree holds the likeliest paths there are, likeliest first") {
    const std::vector<std::vector<std::vector<float>>> cases{
        {{0.6F, 0.3F, 0.05F}, {0.5F, 0.2F, 0.1F}, {0.9F, 0.05F, 0.01F}},
        {{0.3F, 0.29F, 0.28F}, {0.9F, 0.04F, 0.03F}, {0.4F, 0.35F, 0.2F}, {0.7F, 0.2F, 0.05F}},
        {{0.1F, 0.6F, 0.2F}, {0.0F, 0.7F, 0.2F}, {0.3F, 0.3F, 0.3F}},  // ranks out of order, one forbidden
        {{1.0F, 0.0F}, {1.0F, 0.0F}, {0.5F, 0.5F}},
    };
    for (const auto & slots : cases) {
        const Offer offer = offer_of(slots);
        const std::vector<float> expected = all_paths(slots);
        for (const std::int32_t n : {0, 1, 2, 5, 11, 63, 500}) {
            const DraftTree tree = DraftTree::grow(inputs_of(offer), {n, max_tree_leaves * 100, 0});
            check_sound(tree);
            REQUIRE(static_cast<std::size_t>(tree.size()) == std::min(static_cast<std::size_t>(n), expected.size()));
            for (std::size_t i = 0; i < static_cast<std::size_t>(tree.size()); ++i) {
                CHECK(tree.nodes()[i].path_prob == doctest::Approx(expected[i]));
            }
        }
    }
}

TEST_CASE("one leaf is a chain of the likeliest child at each depth") {
    const Offer offer = offer_of({{0.2F, 0.7F}, {0.6F, 0.3F}, {0.4F, 0.5F}});
    const DraftTree tree = DraftTree::grow(inputs_of(offer), {10, 1, 0});
    check_sound(tree);
    CHECK(tokens_of(tree) == std::vector<llama_token>{2, 11, 22});
    CHECK(tree.n_leaves() == 1);
    CHECK(tree.nodes()[0].rank == 1);
    CHECK(tree.nodes()[0].log_prob == doctest::Approx(-2.0F));
}

TEST_CASE("leaves are counted and bounded") {
    const Offer offer = offer_of({{0.4F, 0.3F, 0.2F}, {0.4F, 0.3F, 0.2F}, {0.4F, 0.3F, 0.2F}});
    for (const std::int32_t leaves : {1, 2, 3, 7}) {
        const DraftTree tree = DraftTree::grow(inputs_of(offer), {30, leaves, 0});
        check_sound(tree);
        CHECK(tree.n_leaves() <= leaves);
        CHECK(tree.n_leaves() == std::min(leaves, tree.size()));
    }
    CHECK(DraftTree().n_leaves() == 0);
}

TEST_CASE("a seed goes straight down before anything else") {
    const Offer offer = offer_of({{0.5F, 0.45F}, {0.1F, 0.05F}, {0.1F, 0.05F}, {0.1F, 0.05F}});
    const DraftTree tree = DraftTree::grow(inputs_of(offer), {6, 8, 3});
    check_sound(tree);
    CHECK(tokens_of(tree) == std::vector<llama_token>{1, 11, 21, 2, 11, 12});
    CHECK(DraftTree::grow(inputs_of(offer), {2, 8, 3}).size() == 2);
    CHECK(tokens_of(DraftTree::grow(inputs_of(offer), {6, 1, 9})) == std::vector<llama_token>{1, 11, 21, 31});
}

TEST_CASE("a chain alone runs past every block") {
    TreeInputs inputs;
    const std::vector<llama_token> chain{5, 6, 5, 6, 7};
    const std::vector<float> probs{0.9F, 0.8F, 0.7F, 0.6F, 0.5F};
    inputs.chain = chain;
    inputs.chain_probs = probs;
    inputs.chain_source = NodeSource::grammar;
    const DraftTree tree = DraftTree::grow(inputs, {10, 4, 0});
    check_sound(tree);
    CHECK(tokens_of(tree) == chain);
    CHECK(tree.nodes()[4].path_prob == doctest::Approx(0.9 * 0.8 * 0.7 * 0.6 * 0.5));
    CHECK(tree.nodes()[0].source == NodeSource::grammar);
    CHECK(tree.nodes()[0].log_prob == 0.0F);
}

TEST_CASE("a chain joins the candidates with the larger probability, and the others share what is left") {
    const Offer offer = offer_of({{0.6F, 0.3F}, {0.5F, 0.4F}});
    const std::vector<llama_token> chain{2, 11, 77};
    const std::vector<float> probs{0.8F, 0.2F, 0.9F};
    TreeInputs inputs = inputs_of(offer);
    inputs.chain = chain;
    inputs.chain_probs = probs;
    const DraftTree tree = DraftTree::grow(inputs, {20, 20, 0});
    check_sound(tree);

    const std::int32_t copied = tree.child(-1, 2);
    REQUIRE(copied >= 0);
    const DraftNode & first = tree.nodes()[static_cast<std::size_t>(copied)];
    CHECK(first.prob == doctest::Approx(0.8));
    CHECK(first.source == NodeSource::copy);
    CHECK(first.log_prob == doctest::Approx(-2.0));  // the drafter offers it too
    CHECK(tree.nodes()[static_cast<std::size_t>(tree.child(-1, 1))].prob == doctest::Approx(0.2));

    const std::int32_t second = tree.child(copied, 11);
    REQUIRE(second >= 0);
    CHECK(tree.nodes()[static_cast<std::size_t>(second)].prob == doctest::Approx(0.5));  // the drafter's is larger
    CHECK(tree.nodes()[static_cast<std::size_t>(second)].source == NodeSource::drafter);
    CHECK(tree.child(second, 77) >= 0);                            // beyond the block
    CHECK(tree.child(tree.child(tree.child(-1, 1), 11), 77) < 0);  // off the chain nothing follows it
    for (std::int32_t parent = -1; parent < tree.size(); ++parent) {
        float sum = 0.0F;
        for (const DraftNode & node : tree.nodes()) {
            sum += node.parent == parent ? node.prob : 0.0F;
        }
        CHECK(sum <= 1.0F + 1e-5F);
    }
}

TEST_CASE("a token offered twice in one slot joins once") {
    Offer offer = offer_of({{0.5F, 0.3F, 0.1F}});
    offer.candidates.ids = {4, 4, 5};
    const DraftTree tree = DraftTree::grow(inputs_of(offer), {10, 10, 0});
    CHECK(tokens_of(tree) == std::vector<llama_token>{4, 5});
}

TEST_CASE("cutting keeps the first nodes") {
    const Offer offer = offer_of({{0.6F, 0.3F}, {0.5F, 0.4F}});
    DraftTree tree = DraftTree::grow(inputs_of(offer), {6, 8, 0});
    const std::vector<llama_token> before = tokens_of(tree);
    tree.cut(9);
    CHECK(tokens_of(tree) == before);
    tree.cut(2);
    CHECK(tokens_of(tree) == std::vector<llama_token>(before.begin(), before.begin() + 2));
    tree.cut(0);
    CHECK(tree.size() == 0);
}
