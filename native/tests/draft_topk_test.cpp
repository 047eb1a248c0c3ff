// Top-k and logsumexp in one pass against a plain sort and a plain sum.
#include "dflash/draft_topk.h"

#include <doctest/doctest.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "dflash/draft_device.h"

using namespace dflash;

namespace {

struct Result {
    bool usable = false;
    std::vector<std::int32_t> ids;
    std::vector<float> log_probs;
};

/// Runs the custom operation over logits [n_vocab x n_rows], the first row skipped.
Result run(std::vector<float> logits, std::int32_t n_vocab, std::int32_t top_k, std::int32_t n_threads) {
    const auto n_rows = static_cast<std::int32_t>(logits.size()) / n_vocab;
    TopkPlan plan = TopkPlan::make(top_k, n_vocab, 1, n_rows - 1);
    DraftDevice device(nullptr);
    device.set_n_threads(n_threads);
    const ggml_context_ptr ctx(ggml_init({8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * const input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_vocab, n_rows);
    ggml_tensor * const parts = build_topk_parts(ctx.get(), input, plan);
    ggml_cgraph * const graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, parts);
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), device.buffer_type()));
    ggml_backend_tensor_set(input, logits.data(), 0, logits.size() * sizeof(float));
    REQUIRE(DraftDevice::compute(device.split(graph)) == GGML_STATUS_SUCCESS);
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(parts)));
    ggml_backend_tensor_get(parts, values.data(), 0, values.size() * sizeof(float));
    const auto n_out = static_cast<std::size_t>(plan.n_rows * top_k);
    Result result{false, std::vector<std::int32_t>(n_out), std::vector<float>(n_out)};
    result.usable = merge_topk_parts(plan, values, result.ids, result.log_probs);
    return result;
}

std::vector<float> random_logits(std::int32_t n_vocab, std::int32_t n_rows, float scale) {
    std::mt19937 generator(42);
    std::normal_distribution<float> normal(3.0F, scale);
    std::vector<float> logits(static_cast<std::size_t>(n_vocab * n_rows));
    std::ranges::generate(logits, [&] { return normal(generator); });
    return logits;
}

void check_against_sort(const std::vector<float> & logits, std::int32_t n_vocab, std::int32_t top_k) {
    const Result result = run(logits, n_vocab, top_k, 2);
    REQUIRE(result.usable);
    const auto n_rows = static_cast<std::int32_t>(logits.size()) / n_vocab;
    for (std::int32_t row = 1; row < n_rows; ++row) {
        const float * const x = logits.data() + static_cast<std::ptrdiff_t>(row) * n_vocab;
        std::vector<std::int32_t> order(static_cast<std::size_t>(n_vocab));
        std::iota(order.begin(), order.end(), 0);
        std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) { return x[a] > x[b]; });
        double sum = 0.0;
        for (std::int32_t i = 0; i < n_vocab; ++i) {
            sum += std::exp(static_cast<double>(x[i]) - x[order[0]]);
        }
        for (std::int32_t i = 0; i < top_k; ++i) {
            const auto at = static_cast<std::size_t>((row - 1) * top_k + i);
            const std::int32_t id = order[static_cast<std::size_t>(i)];
            CHECK(result.ids[at] == id);
            CHECK(result.log_probs[at] == doctest::Approx(x[id] - x[order[0]] - std::log(sum)).epsilon(1e-6));
        }
    }
}

}  // namespace

TEST_CASE("top-k and log-probabilities equal a plain sort and sum") {
    for (const std::int32_t n_vocab : {10, 4095, 4096, 9001, 49152}) {
        CAPTURE(n_vocab);
        check_against_sort(random_logits(n_vocab, 4, 2.0F), n_vocab, 8);
        check_against_sort(random_logits(n_vocab, 3, 30.0F), n_vocab, 1);
    }
    check_against_sort(random_logits(20000, 3, 1.0F), 20000, 64);
}

TEST_CASE("ties go to the lower id") {
    std::vector<float> logits(3 * 9000, 1.0F);
    check_against_sort(logits, 9000, 8);
    for (std::size_t i = 0; i < logits.size(); i += 700) {
        logits[i] = 2.0F;
    }
    check_against_sort(logits, 9000, 8);
}

TEST_CASE("the result does not depend on the number of threads") {
    const std::vector<float> logits = random_logits(30011, 6, 3.0F);
    const Result one = run(logits, 30011, 8, 1);
    const Result three = run(logits, 30011, 8, 3);
    CHECK(one.ids == three.ids);
    CHECK(one.log_probs == three.log_probs);
}

TEST_CASE("rows that are no numbers are reported") {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::vector<float> logits = random_logits(5000, 3, 1.0F);
        logits[2 * 5000 + 17] = bad;
        CHECK_FALSE(run(logits, 5000, 8, 1).usable);
    }
    CHECK_FALSE(run(std::vector<float>(3 * 5000, std::nanf("")), 5000, 8, 1).usable);
    CHECK_FALSE(run(std::vector<float>(3 * 5000, -std::numeric_limits<float>::infinity()), 5000, 8, 1).usable);
}

TEST_CASE("candidates of one slot are sorted, ties by lower id") {
    std::vector<std::int32_t> ids{5, 9, 2, 7};
    std::vector<float> log_probs{-2.0F, -1.0F, -2.0F, -0.5F};
    sort_candidates(ids, log_probs);
    CHECK(ids == std::vector<std::int32_t>{7, 9, 2, 5});
    CHECK(log_probs == std::vector<float>{-0.5F, -1.0F, -2.0F, -2.0F});
}
