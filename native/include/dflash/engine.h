// Runs rounds: owns the target's context, shares a drafter, keeps both in step with one conversation.
#pragma once

#include <llama.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dflash/copy_index.h"
#include "dflash/cost_model.h"
#include "dflash/draft_tree.h"
#include "dflash/drafter.h"
#include "dflash/grammar_ahead.h"
#include "dflash/llama_bridge.h"
#include "dflash/round_planner.h"
#include "dflash/session.h"
#include "dflash/verifier.h"
#include "dflash/vocab_bytes.h"

namespace dflash {

constexpr std::int32_t draft_auto = -1;

using RoundClock = std::chrono::steady_clock;

struct RoundOptions {
    std::int32_t draft_rows = draft_auto;  // draft_auto: the planner decides; 0: plain; n: verify n drafted rows
    std::int32_t draft_leaves = 1;         // n > 1: a tree of draft_rows nodes with at most n leaves, not a chain
    std::int32_t max_emit = INT32_MAX;
    bool all_logits = false;          // keep the logits of every row, also of waiting prompt tokens
    std::function<void()> on_sample;  // before each sampled node; may throw, then nothing of the round remains
};

/// What a round verifies, and how it came about. An empty tree: one row.
struct RoundPlan {
    RoundSource source = RoundSource::plain;
    DraftTree tree;
    double draft_ms = 0.0;
    std::int32_t draft_slots = 0;
    RoundClock::time_point start{};
};

struct ReplayResult {
    std::int32_t tokens = 0;
    std::int32_t exact = 0;
    std::int32_t first_mismatch = -1;
};

/// The only thread that touches the contexts is the caller's. After any exception target K/V, drafter K/V and tokens
/// agree again and nothing of the failed call remains.
class Engine {
  public:
    /// `drafter` may be null; `copies`: draft what repeats itself in the text. Throws what TargetContext throws.
    Engine(llama_model * model, const llama_context_params & params, std::shared_ptr<Drafter> drafter, TapMode tap_mode,
           bool copies);

    [[nodiscard]] TargetContext & target() noexcept { return target_; }
    [[nodiscard]] const TargetContext & target() const noexcept { return target_; }
    [[nodiscard]] const Session & session() const noexcept { return session_; }
    [[nodiscard]] const RoundPlanner & planner() const noexcept { return planner_; }
    [[nodiscard]] CostModel & costs() noexcept { return planner_.costs(); }
    /// Text of an earlier conversation, to copy from.
    void add_past(std::span<const llama_token> tokens) { copies_.add_past(tokens); }
    [[nodiscard]] bool has_drafter() const noexcept { return drafter_ != nullptr; }
    /// Rows decoded, the ones whose node is being sampled included.
    [[nodiscard]] std::int32_t n_decoded() const noexcept { return session_.n_decoded() + walked_rows_; }
    /// Why the drafter is not used now; empty while it is, or without one.
    [[nodiscard]] std::string declined() const;

    /// See Session::begin. Throws invalid_argument (empty prompt, ids out of range), context_overflow.
    std::int32_t begin(std::span<const llama_token> prompt, bool reuse);
    /// Decodes one chunk of undecoded tokens while more than one chunk is left; false when none was needed.
    bool prefill();
    /// One round; returns the tokens it emitted. Throws cancelled, context_overflow, decode_failed.
    std::vector<llama_token> round(llama_sampler * sampler, const RoundOptions & options);
    void truncate(std::int32_t n);
    void append(std::span<const llama_token> tokens);
    /// Appends `tokens` and decodes them with those that wait (at most one chunk in all), logits of the last or of all.
    void eval(std::span<const llama_token> tokens, bool all_logits);
    void reset();

    /// Logits [n_vocab] of a kept output row of the last decode; row -1 is the last. Throws invalid_argument.
    [[nodiscard]] std::span<const float> logits(std::int32_t row) const;
    /// Samples (accept included) from that row, the conversation unchanged.
    llama_token sample(llama_sampler * sampler, std::int32_t row);

    /// Decodes the conversation anew in the same batches and samples the current run with `sampler`, a fresh one of the
    /// run's settings. The tokens are kept whatever comes out.
    ReplayResult replay(llama_sampler * sampler);

    [[nodiscard]] std::vector<std::byte> save();
    /// Throws invalid_argument and changes nothing when the bytes are of another model, drafter or version.
    void restore(std::span<const std::byte> bytes);

    [[nodiscard]] DraftMemory draft_memory() const;

    /// Milliseconds of one target batch of n dummy rows after the decoded ones, which are removed again; taps as in a
    /// draft round. Throws invalid_argument (no room), unsupported (recurrent state behind it).
    double time_batch(std::int32_t n_rows);
    /// The prior of the cost model, in about the time of 40 one-row batches and at most a little over budget_ms.
    /// Leaves memories and session as they were; a failing draft pass ends drafting. Throws invalid_argument where
    /// something is decoded already.
    CostTable time_costs(double budget_ms);

  private:
    class RollbackGuard;
    class TimingGuard;

    void decode_prompt_chunk(std::int32_t n_rows, bool last, bool all_logits);
    [[nodiscard]] bool may_draft(const RoundOptions & options) const;
    RoundPlan plan_round(llama_sampler * sampler, const RoundOptions & options);
    RoundPlan plan_fixed(llama_sampler * sampler, const RoundOptions & options);
    [[nodiscard]] DraftTree fixed_tree(const RoundOptions & options, const RoundPlan & plan) const;
    void gather_offer(llama_sampler * sampler, std::int32_t n);
    void prune_candidates();  // those that the grammar forbids
    bool make_draft(std::int32_t n_slots, double & draft_ms);
    [[nodiscard]] std::int32_t most_nodes() const;
    [[nodiscard]] std::int32_t slots_to_draft(const RoundOptions & options) const;

    std::vector<llama_token> plain_round(llama_sampler * sampler, const RoundOptions & options, const RoundPlan & plan);
    std::vector<llama_token> draft_round(llama_sampler * sampler, const RoundOptions & options, const RoundPlan & plan);
    Walk walk_tree(llama_sampler * sampler, const RoundOptions & options, const DraftTree & tree);
    [[nodiscard]] DraftNote note_of(const RoundPlan & plan, std::span<const std::int32_t> kept_rows) const;
    void observe_draft(const RoundPlan & plan, const Walk & path, std::int32_t pos0, const RoundTimes & times,
                       const RoundOptions & options);
    [[nodiscard]] bool ends_text(llama_token token) const;
    void keep_taps(std::int32_t pos0, std::int32_t n_rows);                      // the first rows of the last decode
    void keep_taps(std::int32_t pos0, std::span<const std::int32_t> kept_rows);  // some of them
    void keep_features(std::int32_t pos0, std::span<const float> taps);
    void inject(std::int32_t pos0, std::span<const float> taps);
    void rewind_memories(std::int32_t pos);
    [[nodiscard]] bool restore_memory(std::span<const std::uint8_t> memory);
    [[nodiscard]] bool wants_taps(std::int32_t last_pos) const;
    void check_tokens(std::span<const llama_token> tokens) const;
    llama_token sample_row(llama_sampler * sampler, std::int32_t row);  // row of the last batch
    [[nodiscard]] std::int32_t output_row(std::int32_t row) const;      // as for logits()
    void drafter_failed(const std::string & why);
    [[nodiscard]] double time_slope(std::int32_t n_rows) const;  // ms per cell of context of one such batch
    void time_draft(CostTable & table, double limit_ms);

    std::shared_ptr<Drafter> drafter_;
    TargetContext target_;
    Session session_;
    /// A forced text or a copy that may follow the anchor.
    struct Offer {
        std::vector<llama_token> chain;
        NodeSource source = NodeSource::copy;
        std::int32_t match_length = 0;
        std::int32_t n_sources = 0;
        std::int32_t n_agreeing = 0;
    };

    RoundPlanner planner_;
    CopyIndex copies_;
    bool can_copy_;
    Offer offer_;
    std::unique_ptr<GrammarAhead> grammar_;  // of the sampler of the last round, null: it has none
    std::shared_ptr<const VocabBytes> vocab_bytes_;
    DraftCandidates candidates_;
    std::vector<float> gathered_;            // features of kept rows that do not lie side by side
    std::vector<llama_token_data> sampled_;  // [n_vocab], what the sampler chain works on
    std::int32_t walked_rows_ = 0;
    bool flash_attn_;
    /// Our CPU kernels give a row the same bits beside any other rows, as long as cells lie in the order of positions:
    /// which a branch of a tree, once accepted, does not leave behind. So the planner keeps to chains there.
    bool keeps_bits_;
    std::vector<std::int32_t> output_rows_;  // batch rows of the last decode that were kept and have logits
    std::string failure_;                    // why the drafter was given up
};

}  // namespace dflash
