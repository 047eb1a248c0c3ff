// The timing plan on machines made up of numbers.
#include "dflash/timing_plan.h"

#include <doctest/doctest.h>

#include <functional>
#include <vector>

using namespace dflash;

namespace {

double run(TimingPlan & plan, const std::function<double(std::int32_t)> & cost) {
    double spent = 0.0;
    while (const std::int32_t rows = plan.next()) {
        const double ms = cost(rows);
        plan.record(rows, ms);
        spent += ms;
    }
    return spent;
}

std::vector<std::int32_t> widths(const TimingPlan & plan) {
    std::vector<std::int32_t> out;
    for (const WidthTime & time : plan.times()) {
        out.push_back(time.rows);
    }
    return out;
}

}  // namespace

TEST_CASE("with time enough every width is measured, none wider than allowed") {
    TimingPlan all(1e9, 1000);
    run(all, [](std::int32_t rows) { return 1.0 * rows; });
    CHECK(widths(all) == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32});
    TimingPlan narrow(1e9, 4);
    run(narrow, [](std::int32_t rows) { return 1.0 * rows; });
    CHECK(widths(narrow) == std::vector<std::int32_t>{1, 2, 3, 4});
}

TEST_CASE("the budget is kept where rows cost no more than their share") {
    for (const double budget : {10.0, 30.0, 100.0}) {
        TimingPlan plan(budget, 32);
        CHECK(run(plan, [](std::int32_t rows) { return 1.0 + 0.5 * rows; }) <= budget);
        CHECK(widths(plan).front() == 1);
    }
}

TEST_CASE("a machine too slow for the budget gives one row and no more") {
    TimingPlan plan(10.0, 32);
    CHECK(run(plan, [](std::int32_t rows) { return 500.0 * rows; }) == doctest::Approx(500.0));
    CHECK(widths(plan) == std::vector<std::int32_t>{1});
}

TEST_CASE("the most useful widths come first") {
    TimingPlan plan(11.0, 32);
    run(plan, [](std::int32_t rows) { return 0.5 + 0.5 * rows; });
    CHECK(widths(plan) == std::vector<std::int32_t>{1, 2, 4, 8});
}

TEST_CASE("one hiccup does not count") {
    TimingPlan plan(1e9, 8);
    int n = 0;
    plan.record(1, 1.0);
    run(plan, [&](std::int32_t rows) { return ++n == 2 ? 100.0 : 1.0 * rows; });
    CHECK(plan.times().front().ms == doctest::Approx(1.0));
    TimingPlan warm(1e9, 1);
    warm.record(1, 9.0);
    warm.record(1, 3.0);
    CHECK(warm.times().front().ms == doctest::Approx(3.0));
}
