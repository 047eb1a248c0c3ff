// The planner against the best fixed width of each phase, on made-up machines and texts. Seeded, no clocks.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "planner_sim.h"

using namespace dflash;
using namespace dflash::sim;

namespace {

using Curve = double (*)(std::int32_t);

double flat(std::int32_t rows) { return 10.0 + 0.02 * rows; }
double linear(std::int32_t rows) { return 7.0 + 3.0 * rows; }
double steep(std::int32_t rows) { return 2.0 + 8.0 * rows; }
double stepped(std::int32_t rows) {
    return rows <= 1 ? 10.0 : rows <= 4 ? 14.0 : rows <= 8 ? 20.0 : rows <= 16 ? 34.0 : 64.0;
}
double experts(std::int32_t rows) { return rows <= 4 ? 4.0 + 6.0 * rows : 28.0 + 0.2 * (rows - 4); }

constexpr std::int32_t warm_up = 64;  // rounds of a phase before regret counts
constexpr std::array<std::int32_t, 9> widths{1, 2, 3, 4, 5, 6, 8, 12, 16};

World world_of(Curve curve, double accept, double draft_ms) {
    World world(7);
    world.machine.target = curve;
    world.machine.draft = draft_ms;
    world.machine.noise = 0.05;
    world.skill.accept = accept;
    world.skill.fade = accept < 1.0 ? 0.03 : 0.0;
    return world;
}

RoundPlanner planner_of(const World & world) {
    RoundPlanner planner;
    planner.costs().set_table(world.table(widths));
    return planner;
}

/// What changes from round to round.
using Change = std::function<void(World &, std::int32_t round)>;
void no_change(World & /*world*/, std::int32_t /*round*/) {}

struct Best {
    double rate = 0.0;
    double drafted = 0.0;  // the best with at least one drafted row
};

/// The best width of 0 to all slots, knowing everything but the text.
Best best_fixed(const World & world, std::int32_t rounds, const Change & change) {
    Best best;
    for (std::int32_t nodes = 0; nodes <= World::n_slots; ++nodes) {
        World copy = world;
        Tally tally;
        for (std::int32_t round = 0; round < rounds; ++round) {
            change(copy, round);
            play_fixed(copy, nodes, tally);
        }
        best.rate = std::max(best.rate, tally.rate());
        best.drafted = nodes > 0 ? std::max(best.drafted, tally.rate()) : 0.0;
    }
    return best;
}

struct Run {
    Tally settled;                   // after the warm-up
    std::vector<double> clock{0.0};  // by token, in plain tokens under the load of the time
    [[nodiscard]] double worst(std::size_t window) const {
        double out = 1e9;
        for (std::size_t i = window; i < clock.size(); ++i) {
            out = std::min(out, static_cast<double>(window) / (clock[i] - clock[i - window]));
        }
        return out;
    }
};

Run run(World & world, RoundPlanner & planner, std::int32_t rounds, const Change & change) {
    Run out;
    for (std::int32_t round = 0; round < rounds; ++round) {
        change(world, round);
        const double plain = world.plain_ms();
        Tally one;
        count(one, play(world, planner), world.machine);
        out.settled.add(round >= warm_up ? one : Tally{});
        for (int token = 0; token < static_cast<int>(one.tokens); ++token) {
            out.clock.push_back(out.clock.back() + one.ms / one.tokens / plain);
        }
    }
    return out;
}

}  // namespace

TEST_CASE("after 64 rounds the planner is within 5% of the best fixed width, on every cost curve") {
    const std::vector<std::pair<std::string, Curve>> curves{
        {"flat", flat}, {"linear", linear}, {"steep", steep}, {"stepped", stepped}, {"experts", experts}};
    for (const auto & [name, curve] : curves) {
        for (const double accept : {0.0, 0.2, 0.4, 0.6, 0.9, 1.0}) {
            for (const Margins margins : {Margins::honest, Margins::overconfident}) {
                World world = world_of(curve, accept, 3.0);
                world.skill.margins = margins;
                const Best best = best_fixed(world, 3000, no_change);
                RoundPlanner planner = planner_of(world);
                const double plain = world.plain_ms();
                const Run got = run(world, planner, 1500, no_change);
                CAPTURE(name);
                CAPTURE(accept);
                CAPTURE(best.rate * plain);
                CHECK(got.settled.rate() > 0.95 * best.rate);
                if (best.drafted * plain < 0.9) {
                    CHECK(got.worst(256) > 0.97);
                    CHECK(got.worst(512) > 0.97);
                }
            }
        }
    }
}

TEST_CASE("a drafter that never pays, whatever it costs and claims, takes less than 3% of any 256 tokens") {
    for (const double draft_ms : {0.5, 2.0, 5.0, 10.0, 20.0, 40.0}) {
        for (const Margins margins : {Margins::honest, Margins::overconfident, Margins::lying}) {
            for (const Curve curve : {stepped, linear}) {
                for (const bool table : {true, false}) {
                    World world = world_of(curve, 0.05, draft_ms);
                    world.skill.margins = margins;
                    RoundPlanner planner = table ? planner_of(world) : RoundPlanner();
                    const Run got = run(world, planner, 1200, no_change);
                    CAPTURE(draft_ms);
                    CAPTURE(static_cast<int>(margins));
                    CHECK(got.worst(256) > 0.97);
                    CHECK(got.worst(1000) > 0.98);
                    CHECK(planner.status().trials > 0);
                    CHECK_FALSE(planner.declined().empty());
                }
            }
        }
    }
}

TEST_CASE("margins that lie are seen through") {
    for (const double accept : {0.0, 0.2, 0.7, 0.95}) {
        World world = world_of(stepped, accept, 2.0);
        world.skill.margins = Margins::lying;
        const Best best = best_fixed(world, 3000, no_change);
        RoundPlanner planner = planner_of(world);
        const Run got = run(world, planner, 1500, no_change);
        CAPTURE(accept);
        CHECK(got.settled.rate() > 0.95 * best.rate);
    }
}

TEST_CASE("good and bad text in turn, 30 rounds each: no worse than the best fixed width over both") {
    for (const Margins margins : {Margins::honest, Margins::overconfident, Margins::lying}) {
        for (const Curve curve : {stepped, linear}) {
            const double draft_ms = margins == Margins::lying ? 2.0 : 4.0;
            World world = world_of(curve, 0.85, draft_ms);
            world.skill.margins = margins;
            const Change change = [](World & w, std::int32_t round) {
                w.skill.accept = round / 30 % 2 == 0 ? 0.85 : 0.1;
            };
            const Best best = best_fixed(world, 3000, change);
            RoundPlanner planner = planner_of(world);
            const Run got = run(world, planner, 3000, change);
            CAPTURE(static_cast<int>(margins));
            // Lying margins leave nothing to tell the blocks apart by: the price of telling good text from bad late.
            CHECK(got.settled.rate() > (margins == Margins::lying ? 0.9 : 0.95) * best.rate);
        }
    }
}

TEST_CASE("each phase of a text is played well: regret after 64 rounds of it") {
    World world = world_of(stepped, 0.9, 2.0);
    RoundPlanner planner = planner_of(world);
    for (const double accept : {0.9, 0.05, 0.6, 1.0, 0.0, 0.8}) {
        const Change change = [&](World & w, std::int32_t) { w.skill.accept = accept; };
        const Best best = best_fixed(world, 3000, change);
        const Run got = run(world, planner, 1000, change);
        CAPTURE(accept);
        CHECK(got.settled.rate() > 0.95 * best.rate);
    }
}

TEST_CASE("slow drift is followed") {
    World world = world_of(stepped, 0.5, 3.0);
    const Change change = [](World & w, std::int32_t round) { w.skill.accept = 0.5 + 0.45 * std::sin(round / 100.0); };
    const Best best = best_fixed(world, 3000, change);
    RoundPlanner planner = planner_of(world);
    CHECK(run(world, planner, 3000, change).settled.rate() > 1.1 * best.rate);
}

TEST_CASE("a load that triples and goes, and rounds a hundred times too long, do not mislead it") {
    for (const double accept : {0.05, 0.7}) {
        for (const double outliers : {0.0, 0.03}) {
            World world = world_of(stepped, accept, 3.0);
            world.machine.outliers = outliers;
            const Change change = [](World & w, std::int32_t round) {
                w.machine.load = round / 200 % 2 == 0 ? 1.0 : 3.0;
            };
            const Best best = best_fixed(world, 2400, change);
            RoundPlanner planner = planner_of(world);
            const Run got = run(world, planner, 2400, change);
            CAPTURE(accept);
            CAPTURE(outliers);
            CHECK(got.settled.rate() > 0.95 * best.rate);
            if (outliers == 0.0) {
                CHECK(got.worst(64) > 0.9);
            }
        }
    }
}

TEST_CASE("a table measured on another machine heals") {
    World world = world_of(stepped, 0.7, 3.0);
    CostTable table = world.table(widths);
    for (WidthCost & width : table.widths) {
        width.base_ms = width.rows == 1 ? 10.0 : 6.0 + 8.0 * width.rows;
    }
    table.draft_ms = 9.0;
    RoundPlanner planner;
    planner.costs().set_table(table);
    const Best best = best_fixed(world, 3000, no_change);
    run(world, planner, 2000, no_change);
    CHECK(run(world, planner, 1500, no_change).settled.rate() > 0.95 * best.rate);
}

TEST_CASE("copies that work are taken far, copies that lie cost next to nothing") {
    for (const double right : {0.0, 0.3, 0.9, 1.0}) {
        World world = world_of(stepped, 0.1, 3.0);
        world.copies = {0.2, right, 8, 24};
        RoundPlanner planner = planner_of(world);
        const double plain = world.plain_ms();
        const Run got = run(world, planner, 2000, no_change);
        CAPTURE(right);
        CHECK(got.settled.rate() * plain > (right < 0.5 ? 0.98 : right < 0.95 ? 1.6 : 4.0));
        CHECK(got.worst(256) > 0.96);
    }
}

TEST_CASE("short answers lose little to copies that do not hold, though those of other answers do") {
    constexpr std::int32_t answers = 400;
    constexpr std::int32_t answer_tokens = 20;
    for (const Curve curve : {stepped, linear}) {
        World world = world_of(curve, 0.05, 3.0);
        RoundPlanner planner = planner_of(world);
        const double plain = world.plain_ms();
        Tally good;
        Tally bad;
        for (std::int32_t answer = 0; answer < answers; ++answer) {
            world.copies = {0.3, answer % 2 == 0 ? 0.97 : 0.1, 8, 24};
            world.begin_text();
            Tally one;
            while (one.tokens < answer_tokens) {
                count(one, play(world, planner), world.machine);
            }
            (answer % 2 == 0 ? good : bad).add(one);
        }
        CAPTURE(curve(2));
        CAPTURE(good.rate() * plain);
        CHECK(bad.rate() * plain > 0.96);
        CHECK(good.rate() * plain > (curve == stepped ? 1.2 : 1.0));
    }
}

TEST_CASE("without emitted tokens it learns from verified nodes alone") {
    for (const double accept : {0.0, 0.8}) {
        World world = world_of(stepped, accept, 2.0);
        world.tell_tokens = false;
        const Best best = best_fixed(world, 3000, no_change);
        RoundPlanner planner = planner_of(world);
        const Run got = run(world, planner, 1500, no_change);
        CAPTURE(accept);
        CHECK(got.settled.rate() > 0.95 * best.rate);
    }
}

TEST_CASE("trees bring more than chains where wide batches are cheap") {
    double rates[2] = {0.0, 0.0};
    for (const bool trees : {false, true}) {
        World world = world_of(flat, 0.6, 2.0);
        world.skill.sibling = 0.7;
        world.max_leaves = trees ? 8 : 1;
        RoundPlanner planner = planner_of(world);
        rates[trees ? 1 : 0] = run(world, planner, 1500, no_change).settled.rate();
    }
    CHECK(rates[1] > 1.05 * rates[0]);
}
