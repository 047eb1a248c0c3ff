// The bookkeeping of one conversation: tokens, what was decoded how, pending features, counters. No llama.cpp calls.
#pragma once

#include <llama.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dflash/drafter.h"

namespace dflash {

enum class RoundKind : std::uint8_t { prefill, plain, draft };

/// Layout of a batch that was a tree with two or more leaves; empty for all others.
struct TreeShape {
    std::vector<std::int32_t> parents;    // [n_rows - 1] of each node, -1: the anchor; leaf sequences follow from them
    std::vector<std::int32_t> kept_rows;  // [n_kept] rows on the accepted path, the anchor's (0) first
};

/// One target batch that is (partly) kept in the K/V. Without a tree row i sits at pos0 + i and rows beyond n_kept were
/// removed.
struct DecodeRecord {
    std::int32_t pos0;
    std::int32_t n_rows;     // as decoded
    std::int32_t n_kept;     // positions [pos0, pos0 + n_kept) hold committed tokens
    std::int32_t n_emitted;  // tokens sampled from it that are committed; draft: equals n_kept
    RoundKind kind;
    bool current_run;  // of the run since the last begin()
    bool all_logits;
    TreeShape tree = {};

    /// Row of the i-th position kept.
    [[nodiscard]] std::int32_t kept_row(std::int32_t i) const {
        return tree.parents.empty() ? i : tree.kept_rows[static_cast<std::size_t>(i)];
    }
    /// Nodes decoded at depths 1, 2, ... below the anchor.
    [[nodiscard]] std::vector<std::int32_t> nodes_by_depth() const;
};

/// How many leading positions a restored memory has in the cells they were decoded into: llama.cpp gives a batch the
/// lowest free cells, rejected rows of trees leave holes, and restoring closes these.
[[nodiscard]] std::int32_t positions_in_place(std::span<const DecodeRecord> records);

/// Can a batch have been decoded and kept like this?
[[nodiscard]] bool is_well_formed(const DecodeRecord & record);

/// Times of one round in milliseconds.
struct RoundTimes {
    double target = 0.0;
    double draft = 0.0;
    double sample = 0.0;
    double total = 0.0;
};

/// Where the rows of a round came from. `drafter` wherever a draft pass was made, one that had nothing verified too.
enum class DraftSource : std::uint8_t { none, copy, grammar, drafter };

/// What a round was drafted from, and how many of its rows were copies of what stands in the text.
struct DraftNote {
    DraftSource source = DraftSource::none;
    std::int32_t copied = 0;
    std::int32_t copied_accepted = 0;
};

/// One round of the current run.
struct RoundReport {
    DraftSource source = DraftSource::none;
    std::vector<std::int32_t> nodes;  // verified at depths 1, 2, ...
};

struct RunStats {
    std::int32_t prompt_n = 0;
    std::int32_t reused_n = 0;
    double prompt_ms = 0.0;
    std::int32_t predicted_n = 0;
    double predicted_ms = 0.0;
    std::int32_t draft_rounds = 0;
    std::int32_t plain_rounds = 0;
    std::int32_t draft_n = 0;
    std::int32_t draft_n_accepted = 0;
    std::int32_t copy_rounds = 0;
    std::int32_t copy_n_accepted = 0;
    std::vector<std::int32_t> accepted_per_slot;
    double plain_round_ms = 0.0;  // medians of one-row and of draft rounds
    double draft_round_ms = 0.0;
    RoundTimes sums;
};

/// Features of positions [pos0, pos0 + n) that the drafter has not seen yet.
struct PendingTaps {
    std::int32_t pos0 = 0;
    std::vector<float> rows;  // [n x feature_size]
};

class Session {
  public:
    explicit Session(std::int32_t feature_size) : feature_size_(feature_size) {}

    [[nodiscard]] std::span<const llama_token> tokens() const noexcept { return tokens_; }
    [[nodiscard]] std::int32_t n_tokens() const noexcept { return static_cast<std::int32_t>(tokens_.size()); }
    [[nodiscard]] std::int32_t n_decoded() const noexcept { return n_decoded_; }
    [[nodiscard]] std::int32_t n_pending() const noexcept { return n_tokens() - n_decoded_; }
    [[nodiscard]] std::span<const DecodeRecord> records() const noexcept { return records_; }

    /// Starts a run on `prompt`; returns how many of its leading tokens keep their K/V: the common prefix, but never
    /// the last token, whose logits are needed (of a prompt wholly decoded before, the last two: then it gets the same
    /// answer again). The caller removes the rest from the memories.
    std::int32_t begin(std::span<const llama_token> prompt, bool reuse);
    void append(std::span<const llama_token> tokens);
    /// Commits one decode: `n_kept` of its rows, then the emitted tokens, and its times.
    void commit(const DecodeRecord & record, std::span<const llama_token> emitted, const RoundTimes & times,
                const DraftNote & draft = {});
    /// A token that the walk in progress has accepted: visible in tokens() until commit() or drop_walked().
    void show_walked(llama_token token) { tokens_.push_back(token); }
    void drop_walked(std::int32_t n_tokens) { tokens_.resize(static_cast<std::size_t>(n_tokens)); }
    /// Keeps the first n tokens; at least one of them stays undecoded (unless n is 0). Returns the new n_decoded.
    std::int32_t truncate(std::int32_t n);
    void clear();
    /// For replay and a memory that had to be emptied: nothing is decoded any more, the tokens stay.
    void forget_decoded();
    /// Of what is decoded only the first n positions stay; the tokens stay all.
    void keep_decoded(std::int32_t n) { cut(n_tokens(), std::min(n, n_decoded_)); }

    /// Has the current run emitted a token? Constant time.
    [[nodiscard]] bool has_emitted() const;
    /// The first token comes out of the prompt's last batch: that round's time counts as the prompt's.
    [[nodiscard]] RunStats stats() const;
    /// Every round of the current run, the one with the prompt's first token too; none that a restored state brought.
    [[nodiscard]] std::vector<RoundReport> rounds() const;

    /// Tokens, decode records, pending features and the drafter's context; not the target's K/V.
    [[nodiscard]] std::vector<std::byte> save() const;
    /// Throws Error(invalid_argument) and changes nothing when the bytes are malformed or of another drafter.
    void restore(std::span<const std::byte> bytes);

    PendingTaps & pending() noexcept { return pending_; }
    /// Appends features of rows at `pos0`; a gap drops what was pending.
    void push_taps(std::int32_t pos0, std::span<const float> rows);
    void cut_taps(std::int32_t pos);  // forgets positions >= pos
    [[nodiscard]] std::size_t pending_bytes() const noexcept { return pending_.rows.capacity() * sizeof(float); }

    std::unique_ptr<DraftContext> draft_context;  // null without a drafter

  private:
    struct RoundNote {
        std::size_t record;
        std::int32_t drafted;  // rows beyond the anchor
        DraftNote draft;
        RoundTimes times;
    };

    std::int32_t feature_size_;
    std::vector<llama_token> tokens_;
    std::int32_t n_decoded_ = 0;
    std::vector<DecodeRecord> records_;
    std::vector<RoundNote> notes_;  // of the current run, prefill included
    std::int32_t reused_n_ = 0;
    PendingTaps pending_;

    void cut(std::int32_t n, std::int32_t decoded);
};

}  // namespace dflash
