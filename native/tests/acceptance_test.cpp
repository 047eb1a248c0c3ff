// Calibration of drafted tokens: better than the drafter's own word, censored right, priors checked.
#include "dflash/acceptance.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "dflash/error.h"
#include "planner_sim.h"

using namespace dflash;
using namespace dflash::sim;

namespace {

/// One slot with two candidates, of which the first is claimed with probability `told`.
DraftCandidates claim(double told, std::int32_t n_slots = 1) {
    DraftCandidates out;
    out.n_slots = n_slots;
    out.top_k = 2;
    for (std::int32_t slot = 0; slot < n_slots; ++slot) {
        out.ids.push_back(1);
        out.ids.push_back(2);
        out.log_probs.push_back(static_cast<float>(std::log(told)));
        out.log_probs.push_back(static_cast<float>(std::log((1.0 - told) * 0.7)));
    }
    return out;
}

double first_prob(const DraftAcceptance & acceptance, const DraftCandidates & candidates, std::size_t slot = 0) {
    std::vector<float> probs;
    acceptance.probs(candidates, probs);
    return probs[slot * static_cast<std::size_t>(candidates.top_k)];
}

double loss(double p, bool outcome) { return -std::log(std::clamp(outcome ? p : 1.0 - p, 1e-4, 1.0)); }

}  // namespace

TEST_CASE("without priors the drafter is taken at its tempered word") {
    const DraftAcceptance acceptance;
    for (const double told : {0.1, 0.5, 0.9, 0.99}) {
        const double odds = std::pow(told / (1.0 - told), 0.8);
        CHECK(first_prob(acceptance, claim(told)) == doctest::Approx(odds / (1.0 + odds)).epsilon(0.001));
    }
}

TEST_CASE("probabilities of a slot sum to at most one, and forbidden candidates get none") {
    const DraftAcceptance acceptance;
    World world(3);
    for (int round = 0; round < 50; ++round) {
        DraftCandidates candidates = world.draft();
        candidates.log_probs[0] = -std::numeric_limits<float>::infinity();
        for (std::size_t rank = 0; rank < 8; ++rank) {
            candidates.log_probs[16 + rank] = -std::numeric_limits<float>::infinity();
        }
        std::vector<float> probs;
        acceptance.probs(candidates, probs);
        CHECK(probs[0] == 0.0F);
        CHECK(probs[1] > 0.0F);
        CHECK(probs[16] == 0.0F);
        for (std::size_t slot = 0; slot < 7; ++slot) {
            float sum = 0.0F;
            for (std::size_t rank = 0; rank < 8; ++rank) {
                CHECK(probs[8 * slot + rank] >= 0.0F);
                sum += probs[8 * slot + rank];
            }
            CHECK(sum <= 1.0F);
        }
    }
}

TEST_CASE("an overconfident drafter is seen through: log-loss below that of its own log-probabilities") {
    for (const double power : {0.3, 0.5, 2.0}) {
        DraftAcceptance acceptance;
        Dice dice(11);
        double raw = 0.0;
        double calibrated = 0.0;
        for (int i = 0; i < 3000; ++i) {
            const double told = 0.02 + 0.96 * dice.roll();
            // Overconfident in its best candidate: the truth's odds are those told to a power, less a bias.
            const double odds = std::pow(told / (1.0 - told), power) * 0.4;
            const bool right = dice.roll() < odds / (1.0 + odds);
            const DraftCandidates candidates = claim(told);
            if (i >= 200) {
                raw += loss(told, right);
                calibrated += loss(first_prob(acceptance, candidates), right);
            }
            acceptance.observe(candidates, 0, right ? 1 : 2);
        }
        CHECK(calibrated < 0.95 * raw);
    }
}

TEST_CASE("calibrated means what it says: of tokens called p a share p is accepted") {
    DraftAcceptance acceptance;
    World world(5);
    world.skill.accept = 0.6;
    world.skill.spread = 1.0;
    world.skill.margins = Margins::overconfident;
    double expected = 0.0;
    double accepted = 0.0;
    double siblings_expected = 0.0;
    double siblings_accepted = 0.0;
    for (int round = 0; round < 3000; ++round) {
        const DraftCandidates & candidates = world.draft();
        std::vector<float> probs;
        acceptance.probs(candidates, probs);
        for (std::int32_t slot = 0; slot < World::n_slots; ++slot) {
            const llama_token truth = World::truth(1 + slot);
            const std::size_t first = 8 * static_cast<std::size_t>(slot);
            if (round >= 500) {
                expected += probs[first];
                accepted += candidates.ids[first] == truth ? 1.0 : 0.0;
                for (std::size_t rank = 1; rank < 8; ++rank) {
                    siblings_expected += probs[first + rank];
                    siblings_accepted += candidates.ids[first + rank] == truth ? 1.0 : 0.0;
                }
            }
            acceptance.observe(candidates, slot, truth);
            if (candidates.ids[first] != truth) {
                break;
            }
        }
    }
    CHECK(accepted == doctest::Approx(expected).epsilon(0.03));
    CHECK(siblings_accepted == doctest::Approx(siblings_expected).epsilon(0.1));
}

TEST_CASE("slots differ, but share what they have in common") {
    DraftAcceptance acceptance;
    Dice dice(2);
    const DraftCandidates candidates = claim(0.7, 3);
    for (int i = 0; i < 600; ++i) {
        acceptance.observe(candidates, 0, dice.roll() < 0.9 ? 1 : 2);
        acceptance.observe(candidates, 1, dice.roll() < 0.5 ? 1 : 2);
    }
    CHECK(first_prob(acceptance, candidates, 0) > 0.77);
    CHECK(first_prob(acceptance, candidates, 1) < 0.65);
    CHECK(first_prob(acceptance, candidates, 2) > 0.5);  // never seen
    CHECK(first_prob(acceptance, candidates, 2) < 0.9);
}

TEST_CASE("it follows a drift within some tens of tokens") {
    DraftAcceptance acceptance;
    const DraftCandidates candidates = claim(0.8);
    for (int i = 0; i < 500; ++i) {
        acceptance.observe(candidates, 0, 1);
    }
    CHECK(first_prob(acceptance, candidates) > 0.95);
    for (int i = 0; i < 25; ++i) {
        acceptance.observe(candidates, 0, 2);
    }
    CHECK(first_prob(acceptance, candidates) < 0.35);
}

TEST_CASE("a refusal teaches what was verified, and nothing without the best candidate's verdict") {
    DraftAcceptance acceptance;
    const DraftCandidates candidates = claim(0.6);
    const double before = first_prob(acceptance, candidates);
    const std::vector<llama_token> only_second{2};
    acceptance.observe_rejected(candidates, 0, only_second);
    acceptance.observe_rejected(candidates, 0, {});
    CHECK(first_prob(acceptance, candidates) == before);
    const std::vector<llama_token> first{1};
    acceptance.observe_rejected(candidates, 0, first);
    CHECK(first_prob(acceptance, candidates) < before);
}

TEST_CASE("priors are taken and given in one layout") {
    DraftAcceptance acceptance;
    const std::vector<float> values{1.0F, 2.0F, -0.5F, 1.2F, 0.3F, 0.1F, 0.9F, -0.2F, 0.4F, 0.05F, -0.3F, 0.0F};
    acceptance.set_priors(values);
    const std::vector<float> back = acceptance.priors();
    REQUIRE(back.size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(back[i] == doctest::Approx(values[i]));
    }
    const DraftCandidates candidates = claim(0.5, 2);
    CHECK(first_prob(acceptance, candidates, 0) > first_prob(acceptance, candidates, 1));
    acceptance.set_priors(std::vector<float>{1.0F, 0.0F, 0.0F, 1.6F, 0.0F, 0.0F, 1.6F, 0.0F});
    CHECK(first_prob(acceptance, candidates, 0) == doctest::Approx(0.5));
}

TEST_CASE("priors that cannot be are refused and change nothing") {
    DraftAcceptance acceptance;
    const double before = first_prob(acceptance, claim(0.7));
    const std::vector<float> good{1.0F, 1.0F, 2.0F, 1.0F, 0.0F, 0.0F, 1.0F, 0.0F, 0.5F, 0.0F};
    const auto refused = [&](const std::function<void(std::vector<float> &)> & spoil) {
        std::vector<float> values = good;
        spoil(values);
        try {
            acceptance.set_priors(values);
        } catch (const Error & error) {
            return error.code() == ErrorCode::invalid_argument && error.field() == "dflash_local.acceptance";
        }
        return false;
    };
    CHECK(refused([](auto & v) { v.clear(); }));
    CHECK(refused([](auto & v) { v.pop_back(); }));
    CHECK(refused([](auto & v) { v.push_back(0.0F); }));
    CHECK(refused([](auto & v) { v[0] = 2.0F; }));
    CHECK(refused([](auto & v) { v[1] = 1.5F; }));
    CHECK(refused([](auto & v) { v[1] = -1.0F; }));
    CHECK(refused([](auto & v) { v[1] = 1e9F; }));
    CHECK(refused([](auto & v) { v[3] = std::numeric_limits<float>::quiet_NaN(); }));
    CHECK(refused([](auto & v) { v[9] = std::numeric_limits<float>::infinity(); }));
    CHECK(first_prob(acceptance, claim(0.7)) == before);
}
