// Calibration of copies and of forced text.
#include "dflash/copy_acceptance.h"

#include <doctest/doctest.h>

#include "planner_sim.h"

using namespace dflash;
using namespace dflash::sim;

TEST_CASE("a copy starts as measured: the longer and the more agreed upon, the likelier") {
    const CopyAcceptance copies;
    CHECK(copies.prob({1, 1, 1}, 1) == doctest::Approx(0.29).epsilon(0.1));
    CHECK(copies.prob({2, 1, 1}, 1) == doctest::Approx(0.5).epsilon(0.1));
    CHECK(copies.prob({8, 1, 1}, 1) == doctest::Approx(0.84).epsilon(0.05));
    CHECK(copies.prob({8, 4, 4}, 1) > 0.9F);
    CHECK(copies.prob({32, 1, 1}, 1) > 0.96F);
    CHECK(copies.prob({8, 4, 1}, 1) < copies.prob({8, 4, 4}, 1) - 0.2F);
    CHECK(copies.prob({4, 1, 1}, 5) > copies.prob({4, 1, 1}, 1));  // its own tokens lengthen the match
    CHECK(copies.prob({0, 0, 0}, 1) > 0.0F);
}

TEST_CASE("copies that lie are found out, and found again when they turn true") {
    CopyAcceptance copies;
    for (int i = 0; i < 15; ++i) {
        copies.observe({16, 2, 2}, 1, false);
    }
    CHECK(copies.prob({16, 2, 2}, 1) < 0.35F);
    for (int i = 0; i < 40; ++i) {
        copies.observe({16, 2, 2}, 1, true);
    }
    CHECK(copies.prob({16, 2, 2}, 1) > 0.8F);
}

TEST_CASE("a copy that has run long is trusted more than one that just began") {
    CopyAcceptance fresh;
    CopyAcceptance running;
    for (int depth = 1; depth <= 20; ++depth) {
        running.observe({8, 1, 1}, depth, true);
        fresh.observe({8, 1, 1}, depth, true);
    }
    fresh.observe({8, 1, 1}, 1, false);
    CHECK(running.prob({8, 1, 1}, 1) > fresh.prob({8, 1, 1}, 1) + 0.02F);
}

TEST_CASE("what is told of a copy is what comes of it") {
    CopyAcceptance copies;
    Dice dice(4);
    double expected = 0.0;
    double came = 0.0;
    for (int i = 0; i < 4000; ++i) {
        const auto length = static_cast<std::int32_t>(2.0 + 10.0 * dice.roll());
        const CopyEvidence evidence{length, 1, 1};
        const bool right = dice.roll() < (length < 6 ? 0.1 : 0.7);
        if (i > 500) {
            expected += copies.prob(evidence, 1);
            came += right ? 1.0 : 0.0;
        }
        copies.observe(evidence, 1, right);
    }
    CHECK(came == doctest::Approx(expected).epsilon(0.05));
    CHECK(copies.prob({4, 1, 1}, 1) < 0.3F);
    CHECK(copies.prob({9, 1, 1}, 1) > 0.5F);
}

TEST_CASE("forced text starts nearly sure and learns") {
    ForcedAcceptance forced;
    CHECK(forced.prob() == doctest::Approx(0.97).epsilon(0.001));
    for (int i = 0; i < 20; ++i) {
        forced.observe(false);
    }
    CHECK(forced.prob() < 0.5F);
}
