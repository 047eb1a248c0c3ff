// Looks ahead with a clone of the active grammar: which drafted tokens it forbids, which text it forces.
#pragma once

#include <llama.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dflash/vocab_bytes.h"

namespace dflash {

/// The grammar inside a user's sampler chain, ahead of it by the tokens accepted here. The chain must outlive it; it
/// is read, never changed, and copied only where a token is accepted.
class GrammarAhead {
  public:
    static constexpr std::int32_t max_bytes = 96;  // of text that one call of forced() looks ahead
    using Patience = std::chrono::microseconds;

    /// Null where `sampler` (a chain, or a sampler) holds no grammar sampler of llama.cpp. `bytes` is made where it is
    /// null and needed.
    static std::unique_ptr<GrammarAhead> of(const llama_sampler * sampler, const llama_vocab * vocab,
                                            std::shared_ptr<const VocabBytes> & bytes);
    /// Do both look at the very same sampler?
    [[nodiscard]] bool same_source(const GrammarAhead & other) const noexcept { return source_ == other.source_; }

    [[nodiscard]] std::unique_ptr<GrammarAhead> clone() const;
    /// A call of forced() that takes longer stops, and the next calls are answered with nothing: one, then three, ...
    void set_patience(Patience patience) noexcept { patience_ = patience; }
    /// Back to where the sampler chain is now.
    void rewind() noexcept { own_.reset(); }
    /// out[i] tells whether tokens[i] may come next. Costs one pass over `tokens` only, never the vocabulary.
    void allowed(std::span<const llama_token> tokens, std::span<bool> out) const;
    /// Goes on by an allowed token; a forbidden one throws Error(invalid_argument) (the grammar sampler would abort).
    void accept(llama_token token);
    /// The tokens of the text that the grammar forces from here, as the vocabulary would write it, at most n: a good
    /// guess, no more, as the target may cut the text into other tokens. White space that the grammar makes optional is
    /// guessed from `written`, the end of the text so far. Empty where the next character is free, and for a while
    /// after looking ahead in this grammar proved slow.
    [[nodiscard]] std::vector<llama_token> forced(std::int32_t n, std::span<const llama_token> written = {});

  private:
    struct Free {
        void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
    };
    using Sampler = std::unique_ptr<llama_sampler, Free>;
    class Walk;

    GrammarAhead(llama_sampler * source, std::shared_ptr<const VocabBytes> bytes)
        : source_(source), bytes_(std::move(bytes)) {}
    [[nodiscard]] llama_sampler * now() const noexcept { return own_ ? own_.get() : source_; }

    llama_sampler * source_;  // inside the user's chain
    Sampler own_;             // null: nothing accepted yet
    std::shared_ptr<const VocabBytes> bytes_;
    Patience patience_{3000};
    std::int32_t slow_ = 0;  // look-aheads in a row that took too long
    std::int32_t skip_ = 0;  // calls yet to be answered with nothing
};

}  // namespace dflash
