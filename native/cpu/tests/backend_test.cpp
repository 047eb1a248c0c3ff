// The device as llama.cpp sees it: what it takes, packed memory from outside, graphs against ggml's CPU backend.
#include "../backend.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "../weight_buffer.h"
#include "ggml-alloc.h"
#include "ggml-cpp.h"

using namespace dflash::cpu;

namespace {

ggml_backend_dev_t device() { return ggml_backend_reg_dev_get(registration(), 0); }

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
    std::vector<float> out(n);
    std::uint64_t state = seed;
    for (float & x : out) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        x = static_cast<float>(static_cast<std::int32_t>(state >> 32U)) * 0x1p-31F;
    }
    return out;
}

std::vector<std::byte> quantized(const ggml_tensor & t, std::uint64_t seed) {
    const std::vector<float> values = noise(static_cast<std::size_t>(ggml_nelements(&t)), seed);
    std::vector<std::byte> out(ggml_nbytes(&t));
    ggml_quantize_chunk(t.type, values.data(), out.data(), 0, ggml_nrows(&t), t.ne[0], nullptr);
    return out;
}

/// A weight on its own, in the memory of a device.
struct Weight {
    ggml_context_ptr ctx;
    ggml_tensor * tensor = nullptr;
    ggml_backend_buffer_ptr buffer;
    std::vector<std::byte> bytes;

    Weight(ggml_backend_dev_t where, ggml_type type, std::int64_t ne0, std::int64_t ne1, std::int64_t ne2 = 1,
           const std::string & name = "some.weight")
        : ctx(ggml_init({ggml_tensor_overhead() * 4, nullptr, true})) {
        tensor = ggml_new_tensor_3d(ctx.get(), type, ne0, ne1, ne2);
        ggml_set_name(tensor, name.c_str());
        buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(where)));
        bytes = quantized(*tensor, 5);
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    }
};

struct Outcome {
    ggml_status status = GGML_STATUS_SUCCESS;
    bool supported = true;
    std::vector<float> values;
};

using Build = std::function<ggml_tensor *(ggml_context * ctx, ggml_tensor * weight)>;
using Fill = std::function<void(ggml_context * ctx)>;

/// Builds a node on a weight, fills the inputs by name and runs it on the weight's device.
Outcome run(ggml_backend_dev_t where, const Weight & weight, const Build & build, const Fill & fill,
            std::int32_t n_threads) {
    const ggml_context_ptr ctx(ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * const node = build(ctx.get(), weight.tensor);
    Outcome out;
    out.supported = ggml_backend_dev_supports_op(where, node);
    if (!out.supported) {
        return out;
    }
    const ggml_backend_ptr backend(ggml_backend_dev_init(where, nullptr));
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(where), "ggml_backend_set_n_threads"));
    set(backend.get(), n_threads);
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(where)));
    fill(ctx.get());
    ggml_cgraph * const graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, node);
    out.status = ggml_backend_graph_compute(backend.get(), graph);
    out.values.resize(static_cast<std::size_t>(ggml_nelements(node)));
    ggml_backend_tensor_get(node, out.values.data(), 0, ggml_nbytes(node));
    return out;
}

ggml_backend_dev_t ggmls() { return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

void set_floats(ggml_context * ctx, const char * name, std::uint64_t seed) {
    ggml_tensor * const t = ggml_get_tensor(ctx, name);
    const std::vector<float> values = noise(static_cast<std::size_t>(ggml_nelements(t)), seed);
    ggml_backend_tensor_set(t, values.data(), 0, ggml_nbytes(t));
}

void set_ids(ggml_context * ctx, const std::vector<std::int32_t> & ids) {
    ggml_backend_tensor_set(ggml_get_tensor(ctx, "ids"), ids.data(), 0, ids.size() * sizeof(std::int32_t));
}

ggml_tensor * named(ggml_tensor * t, const char * name) {
    ggml_set_name(t, name);
    return t;
}

/// Largest difference relative to the root mean square of `want`.
double error_of(const std::vector<float> & got, const std::vector<float> & want) {
    double squares = 0.0;
    double worst = 0.0;
    for (std::size_t i = 0; i < want.size(); ++i) {
        squares += static_cast<double>(want[i]) * want[i];
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
    }
    return worst / std::sqrt(squares / static_cast<double>(want.size()));
}

constexpr double two_quantizations = 0.05;  // activations in 8 bit, on either side

}  // namespace

TEST_CASE("the device says what it is") {
    CHECK(std::string(ggml_backend_dev_name(device())) == "DFlash");
    CHECK(ggml_backend_dev_type(device()) == GGML_BACKEND_DEVICE_TYPE_ACCEL);
    CHECK(ggml_backend_dev_supports_buft(device(), ggml_backend_cpu_buffer_type()));
    CHECK(ggml_backend_buft_is_host(ggml_backend_dev_buffer_type(device())));
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device(), &props);
    CHECK_FALSE(props.caps.buffer_from_host_ptr);
}

TEST_CASE("hidden, it is a CPU like any other") {
    const auto hide =
        reinterpret_cast<bool (*)(bool)>(ggml_backend_reg_get_proc_address(registration(), "dflash_cpu_hide"));
    const bool found = hide != nullptr;
    REQUIRE(found);
    CHECK_FALSE(hide(true));
    CHECK(ggml_backend_dev_type(device()) == GGML_BACKEND_DEVICE_TYPE_CPU);
    CHECK(hide(false));
    CHECK(ggml_backend_dev_type(device()) == GGML_BACKEND_DEVICE_TYPE_ACCEL);
}

TEST_CASE("packed weights give back their bytes, whole, in parts and through views") {
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K, GGML_TYPE_F16}) {
        Weight weight(device(), type, 512, 37, 3);
        CHECK_FALSE(ggml_backend_buffer_is_host(weight.buffer.get()));
        std::vector<std::byte> back(weight.bytes.size());
        ggml_backend_tensor_get(weight.tensor, back.data(), 0, back.size());
        CHECK(back == weight.bytes);

        const std::size_t row = weight.tensor->nb[1];
        const std::vector<std::byte> other = quantized(*weight.tensor, 9);
        const std::size_t offset = 11 * row;
        std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(offset), 60 * row,
                    weight.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
        ggml_backend_tensor_set(weight.tensor, other.data() + offset, offset, 60 * row);
        ggml_backend_tensor_get(weight.tensor, back.data(), 0, back.size());
        CHECK(back == weight.bytes);

        ggml_tensor * const view = ggml_view_2d(weight.ctx.get(), weight.tensor, 512, 5, row, 40 * row);
        ggml_backend_view_init(view);
        std::vector<std::byte> some(5 * row);
        ggml_backend_tensor_get(view, some.data(), 0, some.size());
        CHECK(std::equal(some.begin(), some.end(), weight.bytes.begin() + static_cast<std::ptrdiff_t>(40 * row)));
    }
}

TEST_CASE("a matrix that is no weight is not packed") {
    const Weight cache(device(), GGML_TYPE_F16, 64, 32, 1, "cache_k_l0");
    CHECK(ggml_backend_buffer_is_host(cache.buffer.get()));
    CHECK(std::equal(cache.bytes.begin(), cache.bytes.end(), static_cast<const std::byte *>(cache.tensor->data)));
}

TEST_CASE("products are ggml's within the error of their quantization, the same bits for all rows and threads") {
    const auto build = [](std::int64_t n) {
        return [n](ggml_context * ctx, ggml_tensor * weight) {
            return ggml_mul_mat(ctx, weight, named(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 256, n), "x"));
        };
    };
    const auto fill = [](ggml_context * ctx) { set_floats(ctx, "x", 3); };
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q5_K, GGML_TYPE_BF16}) {
        const Weight ours(device(), type, 256, 75);
        const Weight theirs(ggmls(), type, 256, 75);
        const Outcome want = run(ggmls(), theirs, build(33), fill, 1);
        const Outcome all = run(device(), ours, build(33), fill, 2);
        CHECK(error_of(all.values, want.values) < two_quantizations);
        for (const std::int64_t n : {1, 2, 5, 7, 9, 16, 31, 32}) {
            for (const std::int32_t n_threads : {1, 3}) {
                const Outcome some = run(device(), ours, build(n), fill, n_threads);
                CHECK(std::equal(some.values.begin(), some.values.end(), all.values.begin()));
            }
        }
    }
}

TEST_CASE("experts are picked token by token, with one input for all or one for each") {
    for (const std::int64_t n_inputs : {1, 3}) {
        const Build build = [n_inputs](ggml_context * ctx, ggml_tensor * weight) {
            ggml_tensor * const x = named(ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, n_inputs, 5), "x");
            return ggml_mul_mat_id(ctx, weight, x, named(ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 3, 5), "ids"));
        };
        const auto fill_with = [](std::int32_t last) {
            return [last](ggml_context * ctx) {
                set_floats(ctx, "x", 4);
                set_ids(ctx, {0, 3, 1, 3, 0, 5, 2, 3, 0, 5, 4, 3, 1, 0, last});
            };
        };
        const Weight ours(device(), GGML_TYPE_Q4_0, 64, 33, 6);
        const Weight theirs(ggmls(), GGML_TYPE_Q4_0, 64, 33, 6);
        const Outcome got = run(device(), ours, build, fill_with(5), 2);
        REQUIRE(got.supported);
        CHECK(error_of(got.values, run(ggmls(), theirs, build, fill_with(5), 1).values) < two_quantizations);
        CHECK(run(device(), ours, build, fill_with(6), 2).status == GGML_STATUS_FAILED);
        CHECK(run(device(), ours, build, fill_with(-1), 2).status == GGML_STATUS_FAILED);
    }
}

TEST_CASE("rows looked up in a packed matrix") {
    const Build build = [](ggml_context * ctx, ggml_tensor * weight) {
        return ggml_get_rows(ctx, weight, named(ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3), "ids"));
    };
    const auto fill_with = [](std::int32_t last) {
        return [last](ggml_context * ctx) { set_ids(ctx, {0, 39, last}); };
    };
    const Weight ours(device(), GGML_TYPE_Q8_0, 64, 40);
    const Weight theirs(ggmls(), GGML_TYPE_Q8_0, 64, 40);
    CHECK(run(device(), ours, build, fill_with(17), 2).values == run(ggmls(), theirs, build, fill_with(17), 1).values);
    CHECK(run(device(), ours, build, fill_with(40), 2).status == GGML_STATUS_FAILED);
}

TEST_CASE("two products of one input, and one of what came in its place") {
    // The second input is computed in place of the first: what was prepared for that must not be used again.
    const Build build = [](ggml_context * ctx, ggml_tensor * weight) {
        ggml_tensor * const x = named(ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 4), "x");
        ggml_tensor * const before = ggml_mul_mat(ctx, weight, x);
        ggml_tensor * const doubled = ggml_scale_inplace(ctx, x, 2.0F);
        ggml_tensor * const again = ggml_view_2d(ctx, doubled, 64, 4, doubled->nb[1], 0);
        return ggml_add(ctx, ggml_mul_mat(ctx, weight, again), before);
    };
    const auto fill = [](ggml_context * ctx) { set_floats(ctx, "x", 8); };
    const Weight ours(device(), GGML_TYPE_Q8_0, 64, 32);
    const Weight theirs(ggmls(), GGML_TYPE_Q8_0, 64, 32);
    const Outcome got = run(device(), ours, build, fill, 2);
    REQUIRE(got.supported);
    CHECK(error_of(got.values, run(ggmls(), theirs, build, fill, 1).values) < two_quantizations);
}

TEST_CASE("operations that would read packed bytes as ggml's are refused") {
    const Weight weight(device(), GGML_TYPE_F16, 64, 64);
    const auto fill = [](ggml_context *) {};
    const auto refused = [&](const Build & build) { return !run(device(), weight, build, fill, 1).supported; };
    CHECK(refused([](ggml_context * ctx, ggml_tensor * w) { return ggml_cont(ctx, ggml_transpose(ctx, w)); }));
    CHECK(refused([](ggml_context * ctx, ggml_tensor * w) {
        ggml_tensor * const half = ggml_view_2d(ctx, w, 64, 32, w->nb[1], 32 * w->nb[1]);
        return ggml_mul_mat(ctx, half, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 2));
    }));
    CHECK(refused([](ggml_context * ctx, ggml_tensor * w) { return ggml_cpy(ctx, w, ggml_dup_tensor(ctx, w)); }));
}

TEST_CASE("a caller can stop it between two nodes") {
    const ggml_backend_ptr backend(ggml_backend_dev_init(device(), nullptr));
    const auto set = reinterpret_cast<ggml_backend_set_abort_callback_t>(
        ggml_backend_reg_get_proc_address(registration(), "ggml_backend_set_abort_callback"));
    const bool found = set != nullptr;
    REQUIRE(found);
    const ggml_context_ptr ctx(ggml_init({ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true}));
    ggml_tensor * const once = ggml_scale(ctx.get(), ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, 8), 2.0F);
    ggml_cgraph * const graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, ggml_scale(ctx.get(), once, 2.0F));
    const ggml_backend_buffer_ptr buffer(
        ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_dev_buffer_type(device())));
    int asked = 0;
    const auto second_time = [](void * data) { return ++*static_cast<int *>(data) == 2; };
    set(backend.get(), second_time, &asked);
    CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_ABORTED);
    CHECK(asked == 2);
    set(backend.get(), nullptr, nullptr);
    CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
}

TEST_CASE("types without a packed layout stay with ggml") {
    const Weight weight(device(), GGML_TYPE_F32, 64, 16);
    const Build build = [](ggml_context * ctx, ggml_tensor * w) {
        return ggml_mul_mat(ctx, w, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 2));
    };
    CHECK_FALSE(run(device(), weight, build, [](ggml_context *) {}, 1).supported);
}
