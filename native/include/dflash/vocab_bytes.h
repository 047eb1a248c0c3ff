// Which tokens of a vocabulary write which first byte.
#pragma once

#include <llama.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

/// Built once per vocabulary, by one pass over it.
class VocabBytes {
  public:
    explicit VocabBytes(const llama_vocab * vocab);

    [[nodiscard]] const llama_vocab * vocab() const noexcept { return vocab_; }
    [[nodiscard]] std::int32_t n_tokens() const noexcept { return n_tokens_; }
    /// The token that writes this byte and no more, or -1.
    [[nodiscard]] llama_token alone(std::uint8_t byte) const noexcept { return alone_[byte]; }
    /// Where no token writes the byte alone: a few that begin with it.
    [[nodiscard]] std::span<const llama_token> others(std::uint8_t byte) const noexcept { return others_[byte]; }
    /// A token that ends the text, or -1. A grammar treats all of them alike.
    [[nodiscard]] llama_token end() const noexcept { return end_; }

    /// What a token writes, special tokens included.
    [[nodiscard]] std::string piece(llama_token token) const;
    /// Tokens that write exactly `text`, none of them special; empty where the vocabulary cannot.
    [[nodiscard]] std::vector<llama_token> tokenize(std::string_view text) const;

  private:
    const llama_vocab * vocab_;
    std::int32_t n_tokens_;
    std::array<llama_token, 256> alone_{};
    std::array<std::vector<llama_token>, 256> others_;
    llama_token end_ = -1;
};

}  // namespace dflash
