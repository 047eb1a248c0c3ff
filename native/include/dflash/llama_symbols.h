// Entry points that libllama exports without declaring them in llama.h, looked up at run time. Not for ggml's public
// API.
#pragma once

#include <ggml.h>
#include <llama.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace dflash::llama_symbols {

using TensorMap = std::vector<std::pair<std::string, ggml_tensor *>>;

/// Names of those entry points that this process' libllama lacks; empty when all are there.
[[nodiscard]] std::vector<std::string> missing();

/// Loaded tensors of a model by GGUF name; a tied head may be a second tensor of the embedding's name.
/// Each function throws Error(unsupported) with the symbol as field where libllama does not export it.
[[nodiscard]] const TensorMap & model_tensors(const llama_model * model);
void set_embeddings_layer_inp(llama_context * ctx, std::uint32_t layer, bool enabled);
[[nodiscard]] const float * get_embeddings_layer_inp(llama_context * ctx, std::uint32_t layer);

}  // namespace dflash::llama_symbols
