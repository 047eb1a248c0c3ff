// What a drafter GGUF and a target GGUF say of themselves, and whether the two fit. Pure: reads headers only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dflash/gguf_reader.h"

namespace dflash {

struct RopeSpec {
    std::int32_t n_rot = 0;
    float freq_base = 10000.0F;
    float freq_scale = 1.0F;  // 1 / linear or YaRN factor
    float ext_factor = 0.0F;  // 1 for YaRN
    float attn_factor = 1.0F;
    float beta_fast = 32.0F;
    float beta_slow = 1.0F;
    std::int32_t n_ctx_orig = 0;
};

/// Hyperparameters of one DFlash v1 drafter (keys of llama.cpp's `dflash` architecture).
struct DrafterSpec {
    std::string name;
    std::int32_t n_layer = 0;
    std::int32_t n_embd = 0;
    std::int32_t n_ff = 0;
    std::int32_t n_head = 0;
    std::int32_t n_head_kv = 0;
    std::int32_t head_dim = 0;
    float rms_eps = 1e-6F;
    RopeSpec rope;
    std::int32_t block_size = 0;  // trained block, anchor included
    std::int32_t mask_token_id = -1;
    std::vector<std::int32_t> tap_inputs;  // `dflash.target_layers`: layer INPUTS, 1..n_layer of the target
    std::int32_t n_embd_tap = 0;           // width of one tap, the target's n_embd: fc.weight takes n_taps of them
    std::int32_t n_vocab = 0;      // of the file's tokenizer, else of its vocab_size or embeddings, 0 if unknown
    std::uint64_t vocab_hash = 0;  // 0 if it carries none
    bool has_own_embd = false;
    bool has_own_head = false;
    std::string head_tensor;        // of the own head: output.weight, or token_embd.weight where tied; else empty
    std::int32_t n_vocab_head = 0;  // rows of the own head; with d2t fewer than n_vocab
    bool has_d2t = false;
    std::int32_t sliding_window = 0;  // 0: none
    std::vector<bool> layer_sliding;  // [n_layer]
    std::optional<bool> causal;       // `dflash.attention.causal`, if written
    float embedding_scale = 0.0F;     // 0: not set, here and below
    float logit_scale = 0.0F;
    float logit_softcap = 0.0F;
    float attention_scale = 0.0F;  // 0: 1/sqrt(head_dim)
    float value_scale = 0.0F;
    bool ffn_gelu = false;           // silu otherwise
    std::vector<float> acceptance;   // `dflash_local.acceptance`, see DraftAcceptance::set_priors; empty: neutral
    std::string acceptance_problem;  // why what the file holds there is not used

    /// Causal inside the block? With no explicit flag sliding layers are and full layers are not (dflash/model.py).
    [[nodiscard]] bool layer_causal(std::int32_t layer) const;

    /// Throws Error(incompatible_drafter) naming the key or tensor: wrong architecture, missing or impossible values,
    /// a family that this version does not run (DFlash2, DSpark, DeepSeek backbones).
    static DrafterSpec read(const GgufFile & file);
};

/// What of a target matters to a drafter.
struct TargetSpec {
    std::string architecture;
    std::string name;
    std::int32_t n_layer = 0;
    std::int32_t n_embd = 0;
    std::int32_t n_head = 0;
    std::int32_t n_head_kv = 0;
    std::int32_t head_dim = 0;
    std::int32_t n_ctx_train = 0;
    std::int32_t n_vocab = 0;
    std::uint64_t vocab_hash = 0;
    std::string chat_template;
    std::array<std::int64_t, 2> embd_shape{};  // of token_embd.weight, zeros where it is missing
    std::array<std::int64_t, 2> head_shape{};  // of output.weight, or of the embeddings that stand for it

    /// Throws Error(model_load, "general.architecture") where the file is a drafter or no language model.
    static TargetSpec read(const GgufFile & file);
};

struct PairMismatch {
    std::string field;
    std::string drafter_value;
    std::string target_value;
    std::string advice;
};

/// "DFlash", "DFlash2", "DSpark" or "DeepSeek DSpark"; empty where the architecture is not `dflash`.
[[nodiscard]] std::string drafter_family(const GgufFile & file);

/// Both specs. Throws as the two `read`s do, in clearer words where the files are swapped or one was given twice.
[[nodiscard]] std::pair<DrafterSpec, TargetSpec> read_pair(const GgufFile & drafter, const GgufFile & target);

/// Every field in which the two do not fit; empty when they do.
[[nodiscard]] std::vector<PairMismatch> check_pair(const DrafterSpec & drafter, const TargetSpec & target);

}  // namespace dflash
