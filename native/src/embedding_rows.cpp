// Reads single rows of token_embd.weight: a table of gigabytes is not loaded twice for two rows a round.
#include "dflash/embedding_rows.h"

#include <ggml.h>

#include <string>
#include <utility>

#include "dflash/draft_device.h"
#include "dflash/error.h"

namespace dflash {

EmbeddingRows::EmbeddingRows(GgufFile file, std::int32_t n_embd)
    : file_(std::move(file)), tensor_(file_.find_tensor("token_embd.weight")) {
    if (tensor_ == nullptr) {
        throw Error(ErrorCode::model_load, file_.path().string() + " has no token_embd.weight", "token_embd.weight");
    }
    if (tensor_->ne[0] != n_embd || !is_weight_type(tensor_->type)) {
        throw Error(ErrorCode::incompatible_drafter,
                    std::string("token_embd.weight has ") + std::to_string(tensor_->ne[0]) + " columns of type " +
                        ggml_type_name(tensor_->type) + ", expected " + std::to_string(n_embd) +
                        " of a type that can be dequantized",
                    "token_embd.weight");
    }
    row_.resize(ggml_row_size(tensor_->type, tensor_->ne[0]));
}

std::int64_t EmbeddingRows::n_rows() const { return tensor_->ne[1]; }

void EmbeddingRows::read(std::int64_t id, std::span<float> dst) {
    if (id < 0 || id >= n_rows() || dst.size() != static_cast<std::size_t>(tensor_->ne[0])) {
        throw Error(ErrorCode::invalid_argument,
                    "token id " + std::to_string(id) + " is outside 0.." + std::to_string(n_rows() - 1), "anchor");
    }
    if (tensor_->type == GGML_TYPE_F32) {
        file_.read(*tensor_, static_cast<std::uint64_t>(id) * row_.size(), std::as_writable_bytes(dst));
        return;
    }
    file_.read(*tensor_, static_cast<std::uint64_t>(id) * row_.size(), row_);
    ggml_get_type_traits(tensor_->type)->to_float(row_.data(), dst.data(), tensor_->ne[0]);
}

}  // namespace dflash
