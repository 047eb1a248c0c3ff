// FLASH_ATTN_EXT nodes against sums in doubles; the same bits whatever the rows, threads and padding.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "graph_case.h"

using namespace dflash::cpu;

namespace {

constexpr float hidden = -std::numeric_limits<float>::infinity();

struct Shape {
    ggml_type type = GGML_TYPE_F16;
    std::int64_t n_rows = 4;
    std::int64_t n_cells = 300;
    std::int64_t head = 64;
    std::int64_t value = 64;
    std::int64_t n_heads = 9;
    std::int64_t n_kv_heads = 3;
    std::int64_t n_streams = 1;
    bool masked = true;
    bool sinks = false;
    float max_bias = 0.0F;
    float softcap = 0.0F;
};

/// As llama.cpp lays caches out: all heads of a cell adjacent.
struct Node {
    GraphCase graph{std::size_t{192} << 20U};
    ggml_tensor * q;
    ggml_tensor * k;
    ggml_tensor * v;
    ggml_tensor * mask = nullptr;
    ggml_tensor * sinks = nullptr;
    ggml_tensor * node;

    explicit Node(const Shape & s) {
        ggml_context * const ctx = graph.ctx();
        q = ggml_permute(ctx, graph.random(GGML_TYPE_F32, s.head, s.n_heads, s.n_rows, s.n_streams), 0, 2, 1, 3);
        k = ggml_permute(ctx, graph.random(s.type, s.head, s.n_kv_heads, s.n_cells, s.n_streams), 0, 2, 1, 3);
        v = ggml_permute(ctx, graph.random(s.type, s.value, s.n_kv_heads, s.n_cells, s.n_streams), 0, 2, 1, 3);
        if (s.masked) {
            mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, s.n_cells, s.n_rows, 1, s.n_streams);
            for (std::int64_t i = 0; i < ggml_nelements(mask); ++i) {
                const std::int64_t cell = i % s.n_cells;
                const std::int64_t row = i / s.n_cells;
                const bool out = cell != 0 && ((cell + row) % 5 == 0 || cell > s.n_cells - 3 * row);
                static_cast<ggml_fp16_t *>(mask->data)[i] =
                    ggml_fp32_to_fp16(out                 ? hidden
                                      : s.max_bias > 0.0F ? -0.01F * static_cast<float>(cell)
                                                          : 0.0F);
            }
        }
        node = ggml_flash_attn_ext(ctx, q, k, v, mask, 1.0F / std::sqrt(static_cast<float>(s.head)), s.max_bias,
                                   s.softcap);
        if (s.sinks) {
            sinks = graph.random(GGML_TYPE_F32, s.n_heads);
            ggml_flash_attn_ext_add_sinks(node, sinks);
        }
    }
};

std::vector<float> row_of(const ggml_tensor & t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    const auto * const from = static_cast<const std::byte *>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] +
                              static_cast<std::size_t>(i2) * t.nb[2] + static_cast<std::size_t>(i3) * t.nb[3];
    std::vector<float> out(static_cast<std::size_t>(t.ne[0]));
    if (t.type == GGML_TYPE_F32) {
        std::memcpy(out.data(), from, out.size() * sizeof(float));
    } else {
        ggml_get_type_traits(t.type)->to_float(from, out.data(), t.ne[0]);
    }
    return out;
}

double slope_of(const Shape & s, std::int64_t head) {
    const double power = std::exp2(std::floor(std::log2(static_cast<double>(s.n_heads))));
    const auto h = static_cast<double>(head);
    return s.max_bias <= 0.0F ? 1.0
           : h < power        ? std::pow(std::exp2(-s.max_bias / power), h + 1.0)
                              : std::pow(std::exp2(-s.max_bias / 2.0 / power), 2.0 * (h - power) + 1.0);
}

std::vector<double> exact(const Shape & s, const Node & n, std::int64_t row, std::int64_t head, std::int64_t stream) {
    const std::vector<float> query = row_of(*n.q, row, head, stream);
    std::vector<double> out(static_cast<std::size_t>(s.value), 0.0);
    double total = s.sinks ? std::exp(static_cast<double>(static_cast<const float *>(n.sinks->data)[head])) : 0.0;
    const std::int64_t kv = head / (s.n_heads / s.n_kv_heads);
    for (std::int64_t cell = 0; cell < s.n_cells; ++cell) {
        const std::vector<float> key = row_of(*n.k, cell, kv, stream);
        double score = 0.0;
        for (std::size_t d = 0; d < key.size(); ++d) {
            score += static_cast<double>(query[d]) * key[d];
        }
        score /= std::sqrt(static_cast<double>(s.head));
        score = s.softcap != 0.0F ? s.softcap * std::tanh(score / s.softcap) : score;
        if (s.masked) {
            score += slope_of(s, head) * ggml_fp16_to_fp32(static_cast<const ggml_fp16_t *>(
                                             n.mask->data)[(stream * s.n_rows + row) * s.n_cells + cell]);
        }
        const double weight = std::exp(score);
        total += weight;
        const std::vector<float> value = row_of(*n.v, cell, kv, stream);
        for (std::size_t d = 0; d < value.size(); ++d) {
            out[d] += weight * value[d];
        }
    }
    for (double & x : out) {
        x /= total;
    }
    return out;
}

constexpr std::array shapes{
    Shape{},
    Shape{.type = GGML_TYPE_F32, .n_rows = 1, .n_cells = 1, .masked = false},
    Shape{.type = GGML_TYPE_BF16, .n_rows = 7, .n_cells = 257, .head = 80, .value = 80, .n_heads = 4, .n_kv_heads = 4},
    Shape{.type = GGML_TYPE_Q8_0, .n_rows = 3, .n_cells = 600, .head = 96, .value = 64, .n_heads = 8, .n_kv_heads = 2},
    Shape{.n_rows = 5, .n_cells = 512, .head = 128, .value = 128, .n_heads = 12, .n_kv_heads = 2, .max_bias = 8.0F},
    Shape{.n_rows = 2,
          .n_cells = 100,
          .head = 256,
          .value = 128,
          .n_heads = 4,
          .n_kv_heads = 1,
          .sinks = true,
          .softcap = 30.0F},
    Shape{.n_rows = 3, .n_cells = 300, .n_streams = 2, .sinks = true},
    Shape{.n_rows = 37, .n_cells = 530, .n_heads = 6, .n_kv_heads = 2, .n_streams = 2},
};

std::vector<float> bits_of_row(const Shape & s, const std::vector<float> & out, std::int64_t row) {
    const auto width = s.value * s.n_heads;
    return {out.begin() + row * width, out.begin() + (row + 1) * width};
}

bool same(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// A copy of the node's inputs cut to rows [first, first + n).
std::vector<float> some_rows(const Node & all, std::int64_t first, std::int64_t n) {
    ggml_context * const ctx = all.graph.ctx();
    ggml_tensor & q = *all.q;
    ggml_tensor * const part = ggml_view_4d(ctx, &q, q.ne[0], n, q.ne[2], q.ne[3], q.nb[1], q.nb[2], q.nb[3],
                                            static_cast<std::size_t>(first) * q.nb[1]);
    ggml_tensor * const mask = ggml_view_4d(ctx, all.mask, all.mask->ne[0], n, 1, 1, all.mask->nb[1], all.mask->nb[2],
                                            all.mask->nb[3], static_cast<std::size_t>(first) * all.mask->nb[1]);
    ggml_tensor * const node = ggml_flash_attn_ext(ctx, part, all.k, all.v, mask, 0.125F, 0.0F, 0.0F);
    return GraphCase::ours(*node, 2);
}

}  // namespace

TEST_CASE("attention nodes are the doubles' within 1e-3") {
    for (const Shape & s : shapes) {
        const Node n(s);
        const std::vector<float> got = GraphCase::ours(*n.node, 2);
        REQUIRE_FALSE(got.empty());
        double worst = 0.0;
        for (std::int64_t i = 0; i < s.n_streams * s.n_rows * s.n_heads; ++i) {
            const std::int64_t head = i % s.n_heads;
            const std::vector<double> want = exact(s, n, i / s.n_heads % s.n_rows, head, i / s.n_heads / s.n_rows);
            for (std::int64_t d = 0; d < s.value; ++d) {
                const double error =
                    std::abs(got[static_cast<std::size_t>(i * s.value + d)] - want[static_cast<std::size_t>(d)]);
                worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
            }
        }
        CAPTURE(s.n_rows);
        CAPTURE(s.n_cells);
        CHECK(worst < 1e-4);
    }
}

TEST_CASE("attention does not depend on the number of threads") {
    for (const Shape & s : shapes) {
        const Node n(s);
        const std::vector<float> one = GraphCase::ours(*n.node, 1);
        CHECK(same(one, GraphCase::ours(*n.node, 2)));
        CHECK(same(one, GraphCase::ours(*n.node, 3)));
    }
}

TEST_CASE("a row of attention is the same bits in batches of 1 to 40 rows") {
    const Shape s{.n_rows = 40, .n_cells = 700};
    const Node all(s);
    const std::vector<float> whole = some_rows(all, 0, 40);
    for (const std::int64_t n : {1, 2, 3, 7, 8, 16, 31, 32, 33}) {
        for (std::int64_t first = 0; first + n <= 40; first += n) {
            const std::vector<float> part = some_rows(all, first, n);
            for (std::int64_t r = 0; r < n; ++r) {
                CAPTURE(n);
                CHECK(same(bits_of_row(s, part, r), bits_of_row(s, whole, first + r)));
            }
        }
    }
}

TEST_CASE("cells that are hidden from all rows change no bit, however many") {
    for (const std::int64_t seen : {40, 256, 300}) {
        std::vector<std::vector<float>> results;
        for (const std::int64_t n_cells : {seen, seen + 7, std::int64_t{512}, std::int64_t{1024}}) {
            GraphCase graph;
            ggml_tensor * const q = graph.random(GGML_TYPE_F32, 64, 3, 9);
            ggml_tensor * const k = graph.random(GGML_TYPE_F16, 64, n_cells, 3);
            ggml_tensor * const v = graph.random(GGML_TYPE_F16, 64, n_cells, 3);
            GraphCase common;
            for (ggml_tensor * const cache : {k, v}) {
                ggml_tensor * const source = common.random(GGML_TYPE_F16, 64, seen, 3);
                for (std::size_t head = 0; head < 3; ++head) {
                    std::memcpy(static_cast<std::byte *>(cache->data) + head * cache->nb[2],
                                static_cast<const std::byte *>(source->data) + head * source->nb[2], source->nb[2]);
                }
            }
            ggml_tensor * const mask = ggml_new_tensor_2d(graph.ctx(), GGML_TYPE_F16, n_cells, 3);
            for (std::int64_t i = 0; i < 3 * n_cells; ++i) {
                static_cast<ggml_fp16_t *>(mask->data)[i] = ggml_fp32_to_fp16(i % n_cells < seen ? 0.0F : hidden);
            }
            results.push_back(GraphCase::ours(*ggml_flash_attn_ext(graph.ctx(), q, k, v, mask, 0.125F, 0.0F, 0.0F), 2));
        }
        for (const std::vector<float> & result : results) {
            CHECK(same(result, results.front()));
        }
    }
}

TEST_CASE("a row that sees nothing is zero, as ggml's") {
    GraphCase graph;
    ggml_tensor * const q = graph.random(GGML_TYPE_F32, 64, 2, 1);
    ggml_tensor * const k = graph.random(GGML_TYPE_F16, 64, 300, 1);
    ggml_tensor * const mask = ggml_new_tensor_2d(graph.ctx(), GGML_TYPE_F16, 300, 2);
    std::fill_n(static_cast<ggml_fp16_t *>(mask->data), 300, ggml_fp32_to_fp16(hidden));
    std::fill_n(static_cast<ggml_fp16_t *>(mask->data) + 300, 300, ggml_fp32_to_fp16(0.0F));
    const std::vector<float> out =
        GraphCase::ours(*ggml_flash_attn_ext(graph.ctx(), q, k, k, mask, 0.125F, 0.0F, 0.0F));
    CHECK(std::all_of(out.begin(), out.begin() + 64, [](float x) { return x == 0.0F; }));
    CHECK(std::all_of(out.begin() + 64, out.end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("a number that is not one does not vanish") {
    const Node n({.n_rows = 2, .n_cells = 300, .masked = false});
    static_cast<float *>(n.q->data)[0] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> out = GraphCase::ours(*n.node);
    CHECK(std::isnan(out[0]));
}

TEST_CASE("scratch of a long context stays small") {
    const Node n({.n_rows = 32, .n_cells = 16384, .head = 128, .value = 128, .n_heads = 4, .n_kv_heads = 1});
    ThreadTeam team(2);
    Scratch scratch;
    run_attention(*n.node, scratch, team);
    const std::size_t partials = std::size_t{64} * 128 * 130;  // chunks, rows, values with their sums
    CHECK(scratch.attention.size() < partials + std::size_t{16} * 128 * 1024);
}
