// Declares a drafter's tensors with checked shapes, finds the head, allocates per buffer type and reads the files.
#include "dflash/draft_weights.h"

#include <algorithm>
#include <array>
#include <span>

#include "dflash/error.h"
#include "dflash/llama_symbols.h"

namespace dflash {

namespace {

constexpr std::size_t sample_bytes = 4096;

std::string shape_text(std::span<const std::int64_t> shape) {
    std::string text = "[";
    for (const std::int64_t n : shape) {
        text += (text.size() > 1 ? ", " : "") + std::to_string(n);
    }
    return text + "]";
}

[[noreturn]] void refuse(const std::string & tensor, const std::string & problem) {
    throw Error(ErrorCode::incompatible_drafter, "tensor " + tensor + " " + problem, tensor);
}

const GgufTensor & target_head_entry(const GgufFile & target_file) {
    for (const char * name : {"output.weight", "token_embd.weight"}) {
        if (const GgufTensor * entry = target_file.find_tensor(name)) {
            return *entry;
        }
    }
    throw Error(ErrorCode::model_load, "the target has neither output.weight nor token_embd.weight", "output.weight");
}

// A tied head is a second loaded tensor of the same name, maybe in another buffer: any that works here will do.
ggml_tensor * find_loaded_head(const llama_model * target, const GgufTensor & entry, const DraftDevice & device) {
    for (const auto & [name, tensor] : llama_symbols::model_tensors(target)) {
        if (name == entry.name && tensor->ne[0] == entry.ne[0] && tensor->ne[1] == entry.ne[1] &&
            device.can_multiply(tensor)) {
            return tensor;
        }
    }
    return nullptr;
}

}  // namespace

DraftWeights::DraftWeights(const GgufFile & drafter_file, const GgufFile & target_file, const DrafterSpec & spec,
                           const DraftDevice & device, const llama_model * target)
    : drafter_file_(drafter_file), device_(device), max_tensors_(static_cast<std::size_t>(spec.n_layer) * 15 + 8) {
    fc = matrix("fc.weight", static_cast<std::int64_t>(spec.tap_inputs.size()) * spec.n_embd, spec.n_embd);
    enc_norm = vector("enc.output_norm.weight", spec.n_embd);
    output_norm = vector("output_norm.weight", spec.n_embd);
    rope_freqs = vector("rope_freqs.weight", spec.rope.n_rot / 2, false);
    std::vector<std::byte> sample(std::min<std::size_t>(sample_bytes, drafter_file.find_tensor("fc.weight")->n_bytes));
    drafter_file.read(*drafter_file.find_tensor("fc.weight"), 0, sample);
    for (const std::byte byte : sample) {
        sample_hash = sample_hash * 0x100000001b3ULL + static_cast<std::uint64_t>(byte);
    }
    declare_layers(spec);
    declare_head(target_file, spec, target);
    refuse_unknown();
}

const GgufTensor * DraftWeights::entry(const std::string & name, bool required) {
    known_.insert(name);
    const GgufTensor * const found = drafter_file_.find_tensor(name);
    if (found == nullptr && required) {
        refuse(name, "is missing from the drafter: expected a DFlash drafter as llama.cpp's converter writes it");
    }
    return found;
}

ggml_tensor * DraftWeights::declare(const GgufFile & file, const GgufTensor & entry, ggml_backend_buffer_type_t buft,
                                    ggml_type type, std::initializer_list<std::int64_t> shape) {
    std::array<std::int64_t, 4> expected{1, 1, 1, 1};
    std::copy(shape.begin(), shape.end(), expected.begin());
    if (entry.ne != expected) {
        refuse(entry.name, "has shape " + shape_text(std::span(entry.ne).first(shape.size())) + ", expected " +
                               shape_text({shape.begin(), shape.size()}));
    }
    Group & group = groups_[buft];
    if (group.ctx == nullptr) {
        group.ctx.reset(ggml_init({max_tensors_ * ggml_tensor_overhead(), nullptr, true}));
    }
    ggml_tensor * const tensor = ggml_new_tensor(group.ctx.get(), type, static_cast<int>(shape.size()), shape.begin());
    ggml_set_name(tensor, entry.name.c_str());
    sources_.push_back({tensor, &file, &entry});
    return tensor;
}

ggml_tensor * DraftWeights::matrix(const std::string & name, std::int64_t n_in, std::int64_t n_out, bool required) {
    const GgufTensor * const found = entry(name, required);
    if (found == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_type_t const buft = device_.weight_buffer_type(found->type, n_in, n_out);
    if (buft == nullptr) {
        refuse(name, std::string("is of type ") + ggml_type_name(found->type) + ", which " +
                         ggml_backend_dev_name(device_.device()) + " cannot multiply: use an F16 or Q8_0 drafter");
    }
    return declare(drafter_file_, *found, buft, found->type, {n_in, n_out});
}

ggml_tensor * DraftWeights::vector(const std::string & name, std::int64_t n, bool required) {
    const GgufTensor * const found = entry(name, required);
    if (found == nullptr) {
        return nullptr;
    }
    if (!is_weight_type(found->type)) {
        refuse(name, std::string("is of type ") + ggml_type_name(found->type) + ", expected F32");
    }
    return declare(drafter_file_, *found, device_.buffer_type(), GGML_TYPE_F32, {n});
}

void DraftWeights::declare_layers(const DrafterSpec & spec) {
    const std::int64_t n_embd_q = static_cast<std::int64_t>(spec.head_dim) * spec.n_head;
    const std::int64_t n_embd_kv = static_cast<std::int64_t>(spec.head_dim) * spec.n_head_kv;
    bool all_f32 = fc->type == GGML_TYPE_F32;
    for (std::int32_t i = 0; i < spec.n_layer; ++i) {
        const auto name = [i](const char * suffix) { return "blk." + std::to_string(i) + "." + suffix + ".weight"; };
        DraftLayer & layer = layers.emplace_back();
        layer.attn_norm = vector(name("attn_norm"), spec.n_embd);
        layer.attn_q = matrix(name("attn_q"), spec.n_embd, n_embd_q);
        layer.attn_k = matrix(name("attn_k"), spec.n_embd, n_embd_kv);
        layer.attn_v = matrix(name("attn_v"), spec.n_embd, n_embd_kv, false);
        layer.attn_output = matrix(name("attn_output"), n_embd_q, spec.n_embd);
        layer.attn_q_norm = vector(name("attn_q_norm"), spec.head_dim);
        layer.attn_k_norm = vector(name("attn_k_norm"), spec.head_dim);
        layer.attn_sinks = vector(name("attn_sinks"), spec.n_head, false);
        layer.attn_post_norm = vector(name("post_attention_norm"), spec.n_embd, false);
        layer.ffn_norm = vector(name("ffn_norm"), spec.n_embd);
        layer.ffn_gate = matrix(name("ffn_gate"), spec.n_embd, spec.n_ff);
        layer.ffn_up = matrix(name("ffn_up"), spec.n_embd, spec.n_ff);
        layer.ffn_down = matrix(name("ffn_down"), spec.n_ff, spec.n_embd);
        layer.ffn_post_norm = vector(name("post_ffw_norm"), spec.n_embd, false);
        layer.out_scale = vector(name("layer_output_scale"), 1, false);
        for (const ggml_tensor * weight : {layer.attn_q, layer.attn_k, layer.attn_output, layer.ffn_down}) {
            all_f32 = all_f32 && weight->type == GGML_TYPE_F32;
        }
    }
    kv_type = all_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

void DraftWeights::declare_head(const GgufFile & target_file, const DrafterSpec & spec, const llama_model * target) {
    const GgufTensor & target_entry = target_head_entry(target_file);
    const std::int64_t n_target_rows = target_entry.ne[1];
    known_.insert("token_embd.weight");
    if (spec.has_own_head || spec.has_own_embd) {
        const std::string name = spec.has_own_head ? "output.weight" : "token_embd.weight";
        head = matrix(name, spec.n_embd, entry(name, true)->ne[1]);
        head_source = HeadSource::drafter;
    } else if (target == nullptr) {
        dummy_head_ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, true}));
        head = ggml_new_tensor_2d(dummy_head_ctx_.get(), target_entry.type, target_entry.ne[0], target_entry.ne[1]);
        head_source = HeadSource::target_model;
    } else if (ggml_tensor * const loaded = find_loaded_head(target, target_entry, device_)) {
        head = loaded;
        head_source = HeadSource::target_model;
    } else {
        ggml_backend_buffer_type_t const buft =
            device_.weight_buffer_type(target_entry.type, target_entry.ne[0], target_entry.ne[1]);
        if (buft == nullptr) {
            refuse(target_entry.name, std::string("of the target is of type ") + ggml_type_name(target_entry.type) +
                                          ", which " + ggml_backend_dev_name(device_.device()) + " cannot multiply");
        }
        head = declare(target_file, target_entry, buft, target_entry.type, {spec.n_embd, n_target_rows});
        head_source = HeadSource::target_file;
    }
    if (head->ne[0] != spec.n_embd) {
        refuse(target_entry.name, "of the target has rows of " + std::to_string(head->ne[0]) +
                                      " columns, the drafter's hidden size is " + std::to_string(spec.n_embd));
    }
    read_d2t(head->ne[1], n_target_rows);
}

void DraftWeights::read_d2t(std::int64_t n_head_rows, std::int64_t n_target_rows) {
    const GgufTensor * const found = entry("d2t", false);
    if (found == nullptr) {
        if (n_head_rows > n_target_rows) {
            refuse("output.weight", "has " + std::to_string(n_head_rows) + " rows, the target knows " +
                                        std::to_string(n_target_rows) + " tokens");
        }
        return;
    }
    if (found->type != GGML_TYPE_I64 || found->ne[0] != n_head_rows) {
        refuse("d2t", "must hold one I64 token id for each of the " + std::to_string(n_head_rows) + " rows of the head");
    }
    d2t.resize(static_cast<std::size_t>(n_head_rows));
    drafter_file_.read(*found, 0, std::as_writable_bytes(std::span(d2t)));
    const bool valid = std::ranges::all_of(d2t, [&](std::int64_t id) { return id >= 0 && id < n_target_rows; });
    if (!valid) {
        refuse("d2t", "holds ids outside the target's vocabulary of " + std::to_string(n_target_rows));
    }
}

void DraftWeights::refuse_unknown() const {
    for (const GgufTensor & tensor : drafter_file_.tensors()) {
        if (!known_.contains(tensor.name)) {
            refuse(tensor.name, "is not part of a DFlash v1 drafter: this version cannot run the family it belongs to");
        }
    }
}

std::size_t DraftWeights::bytes() const {
    std::size_t total = 0;
    for (const auto & [buft, group] : groups_) {
        total += group.buffer != nullptr ? ggml_backend_buffer_get_size(group.buffer.get())
                                         : ggml_backend_alloc_ctx_tensors_from_buft_size(group.ctx.get(), buft);
    }
    return total;
}

void DraftWeights::load() {
    for (auto & [buft, group] : groups_) {
        const std::size_t needed = ggml_backend_alloc_ctx_tensors_from_buft_size(group.ctx.get(), buft);
        group.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(group.ctx.get(), buft));
        if (group.buffer == nullptr) {
            throw Error(ErrorCode::out_of_memory, "cannot allocate " + std::to_string(needed) + " bytes on " +
                                                      ggml_backend_buft_name(buft) + " for the drafter's weights");
        }
        ggml_backend_buffer_set_usage(group.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    for (const Source & source : sources_) {
        read(source);
    }
    sources_.clear();
}

void DraftWeights::read(const Source & source) const {
    std::vector<std::byte> bytes(source.entry->n_bytes);
    source.file->read(*source.entry, 0, bytes);
    ggml_tensor * const tensor = source.tensor;
    const std::size_t expected = ggml_row_size(source.entry->type, tensor->ne[0]) * static_cast<std::size_t>(tensor->ne[1]);
    if (bytes.size() != expected) {
        throw Error(ErrorCode::model_load, "tensor " + source.entry->name + " has " + std::to_string(bytes.size()) +
                                               " bytes, expected " + std::to_string(expected), source.entry->name);
    }
    if (source.entry->type == tensor->type) {
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
        return;
    }
    std::vector<float> values(static_cast<std::size_t>(ggml_nelements(tensor)));
    ggml_get_type_traits(source.entry->type)->to_float(bytes.data(), values.data(), ggml_nelements(tensor));
    ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(float));
}

void DraftWeights::pretend_loaded() {
    for (auto & [buft, group] : groups_) {
        group.buffer.reset(ggml_backend_buft_alloc_buffer(buft, 0));
        for (ggml_tensor * t = ggml_get_first_tensor(group.ctx.get()); t != nullptr;
             t = ggml_get_next_tensor(group.ctx.get(), t)) {
            t->buffer = group.buffer.get();
        }
    }
    if (dummy_head_ctx_ != nullptr) {
        head->buffer = groups_.begin()->second.buffer.get();
    }
}

}  // namespace dflash
