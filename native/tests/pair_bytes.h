// A tiny valid drafter and a tiny valid target header, for tests that break them in one place.
#pragma once

#include <string>
#include <vector>

#include "gguf_bytes.h"

namespace dflash::test {

inline std::vector<std::string> tiny_vocab(int n = 10, const std::string & prefix = "t") {
    std::vector<std::string> words;
    for (int i = 0; i < n; ++i) {
        words.push_back(prefix + std::to_string(i));
    }
    return words;
}

/// 2 layers of width 8, 2 heads of 4 (1 for K/V), feed-forward 16, block 4, taps 1 and 3, 10 tokens.
inline GgufBytes tiny_drafter() {
    GgufBytes b;
    b.text("general.architecture", "dflash").text("general.name", "tiny");
    b.u32("dflash.block_count", 2).u32("dflash.context_length", 64).u32("dflash.embedding_length", 8);
    b.u32("dflash.feed_forward_length", 16).u32("dflash.attention.head_count", 2);
    b.u32("dflash.attention.head_count_kv", 1).u32("dflash.attention.key_length", 4);
    b.u32("dflash.attention.value_length", 4).f32("dflash.attention.layer_norm_rms_epsilon", 1e-5F);
    b.f32("dflash.rope.freq_base", 5000.0F).u32("dflash.block_size", 4).i32s("dflash.target_layers", {1, 3});
    b.u32("tokenizer.ggml.mask_token_id", 3).texts("tokenizer.ggml.tokens", tiny_vocab());
    b.tensor("fc.weight", {16, 8}).tensor("enc.output_norm.weight", {8}).tensor("output_norm.weight", {8});
    for (const std::string layer : {"blk.0.", "blk.1."}) {
        b.tensor(layer + "attn_norm.weight", {8}).tensor(layer + "ffn_norm.weight", {8});
        b.tensor(layer + "attn_q_norm.weight", {4}).tensor(layer + "attn_k_norm.weight", {4});
        b.tensor(layer + "attn_q.weight", {8, 8}).tensor(layer + "attn_k.weight", {8, 4});
        b.tensor(layer + "attn_v.weight", {8, 4}).tensor(layer + "attn_output.weight", {8, 8});
        b.tensor(layer + "ffn_gate.weight", {8, 16}).tensor(layer + "ffn_up.weight", {8, 16});
        b.tensor(layer + "ffn_down.weight", {16, 8});
    }
    return b;
}

/// The header of a 4-layer target that the tiny drafter fits.
inline GgufBytes tiny_target(const std::string & architecture = "llama") {
    GgufBytes b;
    b.text("general.architecture", architecture).text("general.name", "tiny target");
    b.u32(architecture + ".block_count", 4).u32(architecture + ".embedding_length", 8);
    b.u32(architecture + ".context_length", 128).u32(architecture + ".attention.head_count", 4);
    b.u32(architecture + ".attention.head_count_kv", 2).texts("tokenizer.ggml.tokens", tiny_vocab());
    b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.chat_template", "{{ messages }}");
    b.tensor("token_embd.weight", {8, 10});
    return b;
}

}  // namespace dflash::test
