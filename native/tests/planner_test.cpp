// The planner on simulated machines.
#include "dflash/planner.h"

#include <doctest/doctest.h>

using namespace dflash;

namespace {

struct Outcome {
    double ms = 0.0;
    double tokens = 0.0;
    int draft_rounds = 0;
    int plain_rounds = 0;
};

/// Runs rounds until `tokens` are out; every draft round costs draft_ms and emits `per_round` on average.
Outcome simulate(Planner & planner, double tokens, double plain_ms, double draft_ms, double per_round) {
    Outcome out;
    double carry = 0.0;
    while (out.tokens < tokens) {
        if (planner.decide(7) > 0) {
            carry += per_round;
            const int emitted = static_cast<int>(carry);
            carry -= emitted;
            planner.observe_draft(draft_ms, emitted);
            out.ms += draft_ms;
            out.tokens += emitted;
            ++out.draft_rounds;
        } else {
            planner.observe_plain(plain_ms);
            out.ms += plain_ms;
            out.tokens += 1.0;
            ++out.plain_rounds;
        }
    }
    return out;
}

}  // namespace

TEST_CASE("the first rounds are plain") {
    Planner planner;
    for (int i = 0; i < 4; ++i) {
        CHECK(planner.decide(7) == 0);
        planner.observe_plain(10.0);
    }
    CHECK(planner.decide(7) == Planner::fixed_rows);
    CHECK(planner.decide(2) == 2);
    CHECK(planner.decide(0) == 0);
}

TEST_CASE("a drafter that pays is used nearly always") {
    Planner planner;
    const Outcome out = simulate(planner, 2000.0, 10.0, 15.0, 3.0);
    CHECK(out.draft_rounds > 10 * out.plain_rounds);
    CHECK(planner.declined().empty());
    CHECK(planner.draft_gain() == doctest::Approx(2.0).epsilon(0.1));
}

TEST_CASE("a drafter that never pays costs at most a few percent, whatever it costs") {
    for (const double draft_ms : {15.0, 25.0, 60.0, 400.0}) {
        for (const double tokens : {64.0, 256.0, 4000.0}) {
            Planner planner;
            simulate(planner, 64.0, 10.0, draft_ms, 1.3);  // the first answer of a process pays for the first trial
            const Outcome out = simulate(planner, tokens, 10.0, draft_ms, 1.3);
            CHECK(out.ms / out.tokens / 10.0 < 1.05);
            CHECK_FALSE(planner.declined().empty());
        }
    }
}

TEST_CASE("the very first answer is at most five percent slower where a draft round costs two tokens") {
    Planner planner;
    const Outcome out = simulate(planner, 40.0, 10.0, 20.0, 1.0);
    CHECK(out.ms / out.tokens / 10.0 < 1.05);
}

TEST_CASE("drafting stops when it no longer pays and comes back when it does") {
    Planner planner;
    simulate(planner, 500.0, 10.0, 15.0, 3.0);
    CHECK(planner.declined().empty());
    simulate(planner, 500.0, 10.0, 15.0, 1.0);
    CHECK_FALSE(planner.declined().empty());
    CHECK(planner.declined().find("of plain speed") != std::string::npos);
    const Outcome back = simulate(planner, 3000.0, 10.0, 15.0, 3.0);
    CHECK(planner.declined().empty());
    CHECK(back.draft_rounds > back.plain_rounds);
}

TEST_CASE("one slow plain round does not fool the reference") {
    Planner planner;
    simulate(planner, 200.0, 10.0, 25.0, 1.3);
    planner.observe_plain(2000.0);
    CHECK(planner.plain_ms() == doctest::Approx(10.0));
}
