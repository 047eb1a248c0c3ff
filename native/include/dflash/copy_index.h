// Finds where the conversation repeats itself and proposes what followed last time. Pure; needs no drafter.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dflash/chained_text.h"

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
    static constexpr std::int32_t max_match = 64;      // longer matches count as this long
    static constexpr std::int32_t max_sources = 32;    // places looked at per proposal
    static constexpr std::int32_t max_steps = 64;      // links of a chain followed, hash collisions included
    static constexpr std::int32_t max_past = 1 << 18;  // tokens

    /// Makes the indexed text equal to `tokens`: cuts back to the common prefix, then appends. Constant time per
    /// changed token, and a comparison of what stays (memory speed).
    void sync(std::span<const llama_token> tokens);
    /// Text of earlier conversations, searched after the present one; the oldest goes first when `max_past` is full.
    /// Nothing is matched or proposed across the border between two of them.
    void add_past(std::span<const llama_token> tokens);

    /// What may follow the text's end: the longest match, the latest among equals, at most n tokens. A proposal may run
    /// into itself (a loop goes on as a loop).
    [[nodiscard]] CopyProposal propose(std::int32_t n) const;

    /// Chain links and tokens compared by the last propose(), for tests of its bound.
    [[nodiscard]] std::int64_t work() const noexcept { return work_; }

  private:
    struct Best;
    void look(const ChainedText & where, std::int32_t place, std::vector<llama_token> & nexts, Best & best) const;
    [[nodiscard]] std::int32_t match_at(std::span<const llama_token> where, std::int32_t place) const;

    ChainedText present_{min_match};
    ChainedText past_{min_match};  // conversations, a border token after each
    mutable std::int64_t work_ = 0;
};

}  // namespace dflash
