// Looks ahead with a clone of the active grammar: which drafted tokens it forbids, which text it forces.
#pragma once

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace dflash {

/// A clone of the grammar inside a user's sampler chain, ahead of the text by the tokens walked.
class GrammarAhead {
  public:
    /// Null where `sampler` (a chain, or a sampler) holds no grammar sampler.
    static std::unique_ptr<GrammarAhead> of(const llama_sampler * sampler, const llama_vocab * vocab);

    [[nodiscard]] std::unique_ptr<GrammarAhead> clone() const;
    /// allowed[i] tells whether tokens[i] may come next. Costs one pass over `tokens` only, never the vocabulary.
    void allowed(std::span<const llama_token> tokens, std::span<bool> out) const;
    /// Goes on by an allowed token; a forbidden one throws Error(invalid_argument) (the grammar sampler would abort).
    void accept(llama_token token);
    /// The tokens of the text that the grammar forces from here, as the vocabulary would write it, at most n. A last
    /// token that could merge with free text after it is left out. Empty where the next character is free.
    [[nodiscard]] std::vector<llama_token> forced(std::int32_t n) const;
};

}  // namespace dflash
