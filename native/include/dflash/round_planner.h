// Decides, round by round, what to verify: nothing, a copy, or what the drafter offers. Pure: sees counts and times.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "dflash/acceptance.h"
#include "dflash/copy_acceptance.h"
#include "dflash/cost_model.h"
#include "dflash/draft_tree.h"
#include "dflash/draft_worth.h"
#include "dflash/round_guard.h"

namespace dflash {

enum class RoundSource : std::uint8_t { plain, chain, drafter };  // chain: copied or forced tokens, no draft pass

/// What a round could do.
struct RoundView {
    std::int32_t n_past = 0;             // cells of context before the anchor
    std::int32_t max_nodes = 0;          // room: context, physical batch, tokens still wanted
    std::int32_t n_slots = 0;            // of the drafter; 0: none
    std::int32_t max_leaves = 1;         // 1: chains only
    std::span<const llama_token> chain;  // copied or forced
    NodeSource chain_source = NodeSource::copy;
    std::int32_t match_length = 0;  // of a copy
    std::int32_t n_sources = 0;
    std::int32_t n_agreeing = 0;
};

/// What came of it.
struct RoundOutcome {
    RoundSource source = RoundSource::plain;
    std::int32_t n_past = 0;
    std::span<const DraftNode> verified;     // the nodes of the batch, before the walk
    std::span<const std::int32_t> accepted;  // indices of the nodes on the accepted path
    std::span<const llama_token> tokens;     // emitted, the last one not drafted; empty: less is learned
    std::int32_t emitted = 1;
    bool cut_short = false;  // the walk ended by an end of text or a limit: nothing is learned beyond it
    double target_ms = 0.0;
    double draft_ms = 0.0;  // 0: no draft pass
    std::int32_t draft_slots = 0;
    double total_ms = 0.0;
};

/// Figures for `bench` and `doctor`.
struct PlannerStatus {
    double draft_speed = 0.0;    // expected of drafting, against plain; 0: not known
    double draft_tokens = 0.0;   // expected per draft round
    double needed_tokens = 0.0;  // per draft round, to be as fast as plain
    double lambda = 0.0;         // tokens per ms of the best that can be done now
    double load = 1.0;
    std::int32_t trials = 0;         // draft rounds made only to learn
    std::int32_t draft_strikes = 0;  // times the guard suspended drafting
    std::int32_t chain_strikes = 0;
};

/// Maximises expected emitted tokens per second over plain rounds, chains and draft passes. One decision (choose, and
/// plan without the draft pass between them) takes less than 50 microseconds.
class RoundPlanner {
  public:
    static constexpr std::int32_t plain_needed = 4;         // plain rounds before the first trial without a table
    static constexpr std::int32_t reference_interval = 64;  // rounds with no plain one among them, at most
    static constexpr std::int32_t max_nodes = 63;

    [[nodiscard]] CostModel & costs() noexcept { return costs_; }
    [[nodiscard]] const CostModel & costs() const noexcept { return costs_; }
    [[nodiscard]] DraftAcceptance & acceptance() noexcept { return acceptance_; }
    [[nodiscard]] const DraftAcceptance & acceptance() const noexcept { return acceptance_; }

    /// Before any draft pass. Without known costs: plain, but for now and then a trial of what is on offer.
    [[nodiscard]] RoundSource choose(const RoundView & view);
    /// Slots worth asking of the draft pass that choose() called for.
    [[nodiscard]] std::int32_t draft_slots(const RoundView & view) const;
    /// The tree worth verifying, cut to a measured width; empty: one row is best after all. `candidates` is null for a
    /// chain.
    [[nodiscard]] DraftTree plan(const RoundView & view, const DraftCandidates * candidates);
    /// Every round, plain ones too: tokens that come are held against what was offered though not verified.
    void observe(const RoundOutcome & outcome);

    /// Why the drafter is not used now; empty while it is, or was just tried with success.
    [[nodiscard]] std::string declined() const;
    [[nodiscard]] PlannerStatus status() const;

  private:
    /// Slots still waiting for the target's word.
    struct Drafted {
        DraftCandidates candidates;
        std::int32_t n_past = 0;
        std::int32_t consumed = 0;  // tokens that came since the anchor
        bool trial = false;
        bool alive = false;
    };
    struct Offered {
        std::vector<llama_token> chain;
        NodeSource source = NodeSource::copy;
        CopyEvidence evidence;
        std::int32_t n_past = -1;
    };
    struct Unsettled {
        RoundSource source;
        bool trial;
        std::int32_t n_past;
        std::int32_t emitted;
        double predicted_ms;  // as a multiple of the load
        double total_ms;
    };

    CostModel costs_;
    DraftAcceptance acceptance_;
    CopyAcceptance copies_;
    ForcedAcceptance forced_;
    DraftWorth worth_;
    TrialPurse draft_purse_;
    TrialPurse chain_purse_;
    StakePurse stake_;
    RoundGuard draft_guard_;
    RoundGuard chain_guard_;
    Drafted drafted_;
    Offered offered_;
    std::deque<Unsettled> unsettled_;
    std::deque<std::int32_t> depths_;  // deepest slots verified lately
    PlannerStatus status_;
    std::int32_t expected_past_ = -1;  // n_past of the next round, if the text goes on
    std::int32_t draft_rounds_ = 0;
    std::int32_t plain_rounds_ = 0;
    std::int32_t since_plain_ = 0;
    std::int32_t reference_after_ = reference_interval;
    bool drafting_ = false;
    bool trial_ = false;
    bool promising_ = false;  // the plan of the trial under way

    [[nodiscard]] bool costs_known() const noexcept;
    [[nodiscard]] double plain_ms(std::int32_t n_past) const;
    [[nodiscard]] double draft_cost(const RoundView & view) const;
    [[nodiscard]] std::int32_t untried_rows(std::int32_t nodes) const;
    [[nodiscard]] std::int32_t doubted_rows(std::int32_t nodes) const;
    [[nodiscard]] double untried_ms(std::int32_t rows, std::int32_t n_past) const;
    void note_view(const RoundView & view);
    void judge_drafting(const RoundView & view, std::span<const WidthOption> options);
    [[nodiscard]] RoundSource choose_trial(const RoundView & view);
    [[nodiscard]] std::vector<float> chain_probs(const RoundView & view) const;
    struct ChainWorth {
        std::vector<float> expected;       // tokens by nodes
        std::vector<WidthOption> options;  // those that the answer can afford to lose
        double rate = 0.0;                 // tokens per ms
    };
    [[nodiscard]] ChainWorth chain_worth(const RoundView & view, std::span<const WidthOption> options) const;
    [[nodiscard]] DraftTree plan_chain(const RoundView & view);
    [[nodiscard]] DraftTree plan_draft(const RoundView & view, const DraftCandidates & candidates);

    void observe_costs(const RoundOutcome & outcome);
    void learn_drafted(const RoundOutcome & outcome, std::span<const llama_token> tokens);
    void judge_trial(std::int32_t n_right);
    void learn_offered(const RoundOutcome & outcome, std::span<const llama_token> tokens);
    void observe_offered(std::int32_t depth, bool accepted);
    void settle(const RoundOutcome & outcome);
    void settle_oldest();
};

}  // namespace dflash
