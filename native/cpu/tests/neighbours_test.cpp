// Norms, sums, gates, rotations and cache rows as graph nodes, against ggml's CPU backend.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph_case.h"

using namespace dflash::cpu;

namespace {

void check_same(const GraphCase & graph, ggml_tensor * node, double tolerance) {
    const std::vector<float> got = GraphCase::ours(*node, 2);
    REQUIRE_FALSE(got.empty());
    const std::vector<float> want = graph.ggmls(node);
    double worst = 0.0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error =
            std::abs(static_cast<double>(got[i]) - want[i]) / (1.0 + std::abs(static_cast<double>(want[i])));
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    CHECK(worst <= tolerance);
}

struct Turn {
    int n_dims;
    int mode;
    bool factors;
    float freq_scale;
    float attn_factor;
};

}  // namespace

TEST_CASE("norms, sums and products of strided rows are ggml's") {
    for (const std::int64_t n : {1, 15, 64, 577}) {
        GraphCase graph;
        ggml_tensor * const wide = graph.random(GGML_TYPE_F32, n + 3, 5, 2, 3);
        ggml_tensor * const view =
            ggml_view_4d(graph.ctx(), wide, n, 5, 2, 3, wide->nb[1], wide->nb[2], wide->nb[3], 8);
        check_same(graph, ggml_rms_norm(graph.ctx(), view, 1e-5F), 1e-5);
        for (ggml_tensor * const b :
             {graph.random(GGML_TYPE_F32, n), graph.random(GGML_TYPE_F32, n, 5),
              graph.random(GGML_TYPE_F32, n, 1, 2, 3), graph.random(GGML_TYPE_F32, n, 5, 2, 1)}) {
            check_same(graph, ggml_add(graph.ctx(), view, b), 0.0);
            check_same(graph, ggml_mul(graph.ctx(), view, b), 0.0);
        }
    }
}

TEST_CASE("gates, whole and split") {
    GraphCase graph;
    ggml_tensor * const both = graph.random(GGML_TYPE_F32, 2 * 101, 7);
    ggml_tensor * const a = graph.random(GGML_TYPE_F32, 101, 7);
    ggml_tensor * const b = graph.random(GGML_TYPE_F32, 101, 7);
    check_same(graph, ggml_swiglu_split(graph.ctx(), a, b), 1e-5);
    check_same(graph, ggml_swiglu(graph.ctx(), both), 1e-5);
    check_same(graph, ggml_swiglu_swapped(graph.ctx(), both), 1e-5);
    // ggml looks GELU up in a table of halves.
    check_same(graph, ggml_geglu_split(graph.ctx(), a, b), 1e-3);
    check_same(graph, ggml_geglu(graph.ctx(), both), 1e-3);
    check_same(graph, ggml_geglu_swapped(graph.ctx(), both), 1e-3);
}

TEST_CASE("rotations of pairs and halves, of all or some dimensions, with factors") {
    for (const Turn & t :
         {Turn{64, GGML_ROPE_TYPE_NORMAL, false, 1.0F, 1.0F}, Turn{64, GGML_ROPE_TYPE_NEOX, false, 1.0F, 1.0F},
          Turn{32, GGML_ROPE_TYPE_NEOX, true, 0.5F, 1.2F}, Turn{48, GGML_ROPE_TYPE_NORMAL, true, 0.25F, 0.9F}}) {
        GraphCase graph;
        ggml_tensor * const x = graph.random(GGML_TYPE_F32, 64, 9, 5);
        ggml_tensor * const pos = graph.ints<std::int32_t>(GGML_TYPE_I32, {0, 3, 3, 511, 8000});
        ggml_tensor * const factors =
            t.factors ? ggml_scale_bias(graph.ctx(), graph.random(GGML_TYPE_F32, t.n_dims / 2), 1.0F, 2.0F) : nullptr;
        if (factors != nullptr) {
            (void)graph.ggmls(factors);
        }
        check_same(graph,
                   ggml_rope_ext(graph.ctx(), x, pos, factors, t.n_dims, t.mode, 0, 10000.0F, t.freq_scale, 0.0F,
                                 t.attn_factor, 32.0F, 1.0F),
                   1e-5);
    }
}

TEST_CASE("rotations stretched by YaRN") {
    for (const int mode : {GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX}) {
        for (const float ext_factor : {1.0F, 0.4F}) {
            GraphCase graph;
            ggml_tensor * const x = graph.random(GGML_TYPE_F32, 64, 4, 3);
            ggml_tensor * const pos = graph.ints<std::int32_t>(GGML_TYPE_I32, {5, 60, 900});
            check_same(graph,
                       ggml_rope_ext(graph.ctx(), x, pos, nullptr, 64, mode, 4096, 10000.0F, 0.25F, ext_factor, 1.1F,
                                     32.0F, 1.0F),
                       1e-4);
        }
    }
}

TEST_CASE("rotations that are left to ggml") {
    GraphCase graph;
    ggml_tensor * const x = graph.random(GGML_TYPE_F32, 64, 4, 2);
    ggml_tensor * const pos = graph.ints<std::int32_t>(GGML_TYPE_I32, {5, 6});
    CHECK_FALSE(is_neighbour(*ggml_rope_set_offset(ggml_rope(graph.ctx(), x, pos, 32, GGML_ROPE_TYPE_NEOX), 32)));
    CHECK_FALSE(is_neighbour(*ggml_rope(graph.ctx(), graph.random(GGML_TYPE_F16, 64, 4, 2), pos, 64, 0)));
}

TEST_CASE("rows written and read by index") {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0}) {
        for (const std::int64_t width : {1, 64, 77}) {
            if (width % ggml_blck_size(type) != 0) {
                continue;
            }
            GraphCase graph;
            ggml_tensor * const rows = graph.random(GGML_TYPE_F32, width, 3);
            ggml_tensor * const ids = graph.ints<std::int64_t>(GGML_TYPE_I64, {9, 0, 4});
            ggml_tensor * const ids_32 = graph.ints<std::int32_t>(GGML_TYPE_I32, {9, 0, 4});
            check_same(graph, ggml_set_rows(graph.ctx(), graph.random(type, width, 11), rows, ids), 0.0);
            check_same(graph, ggml_set_rows(graph.ctx(), graph.random(type, width, 11), rows, ids_32), 0.0);
        }
    }
    GraphCase graph;
    ggml_tensor * const table = graph.random(GGML_TYPE_F32, 33, 11, 2);
    ggml_tensor * const ids =
        ggml_reshape_2d(graph.ctx(), graph.ints<std::int32_t>(GGML_TYPE_I32, {9, 0, 4, 1, 10, 1}), 3, 2);
    check_same(graph, ggml_get_rows(graph.ctx(), table, ids), 0.0);
}

TEST_CASE("ids beyond the table are an error, not a write elsewhere") {
    GraphCase graph;
    ggml_tensor * const rows = graph.random(GGML_TYPE_F32, 8, 2);
    ggml_tensor * const table = graph.random(GGML_TYPE_F32, 8, 4);
    for (const std::int32_t bad : {-1, 4}) {
        ggml_tensor * const ids = graph.ints<std::int32_t>(GGML_TYPE_I32, {0, bad});
        CHECK_THROWS_AS((void)GraphCase::ours(*ggml_set_rows(graph.ctx(), table, rows, ids)), BadGraph);
        CHECK_THROWS_AS((void)GraphCase::ours(*ggml_get_rows(graph.ctx(), table, ids)), BadGraph);
    }
}

TEST_CASE("scales, activations and soft maxima are ggml's") {
    GraphCase graph;
    ggml_context * const ctx = graph.ctx();
    ggml_tensor * const wide = ggml_scale(ctx, graph.random(GGML_TYPE_F32, 80, 5, 3), 4.0F);
    (void)graph.ggmls(wide);
    ggml_tensor * const x = ggml_view_3d(ctx, wide, 77, 5, 3, wide->nb[1], wide->nb[2], 4);
    ggml_tensor * const flat = ggml_cont(ctx, x);
    check_same(graph, flat, 0.0);
    check_same(graph, ggml_scale_bias(ctx, flat, 0.3F, -2.0F), 1e-6);
    check_same(graph, ggml_silu(ctx, flat), 1e-5);
    check_same(graph, ggml_gelu(ctx, flat), 2e-3);
    check_same(graph, ggml_relu(ctx, flat), 0.0);
    check_same(graph, ggml_tanh(ctx, flat), 1e-6);
    check_same(graph, ggml_sigmoid(ctx, flat), 1e-6);
    check_same(graph, ggml_soft_max(ctx, flat), 1e-6);
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
        check_same(graph, ggml_soft_max_ext(ctx, flat, graph.random(type, 77, 5), 0.25F, 0.0F), 1e-6);
    }
    CHECK_FALSE(is_neighbour(*ggml_soft_max_ext(ctx, flat, graph.random(GGML_TYPE_F32, 77, 5), 1.0F, 8.0F)));
    CHECK_FALSE(is_neighbour(*ggml_exp(ctx, flat)));
}

TEST_CASE("copies between layouts, shapes and precisions") {
    GraphCase graph;
    ggml_context * const ctx = graph.ctx();
    for (const ggml_type from : {GGML_TYPE_F32, GGML_TYPE_F16}) {
        ggml_tensor * const x = graph.random(from, 12, 5, 3);
        check_same(graph, ggml_cont(ctx, ggml_permute(ctx, x, 1, 2, 0, 3)), 0.0);
        check_same(graph, ggml_cont_2d(ctx, ggml_permute(ctx, x, 0, 2, 1, 3), 36, 5), 0.0);
        for (const ggml_type to : {GGML_TYPE_F32, GGML_TYPE_F16}) {
            check_same(graph, ggml_cpy(ctx, ggml_transpose(ctx, x), graph.random(to, 5, 12, 3)), 0.0);
            check_same(graph, ggml_cpy(ctx, x, graph.random(to, 36, 5)), 0.0);
        }
    }
    CHECK_FALSE(is_neighbour(*ggml_cpy(ctx, graph.random(GGML_TYPE_F32, 32), graph.random(GGML_TYPE_Q8_0, 32))));
}

TEST_CASE("one value is added to and multiplied with all of a row") {
    GraphCase graph;
    ggml_tensor * const x = graph.random(GGML_TYPE_F32, 33, 4);
    ggml_tensor * const one = graph.random(GGML_TYPE_F32, 1, 4);
    check_same(graph, ggml_add(graph.ctx(), x, one), 0.0);
    check_same(graph, ggml_mul(graph.ctx(), x, one), 0.0);
}
