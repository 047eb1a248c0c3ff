// Decides, round by round, what to verify: nothing, a copy, or what the drafter offers. Pure: sees counts and times.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "dflash/cost_model.h"
#include "dflash/draft_tree.h"

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
    std::int32_t emitted = 1;
    bool cut_short = false;  // the walk ended by an end of text or a limit: nothing is learned beyond it
    double target_ms = 0.0;
    double draft_ms = 0.0;  // 0: no draft pass
    std::int32_t draft_slots = 0;
    double total_ms = 0.0;
};

/// Maximises expected emitted tokens per second over plain rounds, chains and draft passes. One decision (choose, and
/// plan without the draft pass between them) takes less than 50 microseconds.
class RoundPlanner {
  public:
    [[nodiscard]] CostModel & costs() noexcept { return costs_; }
    [[nodiscard]] const CostModel & costs() const noexcept { return costs_; }

    /// Before any draft pass. Without known costs: plain, but for now and then a trial of what is on offer.
    [[nodiscard]] RoundSource choose(const RoundView & view);
    /// The tree worth verifying, cut to a measured width; empty: one row is best after all. `candidates` is null for a
    /// chain.
    [[nodiscard]] DraftTree plan(const RoundView & view, const DraftCandidates * candidates);
    void observe(const RoundOutcome & outcome);

    /// Why the drafter is not used now; empty while it is, or was just tried with success.
    [[nodiscard]] std::string declined() const;

  private:
    CostModel costs_;
};

}  // namespace dflash
