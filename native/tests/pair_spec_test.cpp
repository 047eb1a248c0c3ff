// TargetSpec::read, read_pair and check_pair: every refusal and every field that can differ.
#include "dflash/pair_spec.h"

#include <doctest/doctest.h>

#include "pair_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

TargetSpec read_target(const GgufBytes & bytes) {
    const TempDir dir;
    return TargetSpec::read(GgufFile::open(dir.write("t.gguf", bytes.build())));
}

DrafterSpec read_drafter(const GgufBytes & bytes) {
    const TempDir dir;
    return DrafterSpec::read(GgufFile::open(dir.write("d.gguf", bytes.build())));
}

void check_refused(const GgufBytes & bytes, const std::string & field, const std::string & words) {
    const auto error = error_of([&] { (void)read_target(bytes); });
    REQUIRE_MESSAGE(error.has_value(), field, ": ", words);
    CHECK(error->code() == ErrorCode::model_load);
    CHECK(error->field() == field);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
}

/// The only mismatch of a pair.
PairMismatch mismatch(const GgufBytes & drafter, const GgufBytes & target) {
    const auto found = check_pair(read_drafter(drafter), read_target(target));
    REQUIRE(found.size() == 1);
    CHECK_FALSE(found[0].advice.empty());
    return found[0];
}

GgufBytes changed(GgufBytes bytes, const std::string & key, std::uint32_t value) {
    return bytes.drop(key).u32(key, value);
}

}  // namespace

TEST_CASE("target: reads a plain one") {
    const TargetSpec spec = read_target(tiny_target());
    CHECK(spec.architecture == "llama");
    CHECK(spec.name == "tiny target");
    CHECK(spec.n_layer == 4);
    CHECK(spec.n_embd == 8);
    CHECK(spec.n_head == 4);
    CHECK(spec.n_head_kv == 2);
    CHECK(spec.head_dim == 2);
    CHECK(spec.n_ctx_train == 128);
    CHECK(spec.n_vocab == 10);
    CHECK(spec.vocab_hash == read_drafter(tiny_drafter()).vocab_hash);
    CHECK(spec.chat_template == "{{ messages }}");
}

TEST_CASE("target: per-layer heads, recurrent models and multi-token prediction blocks") {
    GgufBytes bytes = tiny_target().drop("llama.attention.head_count").drop("llama.attention.head_count_kv");
    CHECK(read_target(bytes).n_head == 0);
    CHECK(read_target(bytes).head_dim == 0);
    bytes.i32s("llama.attention.head_count", {0, 4, 2, 4}).i32s("llama.attention.head_count_kv", {0, 2, 2, 1});
    bytes.u32("llama.nextn_predict_layers", 1);
    const TargetSpec spec = read_target(bytes);
    CHECK(spec.n_head == 4);
    CHECK(spec.n_head_kv == 2);
    CHECK(spec.n_layer == 3);
}

TEST_CASE("target: refuses drafters and models that write no text") {
    check_refused(tiny_drafter(), "general.architecture", "it is a drafter, not a target");
    check_refused(tiny_target("bert"), "general.architecture", "no language model");
    check_refused(tiny_target("clip"), "general.architecture", "no language model");
    check_refused(tiny_target().text("general.type", "adapter"), "general.architecture", "general.type 'adapter'");
}

TEST_CASE("target: refuses values on which loading would abort") {
    check_refused(tiny_target().drop("llama.block_count"), "llama.block_count", "has no");
    check_refused(changed(tiny_target(), "llama.block_count", 0), "llama.block_count", "is 0");
    check_refused(changed(tiny_target(), "llama.block_count", 513), "llama.block_count", "is 513");
    check_refused(tiny_target().u32("llama.nextn_predict_layers", 4), "llama.nextn_predict_layers", "is 4");
    check_refused(changed(tiny_target(), "llama.embedding_length", 0), "llama.embedding_length", "is 0");
    check_refused(tiny_target().drop("llama.context_length"), "llama.context_length", "has no");
    check_refused(tiny_target().drop("llama.block_count").text("llama.block_count", "4"), "llama.block_count",
                  "expected an integer");
    check_refused(tiny_target().u32("llama.expert_count", 2000), "llama.expert_count", "is 2000");
    check_refused(tiny_target().u32("llama.expert_count", 4), "llama.expert_used_count", "is 0 of 4");
    check_refused(tiny_target().u32("llama.expert_used_count", 4), "llama.expert_used_count", "is 4 of 0");
    GgufBytes groups = tiny_target().u32("llama.expert_count", 4).u32("llama.expert_used_count", 2);
    check_refused(GgufBytes(groups).u32("llama.expert_group_count", 3), "llama.expert_group_count", "is 3 for 4");
    check_refused(GgufBytes(groups).u32("llama.expert_group_count", 2), "llama.expert_group_used_count", "is 0 of 2");
    CHECK(read_target(groups.u32("llama.expert_group_count", 2).u32("llama.expert_group_used_count", 1)).n_layer == 4);
}

TEST_CASE("target: refuses a missing or empty vocabulary") {
    check_refused(tiny_target().drop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens", "no vocabulary");
    check_refused(tiny_target().drop("tokenizer.ggml.tokens").texts("tokenizer.ggml.tokens", {}),
                  "tokenizer.ggml.tokens", "has 0 tokens");
}

TEST_CASE("target: refuses a vocabulary on which loading would abort") {
    const auto words = [](const std::vector<std::string> & vocab) {
        return tiny_target().drop("tokenizer.ggml.tokens").texts("tokenizer.ggml.tokens", vocab);
    };
    check_refused(words({"a", "b", "a"}), "tokenizer.ggml.tokens", "twice");
    check_refused(words({std::string("a\0x", 3), "b", std::string("a\0y", 3)}), "tokenizer.ggml.tokens", "twice");
    check_refused(words({"", "[EMPTY_0]"}), "tokenizer.ggml.tokens", "twice");
    CHECK(read_target(words({"", "", std::string("\0", 1), "a"})).n_vocab == 4);
    check_refused(tiny_target().drop("tokenizer.ggml.model"), "tokenizer.ggml.model", "names no tokenizer");
    check_refused(tiny_target().drop("tokenizer.ggml.model").text("tokenizer.ggml.model", "no_vocab"),
                  "tokenizer.ggml.model", "names no tokenizer");
}

TEST_CASE("pair: files that fit") {
    const TempDir dir;
    const GgufFile drafter = GgufFile::open(dir.write("d.gguf", tiny_drafter().build()));
    const GgufFile target = GgufFile::open(dir.write("t.gguf", tiny_target().build()));
    const auto [drafter_spec, target_spec] = read_pair(drafter, target);
    CHECK(check_pair(drafter_spec, target_spec).empty());
}

TEST_CASE("pair: swapped files and one file given twice have their own words") {
    const TempDir dir;
    const GgufFile drafter = GgufFile::open(dir.write("d.gguf", tiny_drafter().build()));
    const GgufFile target = GgufFile::open(dir.write("t.gguf", tiny_target().build()));
    const auto check = [](const GgufFile & d, const GgufFile & t, const std::string & words) {
        const auto error = error_of([&] { (void)read_pair(d, t); });
        REQUIRE(error.has_value());
        CHECK(error->code() == ErrorCode::incompatible_drafter);
        CHECK(error->field() == "general.architecture");
        CHECK_MESSAGE(std::string(error->what()).find(words) != std::string::npos, error->what());
    };
    check(target, drafter, "target and drafter are swapped");
    check(drafter, drafter, "given both as target and as drafter; it is a drafter");
    check(target, target, "given both as target and as drafter; it is a target");
    const GgufFile other = GgufFile::open(dir.write("t2.gguf", tiny_target("qwen3").build()));
    check(other, target, "Was the target given as the drafter?");
    const GgufFile second = GgufFile::open(dir.write("d2.gguf", tiny_drafter().build()));
    CHECK(error_of([&] { (void)read_pair(drafter, second); }).value().code() == ErrorCode::model_load);
}

TEST_CASE("pair: target_layers beyond the target") {
    const PairMismatch found = mismatch(tiny_drafter(), changed(tiny_target(), "llama.block_count", 3));
    CHECK(found.field == "target_layers");
    CHECK(found.drafter_value == "1, 3");
    CHECK(found.target_value == "3 layers (1 to 2 can be read)");
    CHECK(found.advice.find("deeper target") != std::string::npos);
}

TEST_CASE("pair: the last layer's output can be read from some architectures") {
    for (const char * architecture : {"mimo2", "nemotron_h", "nemotron_h_moe"}) {
        const GgufBytes target = changed(tiny_target(architecture), std::string(architecture) + ".block_count", 3);
        CHECK(check_pair(read_drafter(tiny_drafter()), read_target(target)).empty());
    }
}

TEST_CASE("pair: architectures without tap points") {
    for (const char * architecture : {"deepseek4", "qwen4exp"}) {
        CHECK(mismatch(tiny_drafter(), tiny_target(architecture)).field == "architecture");
    }
}

TEST_CASE("pair: widths") {
    const GgufBytes wide = changed(tiny_target(), "llama.embedding_length", 16)
                               .drop_tensor("token_embd.weight")
                               .tensor("token_embd.weight", {16, 10});
    const auto found = check_pair(read_drafter(tiny_drafter()), read_target(wide));
    REQUIRE(found.size() == 2);
    CHECK(found[0].field == "fc.weight");
    CHECK(found[0].drafter_value == "8 values per tapped layer");
    CHECK(found[0].target_value == "16");
    CHECK(found[1].field == "embedding_length");
    const GgufBytes independent =
        tiny_drafter().drop_tensor("fc.weight").tensor("fc.weight", {32, 8}).tensor("token_embd.weight", {8, 10});
    CHECK(check_pair(read_drafter(independent), read_target(wide)).empty());
}

TEST_CASE("pair: the tensors that a drafter borrows must be there, as wide and long as the target says") {
    const auto fields = [](const GgufBytes & target) {
        std::vector<std::string> out;
        for (const PairMismatch & found : check_pair(read_drafter(tiny_drafter()), read_target(target))) {
            out.push_back(found.field + ": " + found.target_value);
        }
        return out;
    };
    using Fields = std::vector<std::string>;
    CHECK(fields(tiny_target().drop_tensor("token_embd.weight")) ==
          Fields{"token_embd.weight: none", "output.weight: none"});
    CHECK(fields(tiny_target().tensor("output.weight", {8, 9})) == Fields{"output.weight: 8 x 9"});
    CHECK(fields(tiny_target()
                     .drop_tensor("token_embd.weight")
                     .tensor("token_embd.weight", {4, 10})
                     .tensor("output.weight", {8, 10})) == Fields{"token_embd.weight: 4 x 10"});
    const GgufBytes independent = tiny_drafter().tensor("token_embd.weight", {8, 10});
    CHECK(check_pair(read_drafter(independent), read_target(tiny_target().drop_tensor("token_embd.weight"))).empty());
}

TEST_CASE("pair: vocabularies of another size and of other words") {
    const GgufBytes larger = tiny_target()
                                 .drop("tokenizer.ggml.tokens")
                                 .texts("tokenizer.ggml.tokens", tiny_vocab(12))
                                 .drop_tensor("token_embd.weight")
                                 .tensor("token_embd.weight", {8, 12});
    CHECK(mismatch(tiny_drafter(), larger).field == "vocab_size");
    const GgufBytes other =
        tiny_target().drop("tokenizer.ggml.tokens").texts("tokenizer.ggml.tokens", tiny_vocab(10, "u"));
    const PairMismatch found = mismatch(tiny_drafter(), other);
    CHECK(found.field == "tokenizer.ggml.tokens");
    CHECK(found.advice.find("same size but other words") != std::string::npos);
}

TEST_CASE("pair: a drafter without a vocabulary of its own") {
    const GgufBytes bare = tiny_drafter().drop("tokenizer.ggml.tokens");
    CHECK(check_pair(read_drafter(bare), read_target(tiny_target())).empty());
    CHECK(mismatch(changed(bare, "tokenizer.ggml.mask_token_id", 11), tiny_target()).field == "mask_token_id");
    CHECK(mismatch(GgufBytes(bare).tensor("output.weight", {8, 12}), tiny_target()).field == "output.weight");
}
