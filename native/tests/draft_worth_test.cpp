// Renewal-reward rates of draft rounds and the choice of a width.
#include "dflash/draft_worth.h"

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace dflash;

namespace {

/// Three expected tokens with two nodes, hardly more with four.
constexpr std::array good{1.0F, 2.0F, 3.0F, 3.1F, 3.2F};
constexpr std::array bad{1.0F, 1.1F, 1.15F, 1.16F, 1.17F};
constexpr std::array options{WidthOption{0, 10.0}, WidthOption{2, 14.0}, WidthOption{4, 20.0}};

}  // namespace

TEST_CASE("the risk of a width splits the outcomes at plain speed") {
    // One, two or three tokens with probabilities 0.5, 0.3, 0.2, at the price of two.
    const std::vector<float> expected{1.0F, 1.5F, 1.7F};
    const WidthRisk risk = width_risk(expected, 2, 2.0);
    CHECK(risk.loss == doctest::Approx(0.5));
    CHECK(risk.gain == doctest::Approx(0.2));
    const WidthRisk narrow = width_risk(expected, 1, 2.0);
    CHECK(narrow.loss == doctest::Approx(0.5));
    CHECK(narrow.gain == doctest::Approx(0.0));
    CHECK(width_risk(expected, 9, 2.0).loss == doctest::Approx(risk.loss));  // no more nodes than there are
}

TEST_CASE("the width with the most tokens less lambda times time is chosen") {
    const WidthChoice choice = best_width(good, {}, options, {0.1, 0.0});
    CHECK(choice.nodes == 2);
    CHECK(choice.emitted == doctest::Approx(3.0));
    CHECK(choice.value == doctest::Approx(3.0 - 1.4));
    CHECK(best_width(bad, {}, options, {0.1, 0.0}).nodes == 0);
    CHECK(best_width(good, {}, options, {0.001, 0.0}).nodes == 4);  // time is worth little: all of it
    CHECK(best_width(good, std::vector<float>{0.0F, 0.0F, 30.0F, 0.0F, 0.0F}, options, {0.1, 0.0}).nodes == 4);
    const std::vector<float> short_tree{1.0F, 1.9F};
    CHECK(best_width(short_tree, {}, options, {0.05, 0.0}).nodes == 1);  // verified at the next wider width's price
    CHECK(best_width(std::vector<float>{1.0F}, {}, options, {0.1, 0.0}).nodes == 0);
}

TEST_CASE("the rate of draft rounds solves its own equation and includes the draft pass") {
    DraftWorth worth;
    CHECK(worth.rate(options, 2.0, {}, 16.0).tokens_per_ms == 0.0);
    worth.add({good.begin(), good.end()});
    const DraftRate rate = worth.rate(options, 2.0, {}, 16.0);
    CHECK(rate.tokens_per_ms == doctest::Approx(3.0 / 16.0));
    CHECK(rate.emitted == doctest::Approx(3.0));
    CHECK(rate.ms == doctest::Approx(16.0));
    const RoundTerms rest{0.0, 1.0};
    CHECK(worth.rate(options, 2.0, rest, 16.0).ms == doctest::Approx(19.0));
}

TEST_CASE("newer rounds weigh more, the more so with a short memory") {
    DraftWorth worth;
    for (int i = 0; i < 20; ++i) {
        worth.add({bad.begin(), bad.end()});
    }
    const double before = worth.rate(options, 2.0, {}, 16.0).tokens_per_ms;
    CHECK(before < 0.1);
    worth.add({good.begin(), good.end()});
    const double steady = worth.rate(options, 2.0, {}, DraftWorth::steady).tokens_per_ms;
    const double recent = worth.rate(options, 2.0, {}, DraftWorth::recent).tokens_per_ms;
    CHECK(steady > before);
    CHECK(recent > steady);
    CHECK(recent > 0.1);
}

TEST_CASE("options are the measured widths that fit, and twice the widest at a wary price") {
    CostModel costs;
    CostTable table;
    table.widths = {{1, 10.0, 0.0}, {2, 12.0, 0.0}, {4, 14.0, 0.0}};
    costs.set_table(table);
    const std::vector<WidthOption> all = width_options(costs, 0, 63);
    REQUIRE(all.size() == 4);
    CHECK(all[2].nodes == 3);
    CHECK(all[3].nodes == 7);
    CHECK(all[3].ms > costs.target_ms(8, 0));
    const std::vector<WidthOption> few = width_options(costs, 0, 2);
    REQUIRE(few.size() == 3);
    CHECK(few[2].nodes == 2);
    CHECK(few[2].ms == doctest::Approx(14.0));
    CHECK(width_options(costs, 0, 1).size() == 2);
}
