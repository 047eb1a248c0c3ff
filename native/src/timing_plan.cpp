// The order of widths to time, and robust times from a handful of runs.
#include "dflash/timing_plan.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace dflash {

namespace {

// One row is what everything is held against; then the widths a planner chooses first; repeats where they cost little.
constexpr std::array<std::int32_t, 29> schedule{1,  1, 2, 4, 8, 16, 2, 3, 4, 6, 8,  12, 5,  7, 24,
                                                32, 2, 3, 4, 6, 5,  7, 8, 3, 6, 12, 16, 24, 32};

double typical(std::vector<double> runs) {
    if (runs.size() < 3) {
        return *std::ranges::min_element(runs);
    }
    const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
    std::ranges::nth_element(runs, middle);
    return *middle;
}

}  // namespace

double TimingPlan::expected_ms(std::int32_t rows) const {
    // The nearest narrower width, scaled as if rows came at full price: rarely too little.
    const auto wider = runs_.upper_bound(rows);
    const auto & [known, runs] = *std::prev(wider);
    return typical(runs) * rows / known;
}

std::int32_t TimingPlan::next() {
    while (place_ < schedule.size()) {
        const std::int32_t rows = schedule[place_++];
        if (runs_.empty() || (rows <= max_rows_ && spent_ms_ + expected_ms(rows) <= budget_ms_)) {
            return rows;
        }
    }
    return 0;
}

void TimingPlan::record(std::int32_t rows, double ms) {
    runs_[rows].push_back(ms);
    spent_ms_ += ms;
}

std::vector<WidthTime> TimingPlan::times() const {
    std::vector<WidthTime> out;
    out.reserve(runs_.size());
    std::ranges::transform(runs_, std::back_inserter(out),
                           [](const auto & entry) { return WidthTime{entry.first, typical(entry.second)}; });
    return out;
}

}  // namespace dflash
