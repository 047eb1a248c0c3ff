// Shapes and types of a drafter's tensors, and the map of a reduced head.
#include "drafter_layout.h"

#include <set>
#include <string>
#include <vector>

#include "dflash/text.h"

namespace dflash {

namespace {

using Shape = std::array<std::int64_t, 4>;

std::string shape_text(const Shape & ne) {
    std::size_t n = ne.size();
    while (n > 1 && ne.at(n - 1) == 1) {
        --n;
    }
    std::string text = std::to_string(ne[0]);
    for (std::size_t i = 1; i < n; ++i) {
        text += " x " + std::to_string(ne.at(i));
    }
    return text;
}

/// Types that ggml can multiply with: floats, and quantized types that it can convert to float.
bool is_matrix_type(ggml_type type) { return type == GGML_TYPE_F32 || ggml_get_type_traits(type)->to_float != nullptr; }

/// Parts of names that mark features which a later version brings, and what they are.
struct Feature {
    const char * part;
    const char * what;
};

constexpr Feature unsupported_features[] = {
    {".attn_sinks", "attention sinks"},
    {".post_attention_norm", "norms after the attention"},
    {".post_ffw_norm", "norms after the feed-forward layer"},
    {".layer_output_scale", "layer output scales"},
    {"rope_freqs", "rope frequency factors"},
    {".bias", "biases"},
    {".scale", "separate weight scales"},
    {".ffn_gate_inp", "experts"},
    {"_exps", "experts"},
};

class Layout {
  public:
    Layout(const GgufFile & file, const GgufFields & fields) : file_(file), fields_(fields) {}

    const GgufTensor & matrix(const std::string & name, std::int64_t in, std::int64_t out) {
        const GgufTensor & tensor = shaped(name, {in, out, 1, 1});
        if (!is_matrix_type(tensor.type)) {
            fields_.fail(
                "tensor '" + name + "' has the type " + ggml_type_name(tensor.type) + ", which holds no weights", name);
        }
        return tensor;
    }

    void norm(const std::string & name, std::int64_t n) {
        const GgufTensor & tensor = shaped(name, {n, 1, 1, 1});
        if (tensor.type != GGML_TYPE_F32) {
            fields_.fail("tensor '" + name + "' has the type " + ggml_type_name(tensor.type) + ", expected f32", name);
        }
    }

    const GgufTensor & shaped(const std::string & name, const Shape & expected) {
        const GgufTensor & tensor = present(name);
        if (tensor.ne != expected) {
            fields_.fail("tensor '" + name + "' is " + shape_text(tensor.ne) + ", expected " + shape_text(expected),
                         name);
        }
        return tensor;
    }

    const GgufTensor & present(const std::string & name) {
        const GgufTensor * tensor = file_.find_tensor(name);
        if (tensor == nullptr) {
            fields_.fail("it has no tensor '" + name + "'", name);
        }
        known_.insert(name);
        return *tensor;
    }

    void refuse_unknown() const {
        for (const GgufTensor & tensor : file_.tensors()) {
            if (known_.contains(tensor.name)) {
                continue;
            }
            for (const Feature & feature : unsupported_features) {
                if (tensor.name.find(feature.part) != std::string::npos) {
                    fields_.fail("it uses " + std::string(feature.what) + " (tensor '" + printable(tensor.name) +
                                     "'), which this version does not run",
                                 tensor.name);
                }
            }
            fields_.fail("tensor '" + printable(tensor.name) + "' is not part of a DFlash drafter", tensor.name);
        }
    }

  private:
    const GgufFile & file_;
    const GgufFields & fields_;
    std::set<std::string, std::less<>> known_;
};

/// d2t holds absolute target ids, one per row of the reduced head, no id twice.
void check_d2t(const GgufFile & file, const GgufFields & fields, const GgufTensor & tensor, std::int32_t n_vocab) {
    std::vector<std::int64_t> ids(static_cast<std::size_t>(tensor.ne[0]));
    file.read(tensor, 0, std::as_writable_bytes(std::span(ids)));
    std::vector<bool> seen(static_cast<std::size_t>(n_vocab), false);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= n_vocab) {
            fields.fail("'d2t' maps row " + std::to_string(i) + " to token " + std::to_string(ids[i]) +
                            ", outside the vocabulary of " + std::to_string(n_vocab),
                        "d2t");
        }
        const auto id = static_cast<std::size_t>(ids[i]);
        if (seen[id]) {
            fields.fail("'d2t' maps two rows to token " + std::to_string(ids[i]) +
                            "; it must hold absolute token ids (are these offsets?)",
                        "d2t");
        }
        seen[id] = true;
    }
}

void check_head(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec, Layout & layout) {
    const GgufTensor * embeddings = file.find_tensor("token_embd.weight");
    const GgufTensor * head = file.find_tensor("output.weight");
    const GgufTensor * d2t = file.find_tensor("d2t");
    if (embeddings != nullptr) {
        spec.has_own_embd = true;
        const std::int64_t rows = spec.n_vocab > 0 ? spec.n_vocab : embeddings->ne[1];
        layout.matrix("token_embd.weight", spec.n_embd, rows);
        if (spec.n_vocab == 0) {
            if (rows <= spec.mask_token_id || rows > std::int64_t{1} << 24) {
                fields.fail("'tokenizer.ggml.mask_token_id' is " + std::to_string(spec.mask_token_id) +
                                ", outside the " + std::to_string(rows) + " rows of its embeddings",
                            "tokenizer.ggml.mask_token_id");
            }
            spec.n_vocab = static_cast<std::int32_t>(rows);
        }
    }
    if (d2t != nullptr) {
        layout.present("d2t");
        if (head == nullptr) {
            fields.fail("it has a reduced vocabulary ('d2t') but no head of its own ('output.weight')", "d2t");
        }
        if (spec.n_vocab == 0) {
            fields.fail(
                "it has a reduced vocabulary ('d2t') but does not say how large the target's is ('dflash.vocab_size')",
                "dflash.vocab_size");
        }
        if (d2t->type != GGML_TYPE_I64 || d2t->ne != Shape{d2t->ne[0], 1, 1, 1} || d2t->ne[0] > spec.n_vocab) {
            fields.fail("'d2t' is " + shape_text(d2t->ne) + " of " + ggml_type_name(d2t->type) + ", expected at most " +
                            std::to_string(spec.n_vocab) + " values of i64",
                        "d2t");
        }
        check_d2t(file, fields, *d2t, spec.n_vocab);
        spec.has_d2t = true;
    }
    if (head == nullptr && embeddings == nullptr) {
        return;
    }
    spec.has_own_head = true;
    spec.head_tensor = head != nullptr ? "output.weight" : "token_embd.weight";
    if (head == nullptr) {
        spec.n_vocab_head = spec.n_vocab;
        return;
    }
    const std::int64_t rows = d2t != nullptr ? d2t->ne[0] : spec.n_vocab > 0 ? spec.n_vocab : head->ne[1];
    if (d2t == nullptr && head->ne[1] < rows) {
        fields.fail("its head has " + std::to_string(head->ne[1]) + " rows for a vocabulary of " +
                        std::to_string(rows) + " but no 'd2t' that maps them",
                    "output.weight");
    }
    layout.matrix("output.weight", spec.n_embd, rows);
    if (rows > std::int64_t{1} << 24) {
        fields.fail("its head has " + std::to_string(rows) + " rows, too many", "output.weight");
    }
    spec.n_vocab_head = static_cast<std::int32_t>(rows);
}

}  // namespace

void check_drafter_tensors(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec) {
    Layout layout(file, fields);
    const std::int64_t n_embd = spec.n_embd;
    const std::int64_t n_q = std::int64_t{spec.head_dim} * spec.n_head;
    const std::int64_t n_kv = std::int64_t{spec.head_dim} * spec.n_head_kv;
    const auto n_taps = static_cast<std::int64_t>(spec.tap_inputs.size());
    const GgufTensor & fc = layout.present("fc.weight");
    if (fc.ne[0] % n_taps != 0 || fc.ne[0] / n_taps > std::int64_t{1} << 20) {
        fields.fail("tensor 'fc.weight' takes " + std::to_string(fc.ne[0]) + " values, which the " +
                        std::to_string(n_taps) + " taps of 'dflash.target_layers' cannot fill evenly",
                    "fc.weight");
    }
    spec.n_embd_tap = static_cast<std::int32_t>(fc.ne[0] / n_taps);
    layout.matrix("fc.weight", fc.ne[0], n_embd);
    layout.norm("enc.output_norm.weight", n_embd);
    layout.norm("output_norm.weight", n_embd);
    for (std::int32_t i = 0; i < spec.n_layer; ++i) {
        const std::string prefix = "blk." + std::to_string(i) + ".";
        if (file.find_tensor(prefix + "attn_v.weight") == nullptr &&
            file.find_tensor(prefix + "attn_k.weight") != nullptr) {
            fields.fail("layer " + std::to_string(i) + " takes its values from its keys (no '" + prefix +
                            "attn_v.weight'), which this version does not run",
                        prefix + "attn_v.weight");
        }
        layout.norm(prefix + "attn_norm.weight", n_embd);
        layout.matrix(prefix + "attn_q.weight", n_embd, n_q);
        layout.matrix(prefix + "attn_k.weight", n_embd, n_kv);
        layout.matrix(prefix + "attn_v.weight", n_embd, n_kv);
        layout.matrix(prefix + "attn_output.weight", n_q, n_embd);
        layout.norm(prefix + "attn_q_norm.weight", spec.head_dim);
        layout.norm(prefix + "attn_k_norm.weight", spec.head_dim);
        layout.norm(prefix + "ffn_norm.weight", n_embd);
        layout.matrix(prefix + "ffn_gate.weight", n_embd, spec.n_ff);
        layout.matrix(prefix + "ffn_up.weight", n_embd, spec.n_ff);
        layout.matrix(prefix + "ffn_down.weight", spec.n_ff, n_embd);
    }
    check_head(file, fields, spec, layout);
    layout.refuse_unknown();
}

}  // namespace dflash
