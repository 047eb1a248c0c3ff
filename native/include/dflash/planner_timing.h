// What the planner's own decisions take, on candidates made up for it.
#pragma once

#include <cstdint>

namespace dflash {

struct PlanningCase {
    std::int32_t n_slots = 7;
    std::int32_t top_k = 8;
    std::int32_t max_leaves = 1;
    std::int32_t chain = 0;  // copied tokens on offer in every second round
    std::int32_t n_rounds = 1000;
};

/// Medians over the rounds, in microseconds. `plan`: of rounds that drafted.
struct PlanningTimes {
    double choose = 0.0;
    double plan = 0.0;
    double observe = 0.0;
};

/// Plays rounds in which drafting pays. Throws Error(invalid_argument) on a case that is out of range.
[[nodiscard]] PlanningTimes time_planning(const PlanningCase & what);

}  // namespace dflash
