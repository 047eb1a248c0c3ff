// Multiplication timing: quantized types run in whatever layout the CPU prefers, and bad arguments are refused by name.
#include "dflash/matmul_timing.h"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "dflash/error.h"

namespace {

using dflash::MatmulShape;

constexpr MatmulShape small = {.type = GGML_TYPE_Q4_0, .n_in = 256, .n_out = 64, .n_rows = 3};

std::string refused_field(const MatmulShape & shape, std::int32_t n_threads = 1, double budget_ms = 1.0) {
    try {
        static_cast<void>(dflash::time_matmul(shape, n_threads, budget_ms));
    } catch (const dflash::Error & error) {
        CHECK(error.code() == dflash::ErrorCode::invalid_argument);
        return error.field();
    }
    return "nothing";
}

}  // namespace

TEST_CASE("types with and without kernels of their own layout are timed") {
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K,
                                 GGML_TYPE_F16, GGML_TYPE_F32}) {
        for (const std::int32_t rows : {1, 4}) {
            MatmulShape shape = small;
            shape.type = type;
            shape.n_rows = rows;
            CHECK(dflash::time_matmul(shape, 1, 0.1).ms > 0.0);
        }
    }
}

TEST_CASE("impossible multiplications are refused by name") {
    MatmulShape shape = small;
    shape.n_in = 100;
    CHECK(refused_field(shape) == "n_in");
    shape = small;
    shape.n_out = 0;
    CHECK(refused_field(shape) == "n_out");
    shape = small;
    shape.n_rows = -1;
    CHECK(refused_field(shape) == "n_rows");
    shape = small;
    shape.type = GGML_TYPE_COUNT;
    CHECK(refused_field(shape) == "type");
    shape = small;
    shape.n_out = std::int64_t{1} << 40;
    CHECK(refused_field(shape) == "n_in x n_out");
    CHECK(refused_field(small, 0) == "n_threads");
    CHECK(refused_field(small, 1, 0.0) == "budget_ms");
    CHECK(refused_field(small, 1, std::numeric_limits<double>::quiet_NaN()) == "budget_ms");
}
