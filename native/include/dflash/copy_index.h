// Finds where the conversation repeats itself and proposes what followed last time. Pure; needs no drafter.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

struct CopyProposal {
    std::vector<llama_token> tokens;  // what followed the match; empty: nothing found
    std::int32_t match_length = 0;    // tokens before the proposal that equal the end of the text
    std::int32_t n_sources = 0;       // places with a match of at least min_match that were looked at
    std::int32_t n_agreeing = 0;      // those whose next token is the proposed one
};

/// Hash chains over the last min_match tokens, so that the end can be cut off again. Bounded work per call.
class CopyIndex {
  public:
    static constexpr std::int32_t min_match = 2;
    static constexpr std::int32_t max_match = 64;    // longer matches count as this long
    static constexpr std::int32_t max_sources = 32;  // places looked at per proposal

    /// Makes the indexed text equal to `tokens`: cuts back to the common prefix, then appends. Constant time per
    /// changed token.
    void sync(std::span<const llama_token> tokens);
    /// Text of earlier conversations, searched after the present one; the oldest goes first when `max_past` is full.
    void add_past(std::span<const llama_token> tokens);
    static constexpr std::int32_t max_past = 1 << 18;  // tokens

    /// What may follow the text's end: the longest match, the latest among equals, at most n tokens. A proposal may run
    /// into itself (a loop goes on as a loop).
    [[nodiscard]] CopyProposal propose(std::int32_t n) const;
};

}  // namespace dflash
