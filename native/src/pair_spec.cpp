// Reads the metadata of a target, and compares a drafter with it.
#include "dflash/pair_spec.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <system_error>

#include "dflash/text.h"
#include "gguf_fields.h"

namespace dflash {

namespace {

constexpr std::int64_t max_layers = 512;  // llama.cpp aborts beyond these
constexpr std::int64_t max_experts = 1024;
constexpr std::uint64_t max_vocab = 1 << 22;
constexpr std::int64_t max_int = std::numeric_limits<std::int32_t>::max();

// Architectures that llama.cpp loads but that do not write text.
constexpr std::string_view no_text_architectures[] = {
    "bert",         "modern-bert", "nomic-bert",       "nomic-bert-moe", "neo-bert",         "jina-bert-v2",
    "jina-bert-v3", "eurobert",    "t5encoder",        "clip",           "gemma-embedding",  "llama-embed",
    "qwen3tts",     "pockettts",   "wavtokenizer-dec", "eagle3",         "gemma4-assistant",
};

// Their graphs name no `l_out`, so their layers cannot be tapped.
constexpr std::string_view untappable_architectures[] = {"deepseek4", "qwen4exp"};

// Their graphs also export the output of the last layer.
constexpr std::string_view last_layer_architectures[] = {"deepseek4", "mimo2", "nemotron_h", "nemotron_h_moe"};

template <std::size_t N>
bool contains(const std::string_view (&list)[N], std::string_view name) {
    return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

void require_language_model(const GgufFile & file, const GgufFields & fields) {
    const std::string & architecture = file.architecture();
    if (architecture == "dflash" || architecture == "dflash-draft") {
        fields.fail("it is a drafter, not a target. Give it as the drafter, and the language model as the target",
                    "general.architecture");
    }
    const std::string type = fields.text_or("general.type", "model");
    if (type != "model" || contains(no_text_architectures, architecture)) {
        fields.fail("it is no language model (general.type '" + printable(type) + "', architecture '" +
                        printable(architecture) + "')",
                    "general.architecture");
    }
}

std::int32_t maximum(const GgufFile & file, const GgufFields & fields, const std::string & key) {
    if (!file.has(key)) {
        return 0;
    }
    const auto values = fields.integers(key, 0, max_int, static_cast<std::uint64_t>(max_layers));
    return *std::max_element(values.begin(), values.end());
}

/// Values on which llama.cpp would abort the process while loading.
void check_experts(const GgufFile & file, const GgufFields & fields) {
    const std::int32_t experts = fields.integer_or(fields.key("expert_count"), 0, 0, max_experts);
    const std::string used_key = fields.key("expert_used_count");
    const std::int32_t used = maximum(file, fields, used_key);
    const bool dense_hunyuan = file.architecture().starts_with("hunyuan") && experts <= 1;
    if (!dense_hunyuan && (used > experts || (experts > 0 && used == 0))) {
        fields.fail("'" + used_key + "' is " + std::to_string(used) + " of " + std::to_string(experts) + " experts",
                    used_key);
    }
    const std::string groups_key = fields.key("expert_group_count");
    const std::int32_t groups = fields.integer_or(groups_key, 0, 0, max_experts);
    if (groups > 0 && (groups >= experts || experts % groups != 0)) {
        fields.fail(
            "'" + groups_key + "' is " + std::to_string(groups) + " for " + std::to_string(experts) + " experts",
            groups_key);
    }
    const std::string group_used_key = fields.key("expert_group_used_count");
    const std::int32_t group_used = fields.integer_or(group_used_key, 0, 0, max_experts);
    if (groups > 1 && (group_used == 0 || group_used >= groups)) {
        fields.fail(
            "'" + group_used_key + "' is " + std::to_string(group_used) + " of " + std::to_string(groups) + " groups",
            group_used_key);
    }
}

/// Adds a mismatch unless a tensor that the drafter borrows is one row of n_embd per token.
void check_borrowed(std::vector<PairMismatch> & out, const char * name, const std::array<std::int64_t, 2> & shape,
                    const TargetSpec & target) {
    if (shape[0] == target.n_embd && shape[1] == target.n_vocab) {
        return;
    }
    const std::string found = shape[0] == 0 ? "none" : std::to_string(shape[0]) + " x " + std::to_string(shape[1]);
    out.push_back({name, "borrows " + std::to_string(target.n_embd) + " x " + std::to_string(target.n_vocab), found,
                   "this target's file has no such tensor to lend; use a drafter with its own head and embeddings"});
}

std::string join(const std::vector<std::int32_t> & values) {
    std::string text;
    for (const std::int32_t value : values) {
        text += (text.empty() ? "" : ", ") + std::to_string(value);
    }
    return text;
}

bool same_file(const GgufFile & a, const GgufFile & b) {
    std::error_code error;
    return std::filesystem::equivalent(a.path(), b.path(), error) && !error;
}

}  // namespace

TargetSpec TargetSpec::read(const GgufFile & file) {
    const GgufFields fields(file, ErrorCode::model_load);
    require_language_model(file, fields);
    TargetSpec spec;
    spec.architecture = file.architecture();
    spec.name = fields.text_or("general.name", "");
    const std::int32_t n_blocks = fields.integer(fields.key("block_count"), 1, max_layers);
    // Blocks for multi-token prediction follow the model's own layers.
    spec.n_layer = n_blocks - fields.integer_or(fields.key("nextn_predict_layers"), 0, 0, n_blocks - 1);
    spec.n_embd = fields.integer(fields.key("embedding_length"), 1, max_int);
    spec.n_head = maximum(file, fields, fields.key("attention.head_count"));
    spec.n_head_kv = file.has(fields.key("attention.head_count_kv"))
                         ? maximum(file, fields, fields.key("attention.head_count_kv"))
                         : spec.n_head;
    spec.head_dim = fields.integer_or(fields.key("attention.key_length"),
                                      spec.n_head > 0 ? spec.n_embd / spec.n_head : 0, 0, max_int);
    spec.n_ctx_train = fields.integer(fields.key("context_length"), 1, max_int);
    check_experts(file, fields);
    if (!file.has("tokenizer.ggml.tokens")) {
        fields.fail("it carries no vocabulary ('tokenizer.ggml.tokens')", "tokenizer.ggml.tokens");
    }
    const std::uint64_t n_vocab = file.array_size("tokenizer.ggml.tokens").value();
    if (n_vocab == 0 || n_vocab > max_vocab) {
        fields.fail("its vocabulary ('tokenizer.ggml.tokens') has " + std::to_string(n_vocab) +
                        " tokens, expected 1 to " + std::to_string(max_vocab),
                    "tokenizer.ggml.tokens");
    }
    spec.n_vocab = static_cast<std::int32_t>(n_vocab);
    spec.vocab_hash = file.string_array_hash("tokenizer.ggml.tokens").value();
    if (const auto index = file.find_duplicate_string("tokenizer.ggml.tokens")) {
        fields.fail("its vocabulary holds token " + std::to_string(*index) + " twice", "tokenizer.ggml.tokens");
    }
    const std::string tokenizer = fields.text_or("tokenizer.ggml.model", "none");
    if (tokenizer == "none" || tokenizer == "no_vocab") {
        fields.fail("it names no tokenizer ('tokenizer.ggml.model')", "tokenizer.ggml.model");
    }
    if (const GgufTensor * embd = file.find_tensor("token_embd.weight")) {
        spec.embd_shape = {embd->ne[0], embd->ne[1]};
    }
    const GgufTensor * head = file.find_tensor("output.weight");
    spec.head_shape = head != nullptr ? std::array{head->ne[0], head->ne[1]} : spec.embd_shape;
    spec.chat_template = fields.text_or("tokenizer.chat_template", "");
    return spec;
}

std::pair<DrafterSpec, TargetSpec> read_pair(const GgufFile & drafter, const GgufFile & target) {
    const auto fail = [&](const std::string & what) {
        throw Error(ErrorCode::incompatible_drafter, what, "general.architecture");
    };
    const bool drafter_is_one = drafter.architecture() == "dflash";
    const bool target_is_drafter = target.architecture() == "dflash";
    if (same_file(drafter, target)) {
        fail("'" + printable_path(target.path()) + "' was given both as target and as drafter; it is a " +
             (drafter_is_one ? "drafter: name the language model it was trained for as the target"
                             : "target: name a drafter trained for it"));
    }
    if (!drafter_is_one && target_is_drafter) {
        fail("target and drafter are swapped: '" + printable_path(target.path()) + "' is the drafter, '" +
             printable_path(drafter.path()) + "' (architecture '" + printable(drafter.architecture()) +
             "') the target");
    }
    return {DrafterSpec::read(drafter), TargetSpec::read(target)};
}

std::vector<PairMismatch> check_pair(const DrafterSpec & drafter, const TargetSpec & target) {
    std::vector<PairMismatch> out;
    const std::string other_drafter =
        "use a drafter trained for " + (target.name.empty() ? "this target" : "'" + printable(target.name) + "'");
    if (contains(untappable_architectures, target.architecture)) {
        out.push_back({"architecture", "hidden states of the target's layers",
                       target.architecture + ", whose layers cannot be read",
                       "this target can only run without a drafter"});
    }
    const std::int32_t last =
        contains(last_layer_architectures, target.architecture) ? target.n_layer : target.n_layer - 1;
    if (std::any_of(drafter.tap_inputs.begin(), drafter.tap_inputs.end(),
                    [&](std::int32_t tap) { return tap < 1 || tap > last; })) {
        out.push_back({"target_layers", join(drafter.tap_inputs),
                       std::to_string(target.n_layer) + " layers (1 to " + std::to_string(last) + " can be read)",
                       "this drafter was trained for a deeper target; " + other_drafter});
    }
    if (drafter.n_embd_tap != target.n_embd) {
        out.push_back({"fc.weight", std::to_string(drafter.n_embd_tap) + " values per tapped layer",
                       std::to_string(target.n_embd),
                       "this drafter was trained for a target of another width; " + other_drafter});
    }
    const bool borrows = !drafter.has_own_embd || !drafter.has_own_head;
    if (borrows && drafter.n_embd != target.n_embd) {
        out.push_back(
            {"embedding_length", std::to_string(drafter.n_embd), std::to_string(target.n_embd),
             "it borrows the target's embeddings or head, which must be as wide as its own layers; " + other_drafter});
    }
    if (!drafter.has_own_embd) {
        check_borrowed(out, "token_embd.weight", target.embd_shape, target);
    }
    if (!drafter.has_own_head) {
        check_borrowed(out, "output.weight", target.head_shape, target);
    }
    const bool sizes_differ = drafter.n_vocab > 0 && drafter.n_vocab != target.n_vocab;
    if (sizes_differ) {
        out.push_back({"vocab_size", std::to_string(drafter.n_vocab), std::to_string(target.n_vocab), other_drafter});
    } else if (drafter.vocab_hash != 0 && drafter.vocab_hash != target.vocab_hash) {
        out.push_back(
            {"tokenizer.ggml.tokens", std::to_string(drafter.n_vocab) + " tokens",
             std::to_string(target.n_vocab) + " other tokens",
             "same size but other words: convert the drafter with this target's tokenizer, or " + other_drafter});
    }
    if (drafter.has_own_head && !drafter.has_d2t && !sizes_differ && drafter.n_vocab_head != target.n_vocab) {
        out.push_back({"output.weight", std::to_string(drafter.n_vocab_head) + " rows",
                       std::to_string(target.n_vocab) + " tokens", other_drafter});
    }
    if (drafter.mask_token_id >= target.n_vocab) {
        out.push_back({"mask_token_id", std::to_string(drafter.mask_token_id),
                       std::to_string(target.n_vocab) + " tokens",
                       "its mask token is not in the target's vocabulary; " + other_drafter});
    }
    return out;
}

}  // namespace dflash
