// Finds where the conversation repeats itself and proposes what followed last time. Pure; needs no drafter.
#pragma once

#include <llama.h>

#include <cstdint>
#include <span>
#include <vector>

#include "dflash/place_chains.h"

namespace dflash {

struct CopyProposal {
    std::vector<llama_token> tokens;  // what followed the match; empty: nothing found
    std::int32_t match_length = 0;    // tokens before the proposal that equal the end of the text, one more where the
                                      // place is near the one that a long copy would have reached by now
    std::int32_t n_sources = 0;       // places with a match that were looked at
    std::int32_t n_agreeing = 0;      // those whose next token is the proposed one
};

/// Hash chains over the last two tokens, and over the last one for when two are found nowhere. Bounded work per call.
class CopyIndex {
  public:
    static constexpr std::int32_t min_match = 1;       // two in past text
    static constexpr std::int32_t max_match = 64;      // longer matches count as this long
    static constexpr std::int32_t max_sources = 32;    // places looked at per chain
    static constexpr std::int32_t max_steps = 64;      // links of a chain followed, hash collisions included
    static constexpr std::int32_t max_past = 1 << 18;  // tokens

    /// Makes the indexed text equal to `tokens`: cuts back to the common prefix, then appends. Constant time per
    /// changed token, and a comparison of what stays (memory speed).
    void sync(std::span<const llama_token> tokens);
    /// Text of earlier conversations, searched after the present one; the oldest goes first when `max_past` is full.
    /// Nothing is matched or proposed across the border between two of them.
    void add_past(std::span<const llama_token> tokens);

    /// What may follow the text's end, at most n tokens: what followed the longest match. Among equals, the next token
    /// that most of them have where they are short, then the latest. A proposal may run into itself (a loop goes on as
    /// a loop). Remembers a long match: an edited copy is taken up again near where it broke off.
    [[nodiscard]] CopyProposal propose(std::int32_t n);

    /// Chain links and tokens compared by the last propose(), for tests of its bound.
    [[nodiscard]] std::int64_t work() const noexcept { return work_; }

  private:
    struct Found {
        std::span<const llama_token> text;
        std::int32_t place;
        std::int32_t length;

        [[nodiscard]] llama_token next() const { return text[static_cast<std::size_t>(place)]; }
    };
    void look_along(const PlaceChains & chains, std::span<const llama_token> text, std::int32_t place,
                    std::int32_t least);
    void look_near();
    void look_at(std::span<const llama_token> text, std::int32_t place, std::int32_t least, std::int32_t bonus);
    [[nodiscard]] bool is_near(std::int32_t place) const;
    [[nodiscard]] const Found & best() const;

    std::vector<llama_token> present_;
    PlaceChains pairs_{2};
    PlaceChains singles_{1};
    std::vector<llama_token> past_;  // conversations, a border token after each
    PlaceChains past_pairs_{2};

    std::vector<Found> found_;    // of the current call
    std::int32_t distance_ = 0;   // from the source of the last long match to the text's end; 0: none yet
    std::int32_t long_size_ = 0;  // of the text then
    std::int64_t work_ = 0;
};

}  // namespace dflash
