// The drafter on a tiny random file with embeddings and head of its own: no target needs to be loaded.
#include "dflash/drafter.h"

#include <doctest/doctest.h>
#include <ggml-alloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "dflash/draft_context.h"
#include "dflash/draft_io.h"
#include "dflash/draft_plan.h"
#include "pair_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

constexpr std::int32_t feature_size = 16;
constexpr std::int32_t n_slots = 3;
constexpr std::int32_t top_k = 4;

std::string random_floats(std::mt19937 & generator, std::size_t n, float mean = 0.0F) {
    std::normal_distribution<float> normal(mean, 0.5F);
    std::string out;
    for (std::size_t i = 0; i < n; ++i) {
        out += bytes_of(normal(generator));
    }
    return out;
}

/// tiny_drafter() with random weights, embeddings and head of its own; `sliding`: a window of 6 on the first layer.
GgufBytes random_drafter(bool sliding, unsigned seed = 1) {
    std::mt19937 generator(seed);
    GgufBytes b = tiny_drafter();
    const auto random = [&](const std::string & name, std::vector<std::int64_t> ne, float mean = 0.0F) {
        std::size_t n = 1;
        for (const std::int64_t size : ne) {
            n *= static_cast<std::size_t>(size);
        }
        b.drop_tensor(name).tensor(name, ne, GGML_TYPE_F32, random_floats(generator, n, mean));
    };
    random("fc.weight", {16, 8});
    random("enc.output_norm.weight", {8}, 1.0F);
    random("output_norm.weight", {8}, 1.0F);
    random("token_embd.weight", {8, 10});
    random("output.weight", {8, 10});
    for (const std::string layer : {"blk.0.", "blk.1."}) {
        random(layer + "attn_norm.weight", {8}, 1.0F);
        random(layer + "ffn_norm.weight", {8}, 1.0F);
        random(layer + "attn_q_norm.weight", {4}, 1.0F);
        random(layer + "attn_k_norm.weight", {4}, 1.0F);
        random(layer + "attn_q.weight", {8, 8});
        random(layer + "attn_k.weight", {8, 4});
        random(layer + "attn_v.weight", {8, 4});
        random(layer + "attn_output.weight", {8, 8});
        random(layer + "ffn_gate.weight", {8, 16});
        random(layer + "ffn_up.weight", {8, 16});
        random(layer + "ffn_down.weight", {16, 8});
    }
    if (sliding) {
        b.u32("dflash.attention.sliding_window", 6);
        b.numbers<std::uint8_t>("dflash.attention.sliding_window_pattern", t_bool, {1, 0});
    }
    return b;
}

struct Files {
    explicit Files(const GgufBytes & drafter_bytes)
        : drafter(GgufFile::open(dir.write("d.gguf", drafter_bytes.build()))),
          target(GgufFile::open(dir.write("t.gguf", tiny_target().build()))) {}

    TempDir dir;
    GgufFile drafter;
    GgufFile target;
};

Drafter make(const GgufBytes & bytes, DrafterParams params = {.n_ctx = 0, .n_threads = 2, .top_k = top_k}) {
    const Files files(bytes);
    return {files.drafter, files.target, nullptr, params};
}

std::vector<float> random_taps(std::int32_t n, unsigned seed = 2) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<float> taps(static_cast<std::size_t>(n * feature_size));
    for (float & x : taps) {
        x = normal(generator);
    }
    return taps;
}

std::span<const float> rows(const std::vector<float> & taps, std::int32_t first, std::int32_t n) {
    return std::span(taps).subspan(static_cast<std::size_t>(first * feature_size),
                                   static_cast<std::size_t>(n * feature_size));
}

DraftCandidates draft(Drafter & drafter, DraftContext & ctx, std::int32_t pos0, std::span<const float> taps,
                      llama_token anchor = 5) {
    DraftCandidates out;
    drafter.draft(ctx, pos0, taps, anchor, out);
    CHECK(out.n_slots == n_slots);
    CHECK(out.top_k == top_k);
    return out;
}

void check_close(const DraftCandidates & a, const DraftCandidates & b) {
    CHECK(a.ids == b.ids);
    for (std::size_t i = 0; i < a.log_probs.size(); ++i) {
        CHECK(a.log_probs[i] == doctest::Approx(b.log_probs[i]).epsilon(1e-4));
    }
}

void check_invalid(const std::optional<Error> & error, const std::string & field) {
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::invalid_argument);
    CHECK(error->field() == field);
}

}  // namespace

TEST_CASE("an injection may come in pieces, with the block or before it") {
    for (const bool sliding : {false, true}) {
        Drafter drafter = make(random_drafter(sliding));
        CHECK(drafter.feature_size() == feature_size);
        const std::vector<float> taps = random_taps(21);
        const auto whole = drafter.new_context();
        const DraftCandidates expected = draft(drafter, *whole, 0, taps);
        CHECK(whole->begin() == 0);
        CHECK(whole->end() == 21);

        const auto pieces = drafter.new_context();
        drafter.inject(*pieces, 0, rows(taps, 0, 3));
        drafter.inject(*pieces, 3, rows(taps, 3, 17));
        check_close(draft(drafter, *pieces, 20, rows(taps, 20, 1)), expected);

        const auto before = drafter.new_context();
        drafter.inject(*before, 0, taps);
        check_close(draft(drafter, *before, 0, {}), expected);
        check_close(draft(drafter, *before, 0, {}), expected);
    }
}

TEST_CASE("rows that were rejected leave no trace") {
    Drafter drafter = make(random_drafter(true));
    const std::vector<float> taps = random_taps(12);
    const auto ctx = drafter.new_context();
    drafter.inject(*ctx, 0, rows(taps, 0, 10));
    const DraftCandidates expected = draft(drafter, *ctx, 0, {});
    drafter.inject(*ctx, 10, random_taps(2, 77));
    ctx->rewind(10);
    check_close(draft(drafter, *ctx, 0, {}), expected);
    drafter.inject(*ctx, 6, random_taps(3, 78));
    CHECK(ctx->end() == 9);
    drafter.inject(*ctx, 6, rows(taps, 6, 4));
    check_close(draft(drafter, *ctx, 0, {}), expected);
}

TEST_CASE("a wrapped ring equals a fresh context of its last positions") {
    Drafter drafter = make(random_drafter(false), {.n_ctx = 64, .n_threads = 1, .top_k = top_k});
    const std::vector<float> taps = random_taps(300);
    const auto ring = drafter.new_context();
    CHECK(ring->capacity() == 64);
    for (std::int32_t pos = 0; pos < 300; pos += 60) {
        drafter.inject(*ring, pos, rows(taps, pos, 60));
    }
    CHECK(ring->begin() == 236);
    CHECK(ring->end() == 300);
    const auto fresh = drafter.new_context();
    drafter.inject(*fresh, 236, rows(taps, 236, 64));
    check_close(draft(drafter, *ring, 0, {}), draft(drafter, *fresh, 0, {}));
    const auto at_once = drafter.new_context();
    check_close(draft(drafter, *at_once, 0, taps), draft(drafter, *fresh, 0, {}));
}

TEST_CASE("saved contexts draft alike, in their own drafter only") {
    Drafter drafter = make(random_drafter(true));
    const auto ctx = drafter.new_context();
    const DraftCandidates expected = draft(drafter, *ctx, 0, random_taps(9));
    const auto other = drafter.new_context();
    other->restore(ctx->save());
    check_close(draft(drafter, *other, 0, {}), expected);

    Drafter stranger = make(random_drafter(true, 99));
    const auto foreign = stranger.new_context();
    check_invalid(error_of([&] { foreign->restore(ctx->save()); }), "state");
    check_invalid(error_of([&] { draft(stranger, *ctx, 0, {}); }), "ctx");
}

TEST_CASE("taps that are no numbers fail the round and leave the context as it was") {
    Drafter drafter = make(random_drafter(false));
    const auto ctx = drafter.new_context();
    drafter.inject(*ctx, 0, random_taps(7));
    const DraftCandidates expected = draft(drafter, *ctx, 0, {});
    for (const std::int32_t n : {2, 40}) {
        for (const float bad : {std::nanf(""), -INFINITY}) {
            std::vector<float> taps = random_taps(n);
            taps[static_cast<std::size_t>(n * feature_size - 3)] = bad;
            const auto error = error_of([&] { draft(drafter, *ctx, 7, taps); });
            REQUIRE(error.has_value());
            CHECK(error->code() == ErrorCode::decode_failed);
            CHECK(error->field() == "taps");
            CHECK(error_of([&] { drafter.inject(*ctx, 7, taps); })->code() == ErrorCode::decode_failed);
            CHECK(ctx->begin() == 0);
            CHECK(ctx->end() == 7);
        }
    }
    check_close(draft(drafter, *ctx, 0, {}), expected);
}

TEST_CASE("damaged weights fail the round; the context is emptied and not poisoned") {
    GgufBytes bytes = random_drafter(false);
    std::string head;
    for (std::size_t i = 0; i < 80; ++i) {
        head += bytes_of(i == 42 ? std::nanf("") : 0.5F);
    }
    bytes.drop_tensor("output.weight").tensor("output.weight", {8, 10}, GGML_TYPE_F32, head);
    Drafter drafter = make(bytes);
    const auto ctx = drafter.new_context();
    const auto error = error_of([&] { draft(drafter, *ctx, 3, random_taps(7)); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::decode_failed);
    CHECK(ctx->begin() == ctx->end());
}

TEST_CASE("a reduced head answers in target ids") {
    GgufBytes bytes = random_drafter(false);
    std::mt19937 generator(3);
    bytes.drop_tensor("output.weight").tensor("output.weight", {8, 4}, GGML_TYPE_F32, random_floats(generator, 32));
    std::string map;
    for (const std::int64_t id : {9, 0, 7, 2}) {
        map += bytes_of(id);
    }
    bytes.tensor("d2t", {4}, GGML_TYPE_I64, map);
    Drafter drafter = make(bytes);
    const auto ctx = drafter.new_context();
    DraftCandidates out = draft(drafter, *ctx, 0, random_taps(3));
    double total = 0.0;
    for (std::size_t i = 0; i < 4; ++i) {
        total += std::exp(out.log_probs[i]);
    }
    CHECK(total == doctest::Approx(1.0));
    std::ranges::sort(std::span(out.ids).first(4));
    CHECK(std::vector(out.ids.begin(), out.ids.begin() + 4) == std::vector<std::int32_t>{0, 2, 7, 9});
}

TEST_CASE("ggml's own operations pick the same candidates as the fused one") {
    const Files files(random_drafter(true));
    const DrafterSpec spec = DrafterSpec::read(files.drafter);
    const auto device = std::make_shared<DraftDevice>(nullptr);
    DraftWeights weights(files.drafter, files.target, spec, *device, nullptr);
    weights.load();
    const KvLayout layout = kv_layout(spec, weights, 64);
    RingContext ring(layout, device, std::make_shared<std::atomic<std::size_t>>(0));
    const std::vector<float> taps = random_taps(8);
    std::vector<float> mask_row(8, 0.25F);
    DraftInputs inputs(spec, layout, mask_row);
    ring.interval().evict(0, 8);
    ring.interval().commit(0, 8);
    std::array<DraftCandidates, 2> out;
    for (const bool fused : {false, true}) {
        const DraftGraph graph(spec, weights, ring.kv(), {8, 64, true}, top_k, fused);
        const ggml_gallocr_ptr arena(ggml_gallocr_new(device->buffer_type()));
        REQUIRE(ggml_gallocr_alloc_graph(arena.get(), graph.graph()));
        inputs.set_inject(graph, ring.interval(), 0, taps);
        inputs.set_block(graph, ring.interval(), mask_row);
        REQUIRE(DraftDevice::compute(device->split(graph.graph())) == GGML_STATUS_SUCCESS);
        CHECK(graph.fused_topk() == fused);
        REQUIRE(read_candidates(graph, weights.d2t, out[static_cast<std::size_t>(fused)]));
    }
    check_close(out[0], out[1]);
}

TEST_CASE("arguments are checked") {
    const GgufBytes bytes = random_drafter(false);
    Drafter drafter = make(bytes);
    const auto ctx = drafter.new_context();
    const std::vector<float> taps = random_taps(2);
    check_invalid(error_of([&] { drafter.inject(*ctx, 0, std::span(taps).first(17)); }), "taps");
    check_invalid(error_of([&] { drafter.inject(*ctx, -1, taps); }), "pos0");
    check_invalid(error_of([&] { drafter.inject(*ctx, 2147483643, taps); }), "pos0");
    check_invalid(error_of([&] { draft(drafter, *ctx, 0, taps, -1); }), "anchor");
    check_invalid(error_of([&] { draft(drafter, *ctx, 0, taps, 10); }), "anchor");
    CHECK(ctx->end() == 0);
    check_invalid(error_of([&] { drafter.set_n_threads(0); }), "n_threads");
    check_invalid(error_of([&] { make(bytes, {.n_ctx = -1}); }), "n_ctx");
    check_invalid(error_of([&] { make(bytes, {.n_threads = 0}); }), "n_threads");
    check_invalid(error_of([&] { make(bytes, {.top_k = 0}); }), "top_k");
    check_invalid(error_of([&] { make(bytes, {.top_k = 11}); }), "top_k");
}

TEST_CASE("a drafter that borrows needs its target loaded") {
    GgufBytes bytes = random_drafter(false);
    bytes.drop_tensor("output.weight").drop_tensor("token_embd.weight");
    const TempDir dir;
    const GgufFile drafter = GgufFile::open(dir.write("d.gguf", bytes.build()));
    const GgufFile target = GgufFile::open(dir.write("t.gguf", tiny_target().build()));
    check_invalid(error_of([&] { Drafter(drafter, target, nullptr, {.top_k = 4}); }), "model");
}

TEST_CASE("the estimate is what is allocated") {
    const Files files(random_drafter(true));
    const DrafterParams params{.n_ctx = 500, .n_threads = 1, .top_k = top_k};
    const DraftMemory estimate = Drafter::estimate(files.drafter, files.target, params, 32, false);
    const Drafter drafter(files.drafter, files.target, nullptr, params);
    const auto ctx = drafter.new_context();
    const DraftMemory actual = drafter.memory();
    CHECK(estimate.weights == actual.weights);
    CHECK(estimate.context == actual.context);
    CHECK(estimate.compute == doctest::Approx(static_cast<double>(actual.compute)).epsilon(0.1));
    const std::size_t row = feature_size * sizeof(float);
    CHECK(estimate.taps == (32 + 2 * max_pending_rows) * row);
    // llama.cpp stages layer inputs of a whole batch: a second copy.
    const DraftMemory on_device = Drafter::estimate(files.drafter, files.target, params, 32, true);
    CHECK(on_device.taps == estimate.taps + 32 * row);
    CHECK(on_device.total() == estimate.total() + 32 * row);
}

TEST_CASE("buckets hold what they are asked for and stay few") {
    for (std::int32_t n = 0; n <= 4096; ++n) {
        const std::int32_t bucket = kv_bucket(n, 4096);
        CHECK_GE(bucket, n);
        CHECK_LE(bucket, std::max(n + 63, n * 5 / 4));
    }
    CHECK(kv_bucket(100, 100) == 100);
    CHECK(inject_bucket(0) == 0);
    CHECK(inject_bucket(5) == 8);
    for (std::int32_t n = 1; n < 1000; ++n) {
        CHECK_LE(inject_chunk(n), n);
        CHECK_LE(inject_bucket(inject_chunk(n)), max_inject_rows);
    }
}

TEST_CASE("the context is bounded by windows, default and training length") {
    DrafterSpec spec;
    spec.block_size = 16;
    spec.layer_sliding = {true, true};
    CHECK(context_capacity(spec, 0, 100000) == default_draft_ctx);
    CHECK(context_capacity(spec, 0, 1000) == 1024);
    CHECK(context_capacity(spec, 70, 1000) == 128);
    spec.sliding_window = 512;
    CHECK(context_capacity(spec, 0, 100000) == 576);
    spec.layer_sliding = {true, false};
    CHECK(context_capacity(spec, 0, 100000) == default_draft_ctx);
}
