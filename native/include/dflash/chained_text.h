// Text whose places with the same few tokens before them are chained, newest first, as in LZ77. Pure.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

/// A place is the index of the token that comes next: place p has the tokens [0, p) before it.
class ChainedText {
  public:
    explicit ChainedText(std::int32_t n_key) : n_key_(n_key) {}

    [[nodiscard]] std::span<const llama_token> tokens() const noexcept { return tokens_; }
    [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(tokens_.size()); }

    void push(std::span<const llama_token> tokens);
    void truncate(std::int32_t n);
    void drop_front(std::int32_t n);

    /// The last place whose n_key tokens before it are, but for hash collisions, the last ones of `text`; 0: none.
    [[nodiscard]] std::int32_t last_place(std::span<const llama_token> text) const;
    /// The one before it in the chain; 0: none.
    [[nodiscard]] std::int32_t previous(std::int32_t place) const {
        return previous_[static_cast<std::size_t>(place) - 1];
    }

  private:
    [[nodiscard]] std::int32_t & head(std::int32_t place);
    [[nodiscard]] std::size_t slot(std::span<const llama_token> before) const;
    void chain_all(std::size_t n_heads);

    std::int32_t n_key_;
    std::vector<llama_token> tokens_;
    std::vector<std::int32_t> previous_;  // [place - 1]
    std::vector<std::int32_t> heads_;     // by hash of the key; a power of two of them
};

}  // namespace dflash
