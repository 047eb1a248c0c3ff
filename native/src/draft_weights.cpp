// Declares a drafter's tensors with checked shapes, finds the head, allocates per buffer type and reads the files.
#include "dflash/draft_weights.h"

#include <algorithm>
#include <span>

#include "dflash/error.h"
#include "dflash/llama_symbols.h"

namespace dflash {

namespace {

constexpr std::size_t sample_bytes = 4096;

// The target's own head, or its embeddings where those are tied; check_pair has seen to it that one is there.
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

std::uint64_t hash_sample(const GgufFile & file, const GgufTensor & entry) {
    std::vector<std::byte> sample(std::min<std::size_t>(sample_bytes, entry.n_bytes));
    file.read(entry, 0, sample);
    std::uint64_t hash = 0;
    for (const std::byte byte : sample) {
        hash = hash * 0x100000001b3ULL + static_cast<std::uint64_t>(byte);
    }
    return hash;
}

}  // namespace

DraftWeights::DraftWeights(const GgufFile & drafter_file, const GgufFile & target_file, const DrafterSpec & spec,
                           const DraftDevice & device, const llama_model * target)
    : drafter_file_(drafter_file), device_(device), max_tensors_(static_cast<std::size_t>(spec.n_layer) * 11 + 4) {
    fc = matrix(drafter_file, "fc.weight");
    sample_hash = hash_sample(drafter_file, *drafter_file.find_tensor("fc.weight"));
    enc_norm = norm("enc.output_norm.weight");
    output_norm = norm("output_norm.weight");
    declare_layers(spec.n_layer);
    declare_head(target_file, spec, target);
    if (spec.has_d2t) {
        d2t.resize(static_cast<std::size_t>(spec.n_vocab_head));
        drafter_file.read(*drafter_file.find_tensor("d2t"), 0, std::as_writable_bytes(std::span(d2t)));
    }
}

ggml_tensor * DraftWeights::declare(const GgufFile & file, const std::string & name, ggml_backend_buffer_type_t buft) {
    const GgufTensor & entry = *file.find_tensor(name);
    Group & group = groups_[buft];
    if (group.ctx == nullptr) {
        group.ctx.reset(ggml_init({max_tensors_ * ggml_tensor_overhead(), nullptr, true}));
    }
    ggml_tensor * const tensor = ggml_new_tensor_2d(group.ctx.get(), entry.type, entry.ne[0], entry.ne[1]);
    ggml_set_name(tensor, name.c_str());
    sources_.push_back({tensor, &file, &entry});
    return tensor;
}

ggml_tensor * DraftWeights::matrix(const GgufFile & file, const std::string & name) {
    const GgufTensor & entry = *file.find_tensor(name);
    ggml_backend_buffer_type_t const buft = device_.weight_buffer_type(entry.type, entry.ne[0], entry.ne[1]);
    if (buft == nullptr) {
        throw Error(ErrorCode::unsupported,
                    "tensor " + name + " is of type " + ggml_type_name(entry.type) + ", with which " +
                        ggml_backend_dev_name(device_.device()) + " cannot multiply: use a file of another type",
                    name);
    }
    return declare(file, name, buft);
}

ggml_tensor * DraftWeights::norm(const std::string & name) {
    return declare(drafter_file_, name, device_.buffer_type());
}

void DraftWeights::declare_layers(std::int32_t n_layer) {
    bool all_f32 = fc->type == GGML_TYPE_F32;
    for (std::int32_t i = 0; i < n_layer; ++i) {
        const auto name = [i](const char * part) { return "blk." + std::to_string(i) + "." + part + ".weight"; };
        const auto layer_matrix = [&](const char * part) {
            ggml_tensor * const tensor = matrix(drafter_file_, name(part));
            all_f32 = all_f32 && tensor->type == GGML_TYPE_F32;
            return tensor;
        };
        layers.push_back({
            .attn_norm = norm(name("attn_norm")),
            .attn_q = layer_matrix("attn_q"),
            .attn_k = layer_matrix("attn_k"),
            .attn_v = layer_matrix("attn_v"),
            .attn_output = layer_matrix("attn_output"),
            .attn_q_norm = norm(name("attn_q_norm")),
            .attn_k_norm = norm(name("attn_k_norm")),
            .ffn_norm = norm(name("ffn_norm")),
            .ffn_gate = layer_matrix("ffn_gate"),
            .ffn_up = layer_matrix("ffn_up"),
            .ffn_down = layer_matrix("ffn_down"),
        });
    }
    kv_type = all_f32 ? GGML_TYPE_F32 : GGML_TYPE_F16;
}

void DraftWeights::declare_head(const GgufFile & target_file, const DrafterSpec & spec, const llama_model * target) {
    if (spec.has_own_head) {
        head = matrix(drafter_file_, spec.head_tensor);
        head_source = HeadSource::drafter;
        return;
    }
    const GgufTensor & entry = target_head_entry(target_file);
    head_source = HeadSource::target_model;
    if (target == nullptr) {
        dummy_head_ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, true}));
        head = ggml_new_tensor_2d(dummy_head_ctx_.get(), entry.type, entry.ne[0], entry.ne[1]);
    } else {
        head = find_loaded_head(target, entry, device_);
    }
    if (head == nullptr) {
        head = matrix(target_file, entry.name);
        head_source = HeadSource::target_file;
    }
    if (head->ne[0] != spec.n_embd) {
        throw Error(ErrorCode::incompatible_drafter,
                    "the target's " + entry.name + " has rows of " + std::to_string(head->ne[0]) +
                        " values, the drafter's hidden size is " + std::to_string(spec.n_embd),
                    entry.name);
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
    if (bytes.size() != ggml_nbytes(source.tensor)) {
        throw Error(ErrorCode::model_load,
                    "tensor " + source.entry->name + " has " + std::to_string(bytes.size()) + " bytes, expected " +
                        std::to_string(ggml_nbytes(source.tensor)),
                    source.entry->name);
    }
    source.file->read(*source.entry, 0, bytes);
    ggml_backend_tensor_set(source.tensor, bytes.data(), 0, bytes.size());
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
        head->buffer = groups_.at(device_.buffer_type()).buffer.get();  // where the norms are
    }
}

}  // namespace dflash
