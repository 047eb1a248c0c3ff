// Attention timing: both layouts run, and each impossible argument is refused by name.
#include "dflash/attention_timing.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "dflash/error.h"

namespace {

using dflash::AttentionShape;

constexpr AttentionShape small = {.n_head = 4, .n_head_kv = 2, .head_dim = 16, .n_kv = 32, .n_rows = 3, .flash = false};

std::string refused_field(const AttentionShape & shape, std::int32_t n_threads = 1, double budget_ms = 1.0) {
    try {
        static_cast<void>(dflash::time_attention(shape, n_threads, budget_ms));
    } catch (const dflash::Error & error) {
        CHECK(error.code() == dflash::ErrorCode::invalid_argument);
        return error.field();
    }
    return "nothing";
}

}  // namespace

TEST_CASE("both attention layouts are timed") {
    for (const bool flash : {false, true}) {
        AttentionShape shape = small;
        shape.flash = flash;
        CHECK(dflash::time_attention(shape, 1, 1.0) > 0.0);
    }
}

TEST_CASE("a budget already spent by the first run still gives a time") {
    CHECK(dflash::time_attention(small, 1, std::numeric_limits<double>::min()) > 0.0);
}

TEST_CASE("sizes must be positive") {
    const auto broken = [](std::int32_t AttentionShape::* field) {
        AttentionShape shape = small;
        shape.*field = 0;
        return refused_field(shape);
    };
    CHECK(broken(&AttentionShape::n_head) == "n_head");
    CHECK(broken(&AttentionShape::n_head_kv) == "n_head_kv");
    CHECK(broken(&AttentionShape::head_dim) == "head_dim");
    CHECK(broken(&AttentionShape::n_kv) == "n_kv");
    CHECK(broken(&AttentionShape::n_rows) == "n_rows");
}

TEST_CASE("thread count and budget are bounded") {
    CHECK(refused_field(small, 0) == "n_threads");
    CHECK(refused_field(small, 1 << 20) == "n_threads");
    CHECK(refused_field(small, 1, 0.0) == "budget_ms");
    CHECK(refused_field(small, 1, std::numeric_limits<double>::quiet_NaN()) == "budget_ms");
    CHECK(refused_field(small, 1, std::numeric_limits<double>::infinity()) == "budget_ms");
}

TEST_CASE("query heads must be shared out evenly") {
    AttentionShape shape = small;
    shape.n_head = 5;
    CHECK(refused_field(shape) == "n_head");
}

TEST_CASE("shapes beyond the memory limit are refused before anything is allocated") {
    AttentionShape shape = small;
    shape.n_kv = std::numeric_limits<std::int32_t>::max();
    shape.n_rows = std::numeric_limits<std::int32_t>::max();
    CHECK(refused_field(shape) == "n_kv x n_rows");
}
