// Records of tree rounds: cuts, saved states, the cells they took.
#include <doctest/doctest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "dflash/error.h"
#include "dflash/session.h"

using namespace dflash;

namespace {

using Tokens = std::vector<llama_token>;

DecodeRecord batch(std::int32_t pos0, std::int32_t n_rows, std::int32_t n_kept) {
    return {pos0, n_rows, n_kept, n_kept, RoundKind::draft, true, true};
}

DecodeRecord tree(std::int32_t pos0, TreeShape shape) {
    DecodeRecord record = batch(pos0, static_cast<std::int32_t>(shape.parents.size()) + 1,
                                static_cast<std::int32_t>(shape.kept_rows.size()));
    record.tree = std::move(shape);
    return record;
}

/// Anchor, 1 and 2 beneath it, 3 beneath 1, 4 beneath 2, 5 beneath 4: the path 0 2 4 5 is kept.
TreeShape shape() { return {{-1, -1, 0, 1, 3}, {0, 2, 4, 5}}; }

/// Prompt 1 2 3, then 10 plainly, 11 12 13 14 of a tree.
Session tree_session() {
    Session session(0);
    session.begin(Tokens{1, 2, 3}, true);
    session.commit({0, 3, 3, 1, RoundKind::plain, true, false}, Tokens{10}, {1.0, 0.0, 0.0, 1.0});
    session.commit(tree(3, shape()), Tokens{11, 12, 13, 14}, {2.0, 1.0, 0.5, 4.0});
    return session;
}

/// The rule itself: a batch takes the lowest free cells; restoring moves all cells together.
std::int32_t naive_in_place(std::span<const DecodeRecord> records) {
    std::vector<std::int32_t> position_at(1000, -1);  // by cell
    for (const DecodeRecord & record : records) {
        std::vector<std::size_t> taken;
        for (std::size_t cell = 0; std::cmp_less(taken.size(), record.n_rows); ++cell) {
            if (position_at[cell] < 0) {
                taken.push_back(cell);
            }
        }
        for (std::int32_t i = 0; i < record.n_kept; ++i) {
            position_at[taken[static_cast<std::size_t>(record.kept_row(i))]] = record.pos0 + i;
        }
    }
    std::vector<std::int32_t> restored;
    std::ranges::copy_if(position_at, std::back_inserter(restored), [](std::int32_t pos) { return pos >= 0; });
    auto first = static_cast<std::int32_t>(restored.size());
    for (std::size_t cell = 0; cell < restored.size(); ++cell) {
        if (position_at[cell] != restored[cell]) {
            first = std::min(first, restored[cell]);
        }
    }
    return first;
}

}  // namespace

TEST_CASE("a tree round counts its depth as slots and its rows as drafted") {
    const RunStats stats = tree_session().stats();
    CHECK(stats.draft_n == 5);
    CHECK(stats.draft_n_accepted == 3);
    CHECK(stats.accepted_per_slot == std::vector<std::int32_t>{1, 1, 1});
    CHECK(tree(0, shape()).nodes_by_depth() == std::vector<std::int32_t>{2, 2, 1});
    CHECK(batch(0, 4, 3).nodes_by_depth() == std::vector<std::int32_t>{1, 1, 1});
}

TEST_CASE("a cut shortens the kept path of a tree") {
    for (std::int32_t n = 5; n <= 8; ++n) {
        Session session = tree_session();
        session.truncate(n);
        const DecodeRecord & last = session.records().back();
        CHECK(last.n_kept == n - 4);
        CHECK(last.n_emitted == n - 4);
        CHECK(last.tree.parents == shape().parents);
        auto kept_rows = shape().kept_rows;
        kept_rows.resize(static_cast<std::size_t>(n) - 4);
        CHECK(last.tree.kept_rows == kept_rows);
        CHECK(is_well_formed(last));
    }
    Session session = tree_session();
    session.truncate(4);
    CHECK(session.records().size() == 1);
}

TEST_CASE("decoded positions can be dropped while the tokens stay") {
    Session session = tree_session();
    session.keep_decoded(5);
    CHECK(session.n_tokens() == 8);
    CHECK(session.n_decoded() == 5);
    CHECK(session.records().back().n_kept == 2);
    CHECK(is_well_formed(session.records().back()));
    session.keep_decoded(7);
    CHECK(session.n_decoded() == 5);
}

TEST_CASE("tree rounds come back with a saved session") {
    Session other(0);
    other.restore(tree_session().save());
    REQUIRE(other.records().size() == 2);
    const DecodeRecord & record = other.records().back();
    CHECK(record.tree.parents == shape().parents);
    CHECK(record.tree.kept_rows == shape().kept_rows);
    CHECK(record.n_emitted == 4);
    CHECK(record.kind == RoundKind::draft);
    CHECK(record.all_logits);
    CHECK_FALSE(record.current_run);
    CHECK(other.n_decoded() == 7);
}

TEST_CASE("records that no batch can have left are not well formed") {
    CHECK(is_well_formed(batch(0, 3, 2)));
    CHECK(is_well_formed(tree(0, shape())));
    const auto bad = [](auto change) {
        DecodeRecord record = tree(0, shape());
        change(record);
        return !is_well_formed(record);
    };
    CHECK(bad([](DecodeRecord & r) { r.pos0 = -1; }));
    CHECK(bad([](DecodeRecord & r) { r.n_kept = 0; }));
    CHECK(bad([](DecodeRecord & r) { r.n_kept = 7; }));
    CHECK(bad([](DecodeRecord & r) { r.n_emitted = 5; }));
    CHECK(bad([](DecodeRecord & r) { r.n_emitted = -1; }));
    CHECK(bad([](DecodeRecord & r) { r.kind = static_cast<RoundKind>(9); }));
    CHECK(bad([](DecodeRecord & r) { r.kind = RoundKind::plain; }));
    CHECK(bad([](DecodeRecord & r) { r.all_logits = false; }));
    CHECK(bad([](DecodeRecord & r) { r.n_rows = 7; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.parents[2] = 2; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.parents[2] = -2; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.kept_rows.pop_back(); }));
    CHECK(bad([](DecodeRecord & r) { r.tree.kept_rows[0] = 1; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.kept_rows[2] = 3; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.kept_rows[3] = 6; }));
    CHECK(bad([](DecodeRecord & r) { r.tree.parents.clear(); }));
}

TEST_CASE("a state whose records do not add up is refused") {
    Session gap(0);
    gap.begin(Tokens{1, 2, 3}, true);
    DecodeRecord record{0, 3, 3, 1, RoundKind::plain, true, false};
    record.tree.kept_rows = {0};
    gap.commit(record, Tokens{10}, {});
    Session other(0);
    CHECK_THROWS_WITH_AS(other.restore(gap.save()), "the saved state is damaged: its counts disagree; save it again",
                         Error);
}

TEST_CASE("chains leave no holes, rejected rows of trees do until later batches fill them") {
    std::vector<DecodeRecord> records{batch(0, 5, 5), batch(5, 8, 3), batch(8, 4, 1)};
    CHECK(positions_in_place(records) == 9);
    CHECK(positions_in_place({}) == 0);
    records.push_back(tree(9, {{-1, -1, 1}, {0, 2, 3}}));  // cells 9, 11, 12
    CHECK(positions_in_place(records) == 10);
    records.push_back(batch(12, 1, 1));  // cell 10
    CHECK(positions_in_place(records) == 13);
}

TEST_CASE("positions in place follow llama.cpp's rule for any rounds") {
    std::mt19937 random(3);
    const auto draw = [&](std::int32_t low, std::int32_t high) {
        return std::uniform_int_distribution<std::int32_t>(low, high)(random);
    };
    for (std::int32_t trial = 0; trial < 200; ++trial) {
        std::vector<DecodeRecord> records{batch(0, 6, 6)};
        std::int32_t pos = 6;
        for (std::int32_t round = draw(1, 12); round > 0; --round) {
            TreeShape made{{}, {0}};
            for (std::int32_t i = draw(1, 8); i > 0; --i) {
                const auto node = static_cast<std::int32_t>(made.parents.size());
                made.parents.push_back(draw(-1, node - 1));
                if (made.parents.back() + 1 == made.kept_rows.back() && draw(0, 1) == 0) {
                    made.kept_rows.push_back(node + 1);
                }
            }
            const auto n_kept = static_cast<std::int32_t>(made.kept_rows.size());
            records.push_back(draw(0, 2) == 0 ? batch(pos, n_kept + draw(0, 3), n_kept) : tree(pos, std::move(made)));
            pos += n_kept;
        }
        REQUIRE(std::ranges::all_of(records, is_well_formed));
        CHECK(positions_in_place(records) == naive_in_place(records));
    }
}
