// Costs learned from times: steps, load, outliers, wrong priors.
#include "dflash/cost_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "dflash/error.h"

using namespace dflash;

namespace {

CostTable stepped() {
    CostTable table;
    table.widths = {{1, 10.0, 0.001}, {4, 14.0, 0.002}, {8, 20.0, 0.003}};
    table.draft_ms = 5.0;
    table.draft_slot_ms = 0.4;
    table.draft_slots = 7;
    table.rest_ms = 0.2;
    table.leaf_ms = 0.1;
    return table;
}

CostModel model_of(const CostTable & table) {
    CostModel model;
    model.set_table(table);
    return model;
}

}  // namespace

TEST_CASE("a table is read back as it was set, and predicts base and slope, steps kept") {
    const CostModel model = model_of(stepped());
    CHECK(std::vector<std::int32_t>(model.widths().begin(), model.widths().end()) ==
          std::vector<std::int32_t>{1, 4, 8});
    CHECK(model.target_ms(1, 1000) == doctest::Approx(11.0));
    CHECK(model.target_ms(2, 0) == doctest::Approx(14.0));
    CHECK(model.target_ms(4, 500) == doctest::Approx(15.0));
    CHECK(model.target_ms(5, 0) == doctest::Approx(20.0));
    CHECK(model.target_ms(10, 0) == doctest::Approx(23.0));  // on by 1.5 ms a row
    CHECK(model.draft_ms(7) == doctest::Approx(5.0));
    CHECK(model.draft_ms(3) == doctest::Approx(3.4));
    CHECK(model.rest_ms(3.0, 2) == doctest::Approx(0.8));
    CHECK(model.load() == doctest::Approx(1.0));
    const CostTable back = model.table();
    CHECK(back.widths[1].slope_ms == doctest::Approx(0.002));
    CHECK(back.draft_ms == doctest::Approx(5.0));
    CHECK(back.draft_slots == 7);
}

TEST_CASE("tables that cannot be are refused") {
    const auto refuses = [](const std::function<void(CostTable &)> & spoil) {
        CostTable table = stepped();
        spoil(table);
        CostModel model;
        try {
            model.set_table(table);
        } catch (const Error & error) {
            return error.code() == ErrorCode::invalid_argument;
        }
        return false;
    };
    CHECK(refuses([](CostTable & t) { t.widths[1].rows = 1; }));
    CHECK(refuses([](CostTable & t) { t.widths[0].rows = 0; }));
    CHECK(refuses([](CostTable & t) { t.widths[0].base_ms = 0.0; }));
    CHECK(refuses([](CostTable & t) { t.widths[0].base_ms = std::numeric_limits<double>::infinity(); }));
    CHECK(refuses([](CostTable & t) { t.widths[2].slope_ms = -1.0; }));
    CHECK(refuses([](CostTable & t) { t.draft_ms = std::nan(""); }));
    CHECK(refuses([](CostTable & t) { t.rest_ms = -0.1; }));
    CHECK(refuses([](CostTable & t) { t.draft_slot_ms = 1.0; }));
    CHECK(refuses([](CostTable & t) { t.draft_slots = -1; }));
    CHECK_FALSE(refuses([](CostTable & t) { t.widths.clear(); }));
}

TEST_CASE("a new load shows within five rounds, in every prediction") {
    CostModel model = model_of(stepped());
    for (int i = 0; i < 3; ++i) {
        model.observe_target(1, 0, 30.0);
    }
    CHECK(model.load() == doctest::Approx(3.0));
    CHECK(model.target_ms(8, 0) == doctest::Approx(60.0));
    CHECK(model.draft_ms(7) == doctest::Approx(15.0));
    for (int i = 0; i < 5; ++i) {
        model.observe_target(1, 0, 10.0);
    }
    CHECK(model.load() == doctest::Approx(1.0));
}

TEST_CASE("outliers do not wedge it") {
    CostModel model = model_of(stepped());
    for (int i = 0; i < 40; ++i) {
        model.observe_target(i % 2 == 0 ? 4 : 1, 0,
                             (i % 2 == 0 ? 14.0 : 10.0) * (i % 10 == 3 || i % 10 == 6 ? 100.0 : 1.0));
        model.observe_draft(7, i % 10 == 5 ? 500.0 : 5.0);
        CHECK(model.load() < 1.3);
        CHECK(model.target_ms(4, 0) < 14.0 * 1.5);
        CHECK(model.draft_ms(7) < 5.0 * 1.5);
    }
}

TEST_CASE("times that are no times are passed over") {
    CostModel model = model_of(stepped());
    for (const double ms : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        model.observe_target(1, 0, ms);
        model.observe_target(16, 0, ms);
        model.observe_draft(7, ms);
        model.observe_rest(1, ms);
    }
    model.observe_target(0, 0, 5.0);
    CHECK(model.widths().size() == 3);
    CHECK(model.target_ms(1, 0) == doctest::Approx(10.0));
}

TEST_CASE("without a table one row is learned from few rounds, whatever the first one took") {
    CostModel model;
    CHECK(model.widths().empty());
    CHECK(model.target_ms(1, 0) == 0.0);
    CHECK(model.draft_ms(7) == 0.0);
    model.observe_target(1, 0, 900.0);
    for (int i = 0; i < 6; ++i) {
        model.observe_target(1, 0, 10.0);
    }
    CHECK(model.target_ms(1, 0) == doctest::Approx(10.0));
    CHECK(model.target_ms(4, 0) == doctest::Approx(40.0));  // wary: nothing wider is known
    model.observe_target(6, 0, 15.0);
    CHECK(model.target_ms(6, 0) == doctest::Approx(15.0));
    CHECK(model.target_ms(3, 0) == doctest::Approx(15.0));
    CHECK(model.observations(6) == 1);
    CHECK(model.observations(5) == 0);
}

TEST_CASE("a wrong prior of one width heals, also where one row is rarely seen") {
    for (const int plain_every : {2, 8, 16}) {
        CostModel model = model_of(stepped());
        for (int i = 1; i <= 200; ++i) {
            const bool plain = i % plain_every == 0;
            model.observe_target(plain ? 1 : 8, 0, plain ? 10.0 : 44.0);  // 20 in the table
        }
        CHECK(model.target_ms(8, 0) == doctest::Approx(44.0).epsilon(0.1));
        CHECK(model.target_ms(1, 0) == doctest::Approx(10.0).epsilon(0.1));
        CHECK(model.target_ms(4, 0) == doctest::Approx(14.0).epsilon(0.1));
        CHECK(model.load() == doctest::Approx(1.0).epsilon(0.1));
    }
}

TEST_CASE("widths that drift together with one row are load, those that drift alone are shape") {
    CostModel model = model_of(stepped());
    for (int i = 0; i < 300; ++i) {
        model.observe_target(1, 0, 20.0);
        model.observe_target(8, 0, 60.0);
    }
    CHECK(model.load() == doctest::Approx(2.0).epsilon(0.1));
    const CostTable table = model.table();
    CHECK(table.widths[0].base_ms == doctest::Approx(10.0).epsilon(0.1));
    CHECK(table.widths[2].base_ms == doctest::Approx(30.0).epsilon(0.1));
}

TEST_CASE("draft passes are learned with and without a table") {
    CostModel model;
    for (int i = 0; i < 5; ++i) {
        model.observe_target(1, 0, 10.0);
    }
    model.observe_draft(7, 80.0);  // the first builds its graph
    for (int i = 0; i < 5; ++i) {
        model.observe_draft(7, 4.0);
    }
    CHECK(model.draft_ms(7) == doctest::Approx(4.0).epsilon(0.1));
    CHECK(model.table().draft_ms == doctest::Approx(4.0).epsilon(0.1));
    for (int i = 0; i < 200; ++i) {
        model.observe_draft(7, 4.0);
        model.observe_draft(3, 2.0);
    }
    CHECK(model.draft_ms(7) == doctest::Approx(4.0).epsilon(0.15));
    CHECK(model.draft_ms(3) == doctest::Approx(2.0).epsilon(0.25));
}

TEST_CASE("what is left of a round is learned per token, and per leaf from trees") {
    CostModel model = model_of(stepped());
    for (int i = 0; i < 100; ++i) {
        model.observe_rest(2, 0.8);
        model.observe_rest(2, 0.8 + 3 * 0.5, 3);
    }
    CHECK(model.rest_ms(1.0) == doctest::Approx(0.4).epsilon(0.1));
    CHECK(model.rest_ms(1.0, 1) == doctest::Approx(0.9).epsilon(0.15));
}

TEST_CASE("outliers do not creep into the shapes where one row is rarely seen") {
    CostModel model = model_of(stepped());
    for (int i = 1; i <= 3000; ++i) {
        const bool plain = i % 64 == 0;
        model.observe_target(plain ? 1 : 4, 0, (plain ? 10.0 : 14.0) * (i % 33 == 0 ? 100.0 : 1.0));
    }
    CHECK(model.target_ms(4, 0) == doctest::Approx(14.0).epsilon(0.05));
    CHECK(model.target_ms(1, 0) == doctest::Approx(10.0).epsilon(0.05));
    CHECK(model.target_ms(8, 0) == doctest::Approx(20.0).epsilon(0.05));
}

TEST_CASE("a width that takes many times as long from now on is learned anew") {
    CostModel model = model_of(stepped());
    for (int i = 0; i < 60; ++i) {
        model.observe_target(i % 3 == 0 ? 4 : 1, 0, i % 3 != 0 ? 10.0 : i < 15 ? 14.0 : 140.0);
    }
    CHECK(model.target_ms(4, 0) == doctest::Approx(140.0).epsilon(0.05));
    CHECK(model.target_ms(1, 0) == doctest::Approx(10.0).epsilon(0.05));
}
