// The purse for trials and the guard over what rounds really win.
#include "dflash/round_guard.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace dflash;

namespace {

/// What trials that never pay cost over `tokens`, in tokens.
double spend(TrialPurse & purse, std::int32_t tokens, double cost) {
    double spent = 0.0;
    for (std::int32_t i = 0; i < tokens; ++i) {
        if (purse.due(cost)) {
            spent += cost;
            purse.settle(cost, false);
        }
        purse.pass(1);
    }
    return spent;
}

}  // namespace

TEST_CASE("trials that never pay cost less than 2% of the first hundred tokens and less than 1% after them") {
    for (const double cost : {0.02, 0.1, 0.4, 1.0, 1.7, 2.5, 4.0}) {
        TrialPurse purse;
        CHECK(spend(purse, TrialPurse::first_tokens, cost) <= 2.0);
        CHECK(spend(purse, 10000, cost) < 0.01 * 10000);
        CHECK(spend(purse, 2000, cost) > 0.0);  // dear ones too are made now and then
    }
}

TEST_CASE("an answer stakes a quarter of a token at first, then a share of its tokens and what it won") {
    StakePurse purse;
    CHECK(purse.allows(0.2, 0.0));
    CHECK_FALSE(purse.allows(0.5, 1.0));
    CHECK(purse.allows(0.5, 10.0));  // twenty to one
    purse.pass(100);
    CHECK(purse.allows(1.2, 0.0));
    purse.settle(-1.2);
    CHECK_FALSE(purse.allows(0.3, 0.0));
    purse.settle(100.0);
    CHECK(purse.allows(StakePurse::most, 0.0));
    CHECK_FALSE(purse.allows(StakePurse::most + 0.1, 0.0));
    purse.begin();
    CHECK_FALSE(purse.allows(0.5, 0.0));
}

TEST_CASE("intervals double while trials fail and shrink when one promises, or when the text changes") {
    TrialPurse purse;
    REQUIRE(purse.due(0.1));
    purse.settle(0.1, false);
    CHECK(purse.next_in() == 2 * TrialPurse::first_interval);
    purse.pass(20);
    purse.settle(0.1, false);
    CHECK(purse.next_in() == 4 * TrialPurse::first_interval);
    purse.hurry();
    CHECK(purse.next_in() == TrialPurse::first_interval);
    purse.settle(0.1, true);
    CHECK(purse.next_in() == 1);
}

TEST_CASE("a trial whose draft would have won is refunded once") {
    TrialPurse purse;
    purse.settle(1.0, false);
    CHECK_FALSE(purse.affords(1.5));
    purse.refund();
    CHECK(purse.affords(1.5));
    purse.refund();
    CHECK_FALSE(purse.affords(TrialPurse::start + 0.01));
}

TEST_CASE("the guard strikes what loses, with growing pauses, and forgets once it wins") {
    RoundGuard guard;
    std::int32_t rounds = 0;
    while (!guard.suspended()) {
        guard.settle(1.6, 1.0);
        ++rounds;
    }
    CHECK(rounds <= 4);
    CHECK(guard.strikes() == 1);
    CHECK(guard.distrust() == 1);
    CHECK(guard.struck_speed() == doctest::Approx(1.0 / 1.6));
    CHECK(guard.pause_left() == RoundGuard::first_pause);
    guard.pass(RoundGuard::first_pause);
    CHECK_FALSE(guard.suspended());
    while (!guard.suspended()) {
        guard.settle(1.6, 1.0);
    }
    CHECK(guard.pause_left() == 2 * RoundGuard::first_pause);
    guard.pass(1000);
    for (int i = 0; i < 10; ++i) {
        guard.settle(1.6, 3.0);
    }
    CHECK(guard.distrust() == 0);
}

TEST_CASE("ups and downs that win in the end do not make it strike") {
    RoundGuard guard;
    for (int i = 0; i < 500; ++i) {
        guard.settle(1.6, i % 3 == 0 ? 4.0 : 1.0);
    }
    CHECK(guard.strikes() == 0);
    CHECK(guard.speed() == doctest::Approx(2.0 / 1.6).epsilon(0.05));
}
