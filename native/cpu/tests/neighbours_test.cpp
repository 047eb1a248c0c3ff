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

TEST_CASE("rotations that are left to ggml") {
    GraphCase graph;
    ggml_tensor * const x = graph.random(GGML_TYPE_F32, 64, 4, 2);
    ggml_tensor * const pos = graph.ints<std::int32_t>(GGML_TYPE_I32, {5, 6});
    CHECK_FALSE(is_neighbour(
        *ggml_rope_ext(graph.ctx(), x, pos, nullptr, 64, 0, 4096, 10000.0F, 0.5F, 1.0F, 1.0F, 32.0F, 1.0F)));
    CHECK_FALSE(is_neighbour(*ggml_rope_set_offset(ggml_rope(graph.ctx(), x, pos, 32, GGML_ROPE_TYPE_NEOX), 32)));
    CHECK_FALSE(is_neighbour(*ggml_rope(graph.ctx(), graph.random(GGML_TYPE_F16, 64, 4, 2), pos, 64, 0)));
}

TEST_CASE("rows written and read by index") {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16}) {
        for (const std::int64_t width : {1, 64, 77}) {
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
