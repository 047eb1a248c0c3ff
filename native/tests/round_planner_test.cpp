// Single decisions of the planner: what it asks for, cuts, learns and says.
#include "dflash/round_planner.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <vector>

#include "planner_sim.h"

using namespace dflash;
using namespace dflash::sim;

namespace {

constexpr std::array<std::int32_t, 5> widths{1, 2, 4, 8, 16};

World world_of(double accept, double draft_ms = 3.0) {
    World world(21);
    world.machine.target = [](std::int32_t rows) { return 9.0 + rows; };
    world.machine.draft = draft_ms;
    world.skill.accept = accept;
    return world;
}

CostTable rising() {
    CostTable table;
    table.widths = {{1, 10.0, 0.0}, {2, 15.0, 0.0}, {4, 19.0, 0.0}, {8, 25.0, 0.0}, {16, 34.0, 0.0}};
    return table;
}

void play_rounds(World & world, RoundPlanner & planner, int rounds) {
    for (int i = 0; i < rounds; ++i) {
        play(world, planner);
    }
}

RoundView copy_view(std::span<const llama_token> chain, std::int32_t match) {
    RoundView view;
    view.max_nodes = 63;
    view.chain = chain;
    view.match_length = match;
    view.n_sources = 1;
    view.n_agreeing = 1;
    return view;
}

}  // namespace

TEST_CASE("nothing on offer, no room, or no known costs: plain") {
    RoundPlanner planner;
    World world = world_of(0.9);
    RoundView view = world.view();
    CHECK(planner.choose(view) == RoundSource::plain);
    CHECK(planner.plan(view, nullptr).size() == 0);
    planner.costs().set_table(world.table(widths));
    CHECK(planner.choose(view) == RoundSource::drafter);
    view.max_nodes = 0;
    CHECK(planner.choose(view) == RoundSource::plain);
    view.max_nodes = 63;
    view.n_slots = 0;
    CHECK(planner.choose(view) == RoundSource::plain);
}

TEST_CASE("without a table four plain rounds come first, then trials measure widths 2, 4 and 8") {
    RoundPlanner planner;
    World world = world_of(0.9);
    for (std::int32_t i = 0; i < RoundPlanner::plain_needed; ++i) {
        CHECK(play(world, planner).source == RoundSource::plain);
    }
    CHECK(play(world, planner).source == RoundSource::drafter);
    play_rounds(world, planner, 150);
    for (const std::int32_t rows : {2, 4, 8}) {
        CHECK(planner.costs().observations(rows) >= 2);
    }
    CHECK(planner.declined().empty());
    CHECK(planner.status().draft_speed > 1.5);
}

TEST_CASE("trees are cut to measured widths") {
    RoundPlanner planner;
    World world = world_of(0.8);
    planner.costs().set_table(world.table(widths));
    for (int i = 0; i < 300; ++i) {
        const RoundOutcome outcome = play(world, planner);
        const auto rows = static_cast<std::int32_t>(outcome.verified.size()) + 1;
        CHECK((rows == 1 || rows == 2 || rows == 4 || rows == 8));
    }
}

TEST_CASE("room for fewer nodes is kept to") {
    RoundPlanner planner;
    World world = world_of(1.0);
    planner.costs().set_table(world.table(widths));
    play_rounds(world, planner, 50);
    RoundView view = world.view();
    view.max_nodes = 2;
    REQUIRE(planner.choose(view) == RoundSource::drafter);
    const DraftTree tree = planner.plan(view, &world.draft());
    CHECK(tree.size() <= 2);
    CHECK(tree.size() > 0);
}

TEST_CASE("a confident copy goes ahead without a draft pass and past the block, a doubtful one does not") {
    RoundPlanner planner;
    planner.costs().set_table(rising());
    const std::vector<llama_token> chain(40, 7);
    CHECK(planner.choose(copy_view(chain, 1)) == RoundSource::plain);
    const RoundView sure = copy_view(chain, 32);
    REQUIRE(planner.choose(sure) == RoundSource::chain);
    const DraftTree tree = planner.plan(sure, nullptr);
    CHECK(tree.size() >= 15);
    CHECK(tree.n_leaves() == 1);
    CHECK(tree.nodes()[0].source == NodeSource::copy);
}

TEST_CASE("forced text goes ahead at once") {
    RoundPlanner planner;
    planner.costs().set_table(world_of(0.1).table(widths));
    const std::vector<llama_token> chain{4, 5, 6};
    RoundView view = copy_view(chain, 0);
    view.chain_source = NodeSource::grammar;
    REQUIRE(planner.choose(view) == RoundSource::chain);
    const DraftTree tree = planner.plan(view, nullptr);
    REQUIRE(tree.size() == 3);
    CHECK(tree.nodes()[2].path_prob == doctest::Approx(std::pow(0.97, 3)).epsilon(0.01));
}

TEST_CASE("copies are judged by what comes, also while none is verified") {
    RoundPlanner planner;
    planner.costs().set_table(rising());
    const std::vector<llama_token> chain(12, 7);
    RoundView view = copy_view(chain, 1);
    CHECK(planner.choose(view) == RoundSource::plain);
    for (std::int32_t i = 0; i < 40; ++i) {
        view.n_past = i;
        const std::vector<llama_token> came{7};
        RoundOutcome outcome;
        outcome.n_past = i;
        outcome.tokens = came;
        outcome.target_ms = 10.0;
        outcome.total_ms = 10.1;
        if (planner.choose(view) == RoundSource::chain) {
            break;
        }
        planner.observe(outcome);
    }
    CHECK(planner.choose(view) == RoundSource::chain);
}

TEST_CASE("a plain round keeps the reference fresh, at most every 64 rounds") {
    RoundPlanner planner;
    World world = world_of(1.0, 1.0);
    planner.costs().set_table(world.table(widths));
    play_rounds(world, planner, 20);
    int plain = 0;
    for (int i = 0; i < 650; ++i) {
        plain += play(world, planner).verified.empty() ? 1 : 0;
    }
    CHECK(plain >= 9);
    CHECK(plain <= 11);
}

TEST_CASE("why the drafter is not used is told in words") {
    RoundPlanner planner;
    World world = world_of(0.0);
    planner.costs().set_table(world.table(widths));
    CHECK(planner.declined() == "too few rounds so far to judge it");
    play_rounds(world, planner, 300);
    CHECK(planner.declined().find("of plain speed") != std::string::npos);
    CHECK(planner.declined().find("tokens per round expected") != std::string::npos);
    const PlannerStatus status = planner.status();
    CHECK(status.draft_speed > 0.0);
    CHECK(status.draft_speed < 1.0);
    CHECK(status.needed_tokens > 1.0);
    CHECK(status.lambda == doctest::Approx(1.0 / world.plain_ms()).epsilon(0.05));
    CHECK(status.trials > 0);
}

TEST_CASE("fewer slots are asked for where the deep ones are never verified and cost time") {
    RoundPlanner planner;
    World world = world_of(0.7, 2.0);
    world.skill.fade = 0.2;
    world.machine.target = [](std::int32_t rows) { return 8.0 + 2.0 * rows; };
    CostTable table = world.table(widths);
    table.draft_slot_ms = 0.25;
    planner.costs().set_table(table);
    std::int32_t fewest = World::n_slots;
    for (int i = 0; i < 60; ++i) {
        fewest = std::min(fewest, planner.draft_slots(world.view()));
        play(world, planner);
    }
    CHECK(planner.declined().empty());
    CHECK(fewest < World::n_slots);
    CHECK(fewest >= 3);
}

TEST_CASE("trees are grown where their siblings pay and leaves are cheap") {
    World world = world_of(0.5, 1.0);
    world.machine.target = [](std::int32_t rows) { return 10.0 + 0.05 * rows; };
    world.skill.sibling = 1.0;
    world.max_leaves = 8;
    RoundPlanner planner;
    CostTable table = world.table(widths);
    planner.costs().set_table(table);
    int trees = 0;
    for (int i = 0; i < 200; ++i) {
        const RoundOutcome outcome = play(world, planner);
        for (const DraftNode & node : outcome.verified) {
            trees += node.rank > 0 ? 1 : 0;
        }
    }
    CHECK(trees > 100);

    World dear = world_of(0.5, 1.0);
    dear.machine.target = world.machine.target;
    dear.max_leaves = 8;
    RoundPlanner wary;
    table.leaf_ms = 20.0;
    wary.costs().set_table(table);
    for (int i = 0; i < 20; ++i) {
        const RoundView view = dear.view();
        if (wary.choose(view) == RoundSource::drafter) {
            CHECK(wary.plan(view, &dear.draft()).n_leaves() <= 1);
        }
    }
}

TEST_CASE("outcomes that were never planned are taken as they are") {
    RoundPlanner planner;
    World world = world_of(0.8);
    for (int i = 0; i < 30; ++i) {
        const DraftTree tree = DraftTree::chain(world.draft(), 5);
        planner.observe(world.run(RoundSource::drafter, tree, true));
    }
    CHECK(planner.costs().observations(6) == 30);
    CHECK(planner.costs().draft_ms(World::n_slots) == doctest::Approx(3.0).epsilon(0.05));
    CHECK(planner.status().draft_strikes == 0);
}
