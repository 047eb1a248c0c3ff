// Chains the places of a text that have the same few tokens before them, newest first, as in LZ77. Pure.
#pragma once

#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

/// A place is the index of the token that comes next: place p of a text has its tokens [0, p) before it. The text
/// itself is kept by the caller.
class PlaceChains {
  public:
    /// Places are alike where n_key tokens before them are.
    explicit PlaceChains(std::int32_t n_key) : n_key_(n_key) {}

    /// `text` has grown at its end. Constant time per token, on average.
    void grow(std::span<const llama_token> text);
    /// `text` is about to be cut to n tokens. Constant time per token cut.
    void shrink(std::span<const llama_token> text, std::int32_t n);
    /// `text` is another one.
    void renew(std::span<const llama_token> text);

    /// The last place of the chained text whose tokens before it are, but for hash collisions, those that `text` ends
    /// with; 0: none.
    [[nodiscard]] std::int32_t last_place(std::span<const llama_token> text) const;
    /// The place before this one in its chain; 0: none.
    [[nodiscard]] std::int32_t previous(std::int32_t place) const {
        return previous_[static_cast<std::size_t>(place) - 1];
    }

  private:
    [[nodiscard]] std::size_t slot(std::span<const llama_token> before) const;
    void chain(std::span<const llama_token> text, std::int32_t first);

    std::int32_t n_key_;
    std::vector<std::int32_t> previous_;  // [place - 1]
    std::vector<std::int32_t> heads_;     // by hash of the key; a power of two of them
};

}  // namespace dflash
