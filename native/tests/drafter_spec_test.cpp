// DrafterSpec::read: what it takes from a drafter, and one refusal per field.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "dflash/pair_spec.h"
#include "pair_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

DrafterSpec read(const GgufBytes & bytes) {
    const TempDir dir;
    return DrafterSpec::read(GgufFile::open(dir.write("d.gguf", bytes.build())));
}

void check_refused(const GgufBytes & bytes, const std::string & field, const std::string & words) {
    const auto error = error_of([&] { (void)read(bytes); });
    REQUIRE_MESSAGE(error.has_value(), field, ": ", words);
    CHECK(error->code() == ErrorCode::incompatible_drafter);
    CHECK(error->field() == field);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
}

/// The tiny drafter with one number changed.
GgufBytes with(const std::string & key, std::uint32_t value) { return tiny_drafter().drop(key).u32(key, value); }

GgufBytes with_i32(const std::string & key, std::int32_t value) {
    return tiny_drafter().drop(key).raw(key, t_i32, bytes_of(value));
}

GgufBytes with_float(const std::string & key, float value) { return tiny_drafter().drop(key).f32(key, value); }

GgufBytes with_taps(const std::vector<std::int32_t> & taps) {
    return tiny_drafter().drop("dflash.target_layers").i32s("dflash.target_layers", taps);
}

GgufBytes with_d2t(const std::vector<std::int64_t> & ids) {
    std::string data;
    for (const std::int64_t id : ids) {
        data += bytes_of(id);
    }
    return tiny_drafter()
        .tensor("output.weight", {8, static_cast<std::int64_t>(ids.size())})
        .tensor("d2t", {static_cast<std::int64_t>(ids.size())}, GGML_TYPE_I64, data);
}

}  // namespace

TEST_CASE("drafter: reads a plain one") {
    const DrafterSpec spec = read(tiny_drafter());
    CHECK(spec.name == "tiny");
    CHECK(spec.n_layer == 2);
    CHECK(spec.n_embd == 8);
    CHECK(spec.n_ff == 16);
    CHECK(spec.n_head == 2);
    CHECK(spec.n_head_kv == 1);
    CHECK(spec.head_dim == 4);
    CHECK(spec.rms_eps == 1e-5F);
    CHECK(spec.block_size == 4);
    CHECK(spec.mask_token_id == 3);
    CHECK(spec.tap_inputs == std::vector<std::int32_t>{1, 3});
    CHECK(spec.n_embd_tap == 8);
    CHECK(spec.n_vocab == 10);
    CHECK(spec.vocab_hash != 0);
    CHECK_FALSE(spec.has_own_embd);
    CHECK_FALSE(spec.has_own_head);
    CHECK(spec.head_tensor.empty());
    CHECK(spec.sliding_window == 0);
    CHECK(spec.layer_sliding == std::vector<bool>{false, false});
    CHECK_FALSE(spec.causal.has_value());
    CHECK(spec.embedding_scale == 0.0F);
    CHECK_FALSE(spec.ffn_gelu);
    CHECK(spec.rope.n_rot == 4);
    CHECK(spec.rope.freq_base == 5000.0F);
    CHECK(spec.rope.freq_scale == 1.0F);
    CHECK(spec.rope.ext_factor == 0.0F);
    CHECK(spec.rope.attn_factor == 1.0F);
    CHECK(spec.rope.n_ctx_orig == 64);
}

TEST_CASE("drafter: scales, activation and causality") {
    GgufBytes bytes = tiny_drafter();
    bytes.f32("dflash.embedding_scale", 2.5F)
        .f32("dflash.logit_scale", 0.5F)
        .f32("dflash.final_logit_softcapping", 30.0F);
    bytes.f32("dflash.attention.scale", 0.25F).f32("dflash.attention.value_scale", 1.5F);
    bytes.text("dflash.hidden_activation", "gelu_pytorch_tanh").boolean("dflash.attention.causal", true);
    const DrafterSpec spec = read(bytes);
    CHECK(spec.embedding_scale == 2.5F);
    CHECK(spec.logit_scale == 0.5F);
    CHECK(spec.logit_softcap == 30.0F);
    CHECK(spec.attention_scale == 0.25F);
    CHECK(spec.value_scale == 1.5F);
    CHECK(spec.ffn_gelu);
    CHECK(spec.causal == true);
    CHECK(spec.layer_causal(0));
}

TEST_CASE("drafter: without a flag sliding layers are causal and full layers are not") {
    GgufBytes bytes = tiny_drafter();
    bytes.u32("dflash.attention.sliding_window", 16);
    bytes.numbers<std::uint8_t>("dflash.attention.sliding_window_pattern", t_bool, {1, 0});
    const DrafterSpec spec = read(bytes);
    CHECK(spec.sliding_window == 16);
    CHECK(spec.layer_causal(0));
    CHECK_FALSE(spec.layer_causal(1));
    bytes.boolean("dflash.attention.causal", false);
    CHECK_FALSE(read(bytes).layer_causal(0));
}

TEST_CASE("drafter: a window that no layer uses is none") {
    GgufBytes bytes = tiny_drafter();
    bytes.u32("dflash.attention.sliding_window", 16);
    bytes.numbers<std::uint8_t>("dflash.attention.sliding_window_pattern", t_bool, {0, 0});
    CHECK(read(bytes).sliding_window == 0);
}

TEST_CASE("drafter: YaRN and linear rope scaling") {
    GgufBytes linear = tiny_drafter();
    CHECK(read(linear.f32("dflash.rope.scaling.factor", 4.0F)).rope.freq_scale == 0.25F);
    CHECK(read(linear.text("dflash.rope.scaling.type", "none")).rope.freq_scale == 1.0F);
    GgufBytes yarn = tiny_drafter();
    yarn.text("dflash.rope.scaling.type", "yarn").f32("dflash.rope.scaling.factor", 4.0F);
    yarn.u32("dflash.rope.scaling.original_context_length", 32).f32("dflash.rope.scaling.yarn_beta_fast", 16.0F);
    const RopeSpec rope = read(yarn).rope;
    CHECK(rope.ext_factor == 1.0F);
    CHECK(rope.freq_scale == 0.25F);
    CHECK(rope.attn_factor == 1.0F);
    CHECK(rope.beta_fast == 16.0F);
    CHECK(rope.n_ctx_orig == 32);
    yarn.f32("dflash.rope.scaling.yarn_attn_factor", 1.0F);
    CHECK(read(yarn).rope.attn_factor == doctest::Approx(1.0 / (1.0 + 0.1 * std::log(4.0))));
}

TEST_CASE("drafter: rope sections of one axis are plain rope, of several are refused") {
    CHECK(read(tiny_drafter().i32s("dflash.rope.dimension_sections", {2, 0, 0, 0})).rope.n_rot == 4);
    check_refused(tiny_drafter().i32s("dflash.rope.dimension_sections", {1, 1, 0, 0}), "dflash.rope.dimension_sections",
                  "several position axes");
}

TEST_CASE("drafter: own head and embeddings") {
    const DrafterSpec both = read(tiny_drafter().tensor("token_embd.weight", {8, 10}).tensor("output.weight", {8, 10}));
    CHECK(both.has_own_embd);
    CHECK(both.has_own_head);
    CHECK(both.head_tensor == "output.weight");
    CHECK(both.n_vocab_head == 10);
    const DrafterSpec tied = read(tiny_drafter().tensor("token_embd.weight", {8, 10}));
    CHECK(tied.has_own_head);
    CHECK(tied.head_tensor == "token_embd.weight");
    CHECK(tied.n_vocab_head == 10);
}

TEST_CASE("drafter: reduced head") {
    const DrafterSpec spec = read(with_d2t({7, 0, 9}));
    CHECK(spec.has_d2t);
    CHECK(spec.n_vocab_head == 3);
    check_refused(tiny_drafter().tensor("output.weight", {8, 3}), "output.weight", "no 'd2t'");
    check_refused(with_d2t({7, 0, 9}).drop_tensor("output.weight"), "d2t", "no head of its own");
    check_refused(with_d2t({7, 0, 10}), "d2t", "token 10, outside the vocabulary of 10");
    check_refused(with_d2t({7, -1, 2}), "d2t", "token -1");
    check_refused(with_d2t({0, 0, 0}), "d2t", "absolute token ids");
    check_refused(tiny_drafter().tensor("output.weight", {8, 3}).tensor("d2t", {3}, GGML_TYPE_I32), "d2t",
                  "expected at most 10 values of i64");
    check_refused(with_d2t({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), "d2t", "expected at most 10 values");
    check_refused(with_d2t({1, 2}).drop_tensor("output.weight").tensor("output.weight", {8, 3}), "output.weight",
                  "8 x 3, expected 8 x 2");
    check_refused(with_d2t({1, 2}).drop("tokenizer.ggml.tokens"), "dflash.vocab_size", "does not say how large");
}

TEST_CASE("drafter: without a tokenizer the vocabulary is that of vocab_size or of the embeddings") {
    const GgufBytes bare = tiny_drafter().drop("tokenizer.ggml.tokens");
    CHECK(read(bare).n_vocab == 0);
    CHECK(read(bare).vocab_hash == 0);
    CHECK(read(GgufBytes(bare).u32("dflash.vocab_size", 12)).n_vocab == 12);
    CHECK(read(GgufBytes(bare).tensor("token_embd.weight", {8, 6})).n_vocab == 6);
    check_refused(GgufBytes(bare).tensor("token_embd.weight", {8, 2}), "tokenizer.ggml.mask_token_id",
                  "outside the 2 rows");
}

TEST_CASE("drafter: refuses other architectures in words of their own") {
    const auto named = [](const char * name) {
        return tiny_drafter().drop("general.architecture").text("general.architecture", name);
    };
    check_refused(named("dflash-draft"), "general.architecture", "older 'dflash-draft' dialect");
    check_refused(named("eagle3"), "general.architecture", "EAGLE-3");
    check_refused(named("llama"), "general.architecture", "Was the target given as the drafter?");
}

TEST_CASE("drafter: refuses the families that come later") {
    check_refused(tiny_drafter().u32("dflash.selector_rank", 4), "dflash.selector_rank", "DFlash2");
    check_refused(tiny_drafter().u32("dflash.conv_kernel_size", 2), "dflash.conv_kernel_size", "DFlash2");
    check_refused(tiny_drafter().tensor("blk.0.attn_conv_base", {8, 2, 2}), "blk.0.attn_conv_base", "DFlash2");
    check_refused(tiny_drafter().boolean("dflash.sample_from_anchor", true), "dflash.sample_from_anchor", "DSpark");
    check_refused(tiny_drafter().tensor("markov_w1.weight", {4, 10}), "markov_w1.weight", "DSpark");
    check_refused(tiny_drafter().u32("dflash.hyper_connection.count", 4), "dflash.hyper_connection.count",
                  "DeepSeek DSpark");
}

TEST_CASE("drafter: names its family") {
    const TempDir dir;
    const auto family = [&](const GgufBytes & bytes) {
        return drafter_family(GgufFile::open(dir.write("d.gguf", bytes.build())));
    };
    CHECK(family(tiny_drafter()) == "DFlash");
    CHECK(family(tiny_drafter().u32("dflash.selector_top_k", 4)) == "DFlash2");
    CHECK(family(tiny_drafter().tensor("conf_proj.weight", {12, 1})) == "DSpark");
    CHECK(family(tiny_target()) == "");
}

TEST_CASE("drafter: refuses features that come later") {
    check_refused(tiny_drafter().drop_tensor("blk.1.attn_v.weight"), "blk.1.attn_v.weight", "values from its keys");
    check_refused(tiny_drafter().tensor("blk.0.attn_sinks.weight", {2}), "blk.0.attn_sinks.weight", "attention sinks");
    check_refused(tiny_drafter().tensor("blk.0.post_attention_norm.weight", {8}), "blk.0.post_attention_norm.weight",
                  "after the attention");
    check_refused(tiny_drafter().tensor("blk.0.post_ffw_norm.weight", {8}), "blk.0.post_ffw_norm.weight",
                  "after the feed-forward");
    check_refused(tiny_drafter().tensor("blk.0.layer_output_scale.weight", {1}), "blk.0.layer_output_scale.weight",
                  "output scales");
    check_refused(tiny_drafter().tensor("rope_freqs.weight", {2}), "rope_freqs.weight", "frequency factors");
    check_refused(tiny_drafter().tensor("blk.0.attn_q.bias", {8}), "blk.0.attn_q.bias", "biases");
    check_refused(tiny_drafter().tensor("fc.scale", {1}), "fc.scale", "weight scales");
    check_refused(tiny_drafter().tensor("blk.2.attn_q.weight", {8, 8}), "blk.2.attn_q.weight",
                  "not part of a DFlash drafter");
}

TEST_CASE("drafter: refuses impossible target layers") {
    check_refused(tiny_drafter().drop("dflash.target_layers"), "dflash.target_layers",
                  "does not say which target layers");
    check_refused(with_taps({}), "dflash.target_layers", "has 0 values");
    check_refused(with_taps({1, -2}), "dflash.target_layers", "is -2");
    check_refused(with_taps({0, 1}), "dflash.target_layers", "is 0");
    check_refused(with_taps({3, 3}), "dflash.target_layers", "names a layer twice");
    check_refused(with_taps({1, 1'000'000}), "dflash.target_layers", "is 1000000");
    check_refused(with_taps(std::vector<std::int32_t>(65, 1)), "dflash.target_layers", "has 65 values");
    check_refused(with_taps(std::vector<std::int32_t>(1'000'000, 1)), "dflash.target_layers", "has 1000000 values");
    check_refused(with("dflash.target_layers", 3), "dflash.target_layers", "must be an array");
    check_refused(tiny_drafter().drop("dflash.target_layers").texts("dflash.target_layers", {"1"}),
                  "dflash.target_layers", "array of integers");
    check_refused(with_taps({1, 2, 3}), "fc.weight", "cannot fill evenly");
}

TEST_CASE("drafter: refuses impossible blocks and mask tokens") {
    check_refused(tiny_drafter().drop("dflash.block_size"), "dflash.block_size", "no 'dflash.block_size'");
    for (const std::int32_t size : {0, 1, -1, 129, 1'000'000}) {
        check_refused(with_i32("dflash.block_size", size), "dflash.block_size", "expected 2 to 128");
    }
    check_refused(tiny_drafter().drop("dflash.block_size").text("dflash.block_size", "8"), "dflash.block_size",
                  "expected an integer");
    check_refused(tiny_drafter().drop("tokenizer.ggml.mask_token_id"), "tokenizer.ggml.mask_token_id",
                  "no 'tokenizer.ggml.mask_token_id'");
    check_refused(with("tokenizer.ggml.mask_token_id", 10), "tokenizer.ggml.mask_token_id", "is 10, expected 0 to 9");
    check_refused(with_i32("tokenizer.ggml.mask_token_id", -1), "tokenizer.ggml.mask_token_id", "is -1");
}

TEST_CASE("drafter: refuses impossible sizes") {
    for (const char * key : {"dflash.block_count", "dflash.embedding_length", "dflash.feed_forward_length",
                             "dflash.attention.head_count"}) {
        check_refused(tiny_drafter().drop(key), key, "has no");
        check_refused(with(key, 0), key, "is 0");
        check_refused(with(key, 0xFFFFFFFFU), key, "is 4294967295");
    }
    check_refused(with("dflash.attention.head_count_kv", 0), "dflash.attention.head_count_kv", "is 0");
    check_refused(with("dflash.attention.head_count", 3)
                      .drop("dflash.attention.head_count_kv")
                      .u32("dflash.attention.head_count_kv", 2),
                  "dflash.attention.head_count_kv", "does not divide");
    check_refused(with("dflash.attention.value_length", 8), "dflash.attention.value_length", "only equal lengths");
    check_refused(tiny_drafter().drop("dflash.attention.head_count").i32s("dflash.attention.head_count", {2, 1}),
                  "dflash.attention.head_count", "differs between layers");
    CHECK(read(tiny_drafter().drop("dflash.attention.head_count").i32s("dflash.attention.head_count", {2, 2})).n_head ==
          2);
}

TEST_CASE("drafter: refuses impossible numbers") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    constexpr float inf = std::numeric_limits<float>::infinity();
    check_refused(tiny_drafter().drop("dflash.attention.layer_norm_rms_epsilon"),
                  "dflash.attention.layer_norm_rms_epsilon", "has no");
    for (const char * key :
         {"dflash.attention.layer_norm_rms_epsilon", "dflash.rope.freq_base", "dflash.rope.scaling.factor",
          "dflash.embedding_scale", "dflash.logit_scale", "dflash.final_logit_softcapping", "dflash.attention.scale",
          "dflash.attention.value_scale", "dflash.rope.scaling.attn_factor"}) {
        check_refused(with_float(key, nan), key, "is nan");
        check_refused(with_float(key, inf), key, "is inf");
        check_refused(with(key, 1), key, "expected a float");
    }
    check_refused(with("dflash.rope.dimension_count", 3), "dflash.rope.dimension_count", "odd");
    check_refused(with("dflash.rope.dimension_count", 6), "dflash.rope.dimension_count", "expected 2 to 4");
    check_refused(tiny_drafter().text("dflash.rope.scaling.type", "longrope"), "dflash.rope.scaling.type",
                  "'longrope'");
    check_refused(tiny_drafter().drop("dflash.context_length").text("dflash.rope.scaling.type", "yarn"),
                  "dflash.rope.scaling.original_context_length", "YaRN needs");
    check_refused(tiny_drafter().text("dflash.hidden_activation", "relu"), "dflash.hidden_activation", "'relu'");
    check_refused(tiny_drafter().u32("dflash.attention.causal", 1), "dflash.attention.causal", "expected a bool");
}

TEST_CASE("drafter: refuses a window without a pattern and a pattern without a window") {
    constexpr const char * pattern = "dflash.attention.sliding_window_pattern";
    check_refused(tiny_drafter().u32("dflash.attention.sliding_window", 16), pattern, "which layers use it");
    check_refused(tiny_drafter().u32("dflash.attention.sliding_window", 16).numbers<std::uint8_t>(pattern, t_bool, {1}),
                  pattern, "array of 2");
    check_refused(tiny_drafter().u32("dflash.attention.sliding_window", 16).u32(pattern, 1), pattern, "array of 2");
    check_refused(tiny_drafter().numbers<std::uint8_t>(pattern, t_bool, {1, 0}), "dflash.attention.sliding_window",
                  "no 'dflash.attention.sliding_window'");
    check_refused(with_i32("dflash.attention.sliding_window", -1), "dflash.attention.sliding_window", "is -1");
}

TEST_CASE("drafter: refuses missing tensors, wrong shapes and wrong types") {
    for (const char * name :
         {"fc.weight", "enc.output_norm.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
          "blk.1.attn_k.weight", "blk.0.attn_output.weight", "blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight",
          "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.1.ffn_down.weight"}) {
        check_refused(tiny_drafter().drop_tensor(name), name, "has no tensor");
        check_refused(tiny_drafter().drop_tensor(name).tensor(name, {5, 7, 2}), name,
                      std::string(name) == "fc.weight" ? "cannot fill" : "5 x 7 x 2");
    }
    check_refused(tiny_drafter().drop_tensor("output_norm.weight").tensor("output_norm.weight", {8}, GGML_TYPE_F16),
                  "output_norm.weight", "expected f32");
    check_refused(tiny_drafter().drop_tensor("fc.weight").tensor("fc.weight", {16, 8}, GGML_TYPE_I32), "fc.weight",
                  "holds no weights");
    check_refused(tiny_drafter().tensor("token_embd.weight", {8, 9}), "token_embd.weight", "8 x 9, expected 8 x 10");
    check_refused(tiny_drafter().drop("tokenizer.ggml.tokens").texts("tokenizer.ggml.tokens", {}),
                  "tokenizer.ggml.tokens", "empty");
    check_refused(with("tokenizer.ggml.tokens", 3), "tokenizer.ggml.tokens", "expected an array");
}

TEST_CASE("drafter: takes the planner's priors, and passes over those that it cannot use") {
    constexpr const char * key = "dflash_local.acceptance";
    const std::vector<float> good{1.0F, 1.0F, 0.1F, 1.2F, 0.0F, 0.0F, 1.0F, 0.0F, 0.5F, 0.0F};
    CHECK(read(tiny_drafter()).acceptance.empty());
    CHECK(read(tiny_drafter()).acceptance_problem.empty());
    const DrafterSpec spec = read(tiny_drafter().numbers<float>(key, t_f32, good));
    CHECK(spec.acceptance == good);
    CHECK(spec.acceptance_problem.empty());

    const auto problem = [](const GgufBytes & bytes) {
        const DrafterSpec found = read(bytes);
        CHECK(found.acceptance.empty());
        return found.acceptance_problem;
    };
    const auto spoilt = [&](std::size_t at, float value) {
        std::vector<float> values = good;
        values.at(at) = value;
        return problem(tiny_drafter().numbers<float>(key, t_f32, values));
    };
    CHECK(spoilt(0, 2.0F).find("version 2") != std::string::npos);
    CHECK(spoilt(1, 2.0F).find("10 values for 2") != std::string::npos);
    CHECK(spoilt(3, std::numeric_limits<float>::quiet_NaN()).find("not a number from") != std::string::npos);
    CHECK(spoilt(3, 1e9F).find("not a number from") != std::string::npos);
    const std::vector<double> doubles(good.begin(), good.end());
    CHECK(read(tiny_drafter().numbers<double>(key, t_f64, doubles)).acceptance.size() == good.size());
    CHECK(problem(tiny_drafter().numbers<double>(key, t_f64, {1.0, 1e300})).find("not a number from") !=
          std::string::npos);
    CHECK(problem(tiny_drafter().f32(key, 1.0F)).find("no array") != std::string::npos);
    CHECK(problem(tiny_drafter().numbers<float>(key, t_f32, std::vector<float>(137, 0.0F))).find("at most 136") !=
          std::string::npos);
    CHECK(problem(tiny_drafter().texts(key, {"1"})).find(key) != std::string::npos);
}
