// The planner's decisions can be timed, and cases that make no sense are refused.
#include <doctest/doctest.h>

#include "dflash/error.h"
#include "dflash/planner_timing.h"

using namespace dflash;

TEST_CASE("made-up rounds draft chains, trees and copies") {
    for (const std::int32_t leaves : {1, 8}) {
        for (const std::int32_t chain : {0, 40}) {
            const PlanningTimes times = time_planning({.max_leaves = leaves, .chain = chain, .n_rounds = 60});
            CHECK(times.choose > 0.0);
            CHECK(times.plan > 0.0);
            CHECK(times.observe > 0.0);
        }
    }
}

TEST_CASE("a case out of range is refused") {
    for (const PlanningCase & what :
         {PlanningCase{.n_slots = 0}, PlanningCase{.n_slots = 129}, PlanningCase{.top_k = 0}, PlanningCase{.top_k = 65},
          PlanningCase{.max_leaves = 0}, PlanningCase{.max_leaves = 33}, PlanningCase{.chain = -1},
          PlanningCase{.chain = (1 << 20) + 1}, PlanningCase{.n_rounds = 0}, PlanningCase{.n_rounds = (1 << 20) + 1}}) {
        CHECK_THROWS_AS((void)time_planning(what), Error);
    }
}
