// Rows of a token embedding table, read from a GGUF on request and dequantized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dflash/gguf_reader.h"

namespace dflash {

class EmbeddingRows {
  public:
    /// Takes over an opened file that holds token_embd.weight [n_embd, n_vocab]. Throws Error(model_load,
    /// incompatible_drafter) where it is missing, of another width or of a type that cannot be dequantized.
    EmbeddingRows(GgufFile file, std::int32_t n_embd);

    [[nodiscard]] std::int64_t n_rows() const;
    /// Writes row `id` (0 <= id < n_rows) into dst [n_embd].
    void read(std::int64_t id, std::span<float> dst);

  private:
    GgufFile file_;
    const GgufTensor * tensor_;
    std::vector<std::byte> row_;  // one row as stored
};

}  // namespace dflash
