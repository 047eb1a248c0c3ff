// Tensors of a drafter and the head it uses, declared from headers alone, then allocated and read.
#pragma once

#include <ggml-cpp.h>
#include <ggml.h>
#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dflash/draft_device.h"
#include "dflash/gguf_reader.h"
#include "dflash/pair_spec.h"

namespace dflash {

/// Matrices are [n_in, n_out] in ggml order; norms are F32.
struct DraftLayer {
    ggml_tensor * attn_norm = nullptr;
    ggml_tensor * attn_q = nullptr;
    ggml_tensor * attn_k = nullptr;
    ggml_tensor * attn_v = nullptr;
    ggml_tensor * attn_output = nullptr;
    ggml_tensor * attn_q_norm = nullptr;
    ggml_tensor * attn_k_norm = nullptr;
    ggml_tensor * ffn_norm = nullptr;
    ggml_tensor * ffn_gate = nullptr;
    ggml_tensor * ffn_up = nullptr;
    ggml_tensor * ffn_down = nullptr;
};

enum class HeadSource : std::uint8_t {
    drafter,       // in the drafter's file
    target_model,  // the target's loaded tensor
    target_file,   // a copy of our own: the device cannot use the loaded one
};

class DraftWeights {
  public:
    /// Declares all tensors of a checked spec. `target` null: a head that belongs to the target counts as borrowed (for
    /// estimates). Throws Error(unsupported, tensor) where the device cannot multiply with a tensor's type.
    DraftWeights(const GgufFile & drafter_file, const GgufFile & target_file, const DrafterSpec & spec,
                 const DraftDevice & device, const llama_model * target);

    /// Bytes that `load` allocates; after `load` bytes allocated.
    [[nodiscard]] std::size_t bytes() const;

    /// Allocates and reads. Throws Error(out_of_memory) with the bytes asked for, Error(model_load).
    void load();
    /// Marks all tensors as living elsewhere, so that graphs over them can be measured but not run.
    void pretend_loaded();

    ggml_tensor * fc = nullptr;
    ggml_tensor * enc_norm = nullptr;
    ggml_tensor * output_norm = nullptr;
    ggml_tensor * head = nullptr;
    HeadSource head_source = HeadSource::drafter;
    std::vector<DraftLayer> layers;
    std::vector<std::int64_t> d2t;      // head row -> target token id; empty: the same
    ggml_type kv_type = GGML_TYPE_F16;  // F32 when the drafter's own matrices are
    std::uint64_t sample_hash = 0;      // of the first bytes of fc.weight: tells drafters of one shape apart

  private:
    struct Source {
        ggml_tensor * tensor;
        const GgufFile * file;
        const GgufTensor * entry;
    };
    struct Group {  // tensors of one buffer type
        ggml_context_ptr ctx;
        ggml_backend_buffer_ptr buffer;
    };

    ggml_tensor * declare(const GgufFile & file, const std::string & name, ggml_backend_buffer_type_t buft);
    ggml_tensor * matrix(const GgufFile & file, const std::string & name);
    ggml_tensor * norm(const std::string & name);
    void declare_layers(std::int32_t n_layer);
    void declare_head(const GgufFile & target_file, const DrafterSpec & spec, const llama_model * target);
    void read(const Source & source) const;

    const GgufFile & drafter_file_;  // used while declaring and loading only
    const DraftDevice & device_;
    std::size_t max_tensors_;
    std::map<ggml_backend_buffer_type_t, Group> groups_;
    ggml_context_ptr dummy_head_ctx_;
    std::vector<Source> sources_;
};

}  // namespace dflash
