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
    CHECK_THROWS_AS((void)time_planning({.n_slots = 0}), Error);
    CHECK_THROWS_AS((void)time_planning({.max_leaves = 33}), Error);
    CHECK_THROWS_AS((void)time_planning({.n_rounds = 0}), Error);
}
