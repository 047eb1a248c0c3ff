// Reads and judges the metadata of a drafter file.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "dflash/acceptance.h"
#include "dflash/pair_spec.h"
#include "dflash/text.h"
#include "drafter_layout.h"
#include "gguf_fields.h"

namespace dflash {

namespace {

constexpr std::int64_t max_layers = 64;
constexpr std::uint64_t max_taps = 64;
constexpr std::int64_t max_block_size = 128;
constexpr std::int64_t max_width = 1 << 20;  // of hidden states and feed-forward layers
constexpr std::int64_t max_heads = 4096;
constexpr std::int64_t max_target_layers = 512;  // llama.cpp's own limit
constexpr std::int64_t max_vocab = 1 << 24;
constexpr float max_scale = 1e6F;

const char * const convert_advice = "convert the original checkpoint again with a current converter";

void require_drafter(const GgufFile & file, const GgufFields & fields) {
    const std::string & architecture = file.architecture();
    if (architecture == "dflash") {
        return;
    }
    if (architecture == "dflash-draft") {
        fields.fail("it is written in the older 'dflash-draft' dialect, which is not supported; " +
                        std::string(convert_advice) + " (general.architecture 'dflash')",
                    "general.architecture");
    }
    if (architecture == "eagle3") {
        fields.fail("it is an EAGLE-3 drafter; only DFlash drafters (general.architecture 'dflash') run here",
                    "general.architecture");
    }
    fields.fail("it is no drafter: its general.architecture is '" + printable(architecture) +
                    "', a drafter has 'dflash'. Was the target given as the drafter?",
                "general.architecture");
}

/// A key or tensor that marks a family other than DFlash v1.
struct FamilyMark {
    const char * name;
    const char * family;
};

constexpr FamilyMark family_marks[] = {
    {"dflash.hyper_connection.count", "DeepSeek DSpark"},
    {"hc_head_fn.weight", "DeepSeek DSpark"},
    {"blk.0.attn_kv.weight", "DeepSeek DSpark"},
    {"dflash.sample_from_anchor", "DSpark"},
    {"dflash.has_confidence_head", "DSpark"},
    {"markov_w1.weight", "DSpark"},
    {"markov_w2.weight", "DSpark"},
    {"conf_proj.weight", "DSpark"},
    {"dflash.selector_rank", "DFlash2"},
    {"dflash.selector_top_k", "DFlash2"},
    {"dflash.conv_kernel_size", "DFlash2"},
    {"dflash.conv_group_size", "DFlash2"},
    {"selector_hidden.weight", "DFlash2"},
    {"selector_predecessor.weight", "DFlash2"},
    {"selector_successor.weight", "DFlash2"},
    {"blk.0.attn_conv_base", "DFlash2"},
    {"blk.0.ffn_conv_base", "DFlash2"},
};

const FamilyMark * find_family_mark(const GgufFile & file) {
    for (const FamilyMark & mark : family_marks) {
        if (file.has(mark.name) || file.find_tensor(mark.name) != nullptr) {
            return &mark;
        }
    }
    return nullptr;
}

void require_v1(const GgufFile & file, const GgufFields & fields) {
    if (const FamilyMark * mark = find_family_mark(file)) {
        fields.fail("it is a " + std::string(mark->family) + " drafter ('" + mark->name +
                        "' tells), a family that this version does not run; use a DFlash v1 drafter",
                    mark->name);
    }
}

/// One value for all layers, written once or per layer.
std::int32_t uniform(const GgufFields & fields, const std::string & key, std::int64_t hi) {
    const auto values = fields.integers(key, 1, hi, static_cast<std::uint64_t>(max_layers));
    if (std::any_of(values.begin(), values.end(), [&](std::int32_t v) { return v != values.front(); })) {
        fields.fail("'" + key + "' differs between layers, which is not supported", key);
    }
    return values.front();
}

void read_attention(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec) {
    spec.n_head = uniform(fields, "dflash.attention.head_count", max_heads);
    spec.n_head_kv = file.has("dflash.attention.head_count_kv")
                         ? uniform(fields, "dflash.attention.head_count_kv", max_heads)
                         : spec.n_head;
    if (spec.n_head % spec.n_head_kv != 0) {
        fields.fail("'dflash.attention.head_count_kv' is " + std::to_string(spec.n_head_kv) +
                        ", which does not divide the " + std::to_string(spec.n_head) + " heads",
                    "dflash.attention.head_count_kv");
    }
    const std::int32_t from_width = spec.n_embd / spec.n_head;
    spec.head_dim = fields.integer_or("dflash.attention.key_length", from_width, 2, max_width);
    const std::int32_t value_length = fields.integer_or("dflash.attention.value_length", from_width, 2, max_width);
    if (value_length != spec.head_dim) {
        fields.fail("'dflash.attention.value_length' is " + std::to_string(value_length) + ", but keys have " +
                        std::to_string(spec.head_dim) + "; only equal lengths are supported",
                    "dflash.attention.value_length");
    }
    if (!file.has("dflash.attention.layer_norm_rms_epsilon")) {
        fields.fail("it has no 'dflash.attention.layer_norm_rms_epsilon'", "dflash.attention.layer_norm_rms_epsilon");
    }
    spec.rms_eps = fields.real_or("dflash.attention.layer_norm_rms_epsilon", 0.0F, 0.0F, 1.0F);
    spec.attention_scale = fields.real_or("dflash.attention.scale", 0.0F, 0.0F, max_scale);
    spec.value_scale = fields.real_or("dflash.attention.value_scale", 0.0F, -max_scale, max_scale);
    if (file.has("dflash.attention.causal")) {
        spec.causal = file.find_bool("dflash.attention.causal");
    }
}

void read_window(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec) {
    constexpr const char * pattern_key = "dflash.attention.sliding_window_pattern";
    spec.layer_sliding.assign(static_cast<std::size_t>(spec.n_layer), false);
    spec.sliding_window =
        fields.integer_or("dflash.attention.sliding_window", 0, 0, std::numeric_limits<std::int32_t>::max());
    if (!file.has(pattern_key)) {
        if (spec.sliding_window > 0) {
            fields.fail(
                std::string("it has a sliding window but no '") + pattern_key + "' that says which layers use it",
                pattern_key);
        }
        return;
    }
    const auto pattern = fields.integers(pattern_key, 0, 1, static_cast<std::uint64_t>(max_layers));
    if (!file.is_array(pattern_key) || pattern.size() != spec.layer_sliding.size()) {
        fields.fail(std::string("'") + pattern_key + "' must be an array of " + std::to_string(spec.n_layer) +
                        " values, one per layer",
                    pattern_key);
    }
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        spec.layer_sliding[i] = pattern[i] != 0;
    }
    const bool any = std::find(pattern.begin(), pattern.end(), 1) != pattern.end();
    if (any && spec.sliding_window == 0) {
        fields.fail("it has sliding layers but no 'dflash.attention.sliding_window'",
                    "dflash.attention.sliding_window");
    }
    if (!any) {
        spec.sliding_window = 0;
    }
}

void read_rope(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec) {
    RopeSpec & rope = spec.rope;
    rope.n_rot = fields.integer_or("dflash.rope.dimension_count", spec.head_dim, 2, spec.head_dim);
    if (rope.n_rot % 2 != 0) {
        fields.fail("'dflash.rope.dimension_count' is odd", "dflash.rope.dimension_count");
    }
    rope.freq_base = fields.real_or("dflash.rope.freq_base", rope.freq_base, 1.0F, 1e12F);
    constexpr const char * sections_key = "dflash.rope.dimension_sections";
    if (file.has(sections_key)) {
        // Sections that rotate by the first axis alone are plain NeoX rope: a text token has one position.
        const auto sections = fields.integers(sections_key, 0, max_width, 4);
        if (std::any_of(sections.begin() + 1, sections.end(), [](std::int32_t n) { return n != 0; })) {
            fields.fail(std::string("'") + sections_key + "' uses several position axes, which is not supported",
                        sections_key);
        }
    }
    const std::string scaling = fields.text_or("dflash.rope.scaling.type", "linear");
    if (scaling != "none" && scaling != "linear" && scaling != "yarn") {
        fields.fail("'dflash.rope.scaling.type' is '" + printable(scaling) + "', expected none, linear or yarn",
                    "dflash.rope.scaling.type");
    }
    const char * const factor_key =
        file.has("dflash.rope.scaling.factor") ? "dflash.rope.scaling.factor" : "dflash.rope.scale_linear";
    const float written = fields.real_or(factor_key, 0.0F, 0.0F, max_scale);
    const float factor = written == 0.0F || scaling == "none" ? 1.0F : written;
    rope.freq_scale = 1.0F / factor;
    rope.attn_factor = fields.real_or("dflash.rope.scaling.attn_factor", 1.0F, 0.0F, max_scale);
    const std::int32_t n_ctx_train =
        fields.integer_or("dflash.context_length", 0, 0, std::numeric_limits<std::int32_t>::max());
    rope.n_ctx_orig = fields.integer_or("dflash.rope.scaling.original_context_length", n_ctx_train, 0,
                                        std::numeric_limits<std::int32_t>::max());
    if (scaling != "yarn") {
        return;
    }
    if (rope.n_ctx_orig == 0) {
        fields.fail("YaRN needs 'dflash.rope.scaling.original_context_length'",
                    "dflash.rope.scaling.original_context_length");
    }
    rope.ext_factor = fields.real_or("dflash.rope.scaling.yarn_ext_factor", 1.0F, 0.0F, 1.0F);
    rope.beta_fast = fields.real_or("dflash.rope.scaling.yarn_beta_fast", rope.beta_fast, 0.0F, max_scale);
    rope.beta_slow = fields.real_or("dflash.rope.scaling.yarn_beta_slow", rope.beta_slow, 0.0F, max_scale);
    // ggml multiplies by 1 + 0.1 ln(factor) itself, which an attention factor in the file replaces.
    const float mscale = 1.0F + 0.1F * std::log(factor);
    rope.attn_factor *= fields.real_or("dflash.rope.scaling.yarn_attn_factor", mscale, 0.0F, max_scale) / mscale;
}

void read_draft(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec) {
    constexpr const char * taps_key = "dflash.target_layers";
    spec.block_size = fields.integer("dflash.block_size", 2, max_block_size);
    if (!file.has(taps_key)) {
        fields.fail(std::string("it has no '") + taps_key + "', so it does not say which target layers it reads",
                    taps_key);
    }
    if (!file.is_array(taps_key)) {
        fields.fail(std::string("'") + taps_key + "' must be an array of layer numbers", taps_key);
    }
    spec.tap_inputs = fields.integers(taps_key, 1, max_target_layers, max_taps);
    if (std::set<std::int32_t>(spec.tap_inputs.begin(), spec.tap_inputs.end()).size() != spec.tap_inputs.size()) {
        fields.fail(std::string("'") + taps_key + "' names a layer twice", taps_key);
    }
    if (file.has("tokenizer.ggml.tokens")) {
        const std::uint64_t n = file.array_size("tokenizer.ggml.tokens").value();
        if (n == 0) {
            fields.fail("its 'tokenizer.ggml.tokens' is empty", "tokenizer.ggml.tokens");
        }
        spec.n_vocab = static_cast<std::int32_t>(n);
        spec.vocab_hash = file.string_array_hash("tokenizer.ggml.tokens").value();
    } else {
        spec.n_vocab = fields.integer_or("dflash.vocab_size", 0, 1, max_vocab);
    }
    spec.mask_token_id =
        fields.integer("tokenizer.ggml.mask_token_id", 0, (spec.n_vocab > 0 ? spec.n_vocab : max_vocab) - 1);
    spec.embedding_scale = fields.real_or("dflash.embedding_scale", 0.0F, -max_scale, max_scale);
    spec.logit_scale = fields.real_or("dflash.logit_scale", 0.0F, -max_scale, max_scale);
    spec.logit_softcap = fields.real_or("dflash.final_logit_softcapping", 0.0F, 0.0F, max_scale);
    const std::string activation = fields.text_or("dflash.hidden_activation", "silu");
    spec.ffn_gelu = activation == "gelu" || activation == "gelu_pytorch_tanh";
    if (!spec.ffn_gelu && activation != "silu") {
        fields.fail(
            "'dflash.hidden_activation' is '" + printable(activation) + "', expected silu, gelu or gelu_pytorch_tanh",
            "dflash.hidden_activation");
    }
}

/// A hint for the planner, which learns without it too: what cannot be used is passed over.
void read_acceptance(const GgufFile & file, DrafterSpec & spec) {
    constexpr const char * key = "dflash_local.acceptance";
    if (!file.has(key)) {
        return;
    }
    if (!file.is_array(key) || file.array_size(key).value_or(0) > DraftAcceptance::max_priors) {
        spec.acceptance_problem = std::string("'") + key + "' is no array of at most " +
                                  std::to_string(DraftAcceptance::max_priors) + " numbers";
        return;
    }
    try {
        std::vector<float> values;
        const std::vector<double> written = file.find_float_array(key).value();
        values.reserve(written.size());
        for (const double value : written) {
            const bool fits = std::abs(value) <= DraftAcceptance::max_weight;  // a double may be beyond any float
            values.push_back(fits ? static_cast<float>(value) : std::numeric_limits<float>::quiet_NaN());
        }
        DraftAcceptance().set_priors(values);
        spec.acceptance = std::move(values);
    } catch (const Error & error) {
        spec.acceptance_problem = error.what();
    }
}

DrafterSpec read_v1(const GgufFile & file, const GgufFields & fields) {
    DrafterSpec spec;
    spec.name = fields.text_or("general.name", "");
    spec.n_layer = fields.integer("dflash.block_count", 1, max_layers);
    spec.n_embd = fields.integer("dflash.embedding_length", 1, max_width);
    spec.n_ff = uniform(fields, "dflash.feed_forward_length", max_width);
    read_attention(file, fields, spec);
    read_window(file, fields, spec);
    read_rope(file, fields, spec);
    read_draft(file, fields, spec);
    read_acceptance(file, spec);
    check_drafter_tensors(file, fields, spec);
    return spec;
}

}  // namespace

bool DrafterSpec::layer_causal(std::int32_t layer) const {
    return causal.value_or(layer_sliding.at(static_cast<std::size_t>(layer)));
}

std::string drafter_family(const GgufFile & file) {
    if (file.architecture() != "dflash") {
        return "";
    }
    const FamilyMark * mark = find_family_mark(file);
    return mark == nullptr ? "DFlash" : mark->family;
}

DrafterSpec DrafterSpec::read(const GgufFile & file) {
    const GgufFields fields(file, ErrorCode::incompatible_drafter);
    require_drafter(file, fields);
    require_v1(file, fields);
    try {
        return read_v1(file, fields);
    } catch (const Error & error) {
        // A key of the wrong type makes no drafter; a file that cannot be read names no field.
        if (error.code() == ErrorCode::model_load && !error.field().empty()) {
            throw Error(ErrorCode::incompatible_drafter, error.what(), error.field());
        }
        throw;
    }
}

}  // namespace dflash
