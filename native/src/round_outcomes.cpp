// What the planner learns from a finished round: times, acceptance, and what it really won.
#include <algorithm>
#include <cmath>

#include "dflash/round_planner.h"

namespace dflash {

namespace {

constexpr std::size_t settle_delay = 2;     // rounds: the load around a round is known once two more are over
constexpr double outlier = 3.0;             // times the prediction: beyond, something else held the machine up
constexpr double reference_miss = 0.05;     // of a logarithm: a plain round this far off is soon asked for again
constexpr std::int32_t reference_soon = 8;  // rounds

double fair_ms(double ms, double predicted) { return ms > outlier * predicted ? predicted : ms; }

std::int32_t extra_leaves(std::span<const DraftNode> nodes) {
    std::vector<bool> has_child(nodes.size() + 1, false);
    std::int32_t extra = 0;
    for (const DraftNode & node : nodes) {
        const auto parent = static_cast<std::size_t>(node.parent + 1);
        extra += has_child[parent] ? 1 : 0;
        has_child[parent] = true;
    }
    return extra;
}

/// The nodes after the accepted path's end, all of them refused by the target.
std::vector<llama_token> refused(const RoundOutcome & outcome) {
    std::vector<llama_token> out;
    const std::int32_t last = outcome.accepted.empty() ? -1 : outcome.accepted.back();
    for (const DraftNode & node : outcome.verified) {
        if (node.parent == last && !outcome.cut_short) {
            out.push_back(node.token);
        }
    }
    return out;
}

}  // namespace

void RoundPlanner::observe(const RoundOutcome & outcome) {
    observe_costs(outcome);
    std::vector<llama_token> accepted;
    if (outcome.tokens.empty()) {
        for (const std::int32_t node : outcome.accepted) {
            accepted.push_back(outcome.verified[static_cast<std::size_t>(node)].token);
        }
    }
    const std::span<const llama_token> tokens =
        outcome.tokens.empty() ? std::span<const llama_token>(accepted) : outcome.tokens;
    settle(outcome);
    learn_offered(outcome, tokens);
    learn_drafted(outcome, tokens);
    expected_past_ = outcome.n_past + outcome.emitted;
}

void RoundPlanner::observe_costs(const RoundOutcome & outcome) {
    const auto rows = static_cast<std::int32_t>(outcome.verified.size()) + 1;
    if (rows == 1) {
        const double predicted = costs_.target_ms(1, outcome.n_past);
        const bool off = since_plain_ > 0 && predicted > 0.0 && outcome.target_ms > 0.0 &&
                         std::abs(std::log(outcome.target_ms / predicted)) > reference_miss;
        reference_after_ = off ? reference_soon : reference_interval;
        since_plain_ = 0;
        ++plain_rounds_;
    } else {
        ++since_plain_;
    }
    costs_.observe_target(rows, outcome.n_past, outcome.target_ms);
    if (outcome.draft_ms > 0.0 && outcome.source == RoundSource::drafter) {
        costs_.observe_draft(outcome.draft_slots, outcome.draft_ms);
    }
    costs_.observe_rest(outcome.emitted, outcome.total_ms - outcome.target_ms - outcome.draft_ms,
                        extra_leaves(outcome.verified));
}

void RoundPlanner::learn_drafted(const RoundOutcome & outcome, std::span<const llama_token> tokens) {
    const DraftCandidates & candidates = drafted_.candidates;
    if (!drafted_.alive || outcome.n_past != drafted_.n_past + drafted_.consumed) {
        drafted_.alive = false;
        return;
    }
    std::int32_t slot = drafted_.consumed;
    for (std::size_t i = 0; i < tokens.size() && drafted_.alive; ++i) {
        if (slot >= candidates.n_slots) {
            drafted_.alive = false;
            break;
        }
        acceptance_.observe(candidates, slot, tokens[i]);
        // Slots beyond are conditioned on a path the drafter offered: the accepted one, or its likeliest.
        const bool walked = i < outcome.accepted.size();
        const std::size_t best = static_cast<std::size_t>(slot) * candidates.top_k;
        drafted_.alive = walked || candidates.ids[best] == tokens[i];
        slot += drafted_.alive ? 1 : 0;
    }
    drafted_.consumed = slot;
    if (drafted_.alive && outcome.tokens.empty()) {
        if (slot < candidates.n_slots) {
            acceptance_.observe_rejected(candidates, slot, refused(outcome));
        }
        drafted_.alive = false;  // what came instead is not known
    }
    if (!drafted_.alive && drafted_.trial) {
        judge_trial(slot);
    }
}

void RoundPlanner::judge_trial(std::int32_t n_right) {
    const double plain = plain_ms(drafted_.n_past);
    const double draft = costs_.draft_ms(drafted_.candidates.n_slots);
    for (const WidthOption & option : width_options(costs_, drafted_.n_past, drafted_.candidates.n_slots)) {
        const double emitted = 1.0 + std::min(option.nodes, n_right);
        if (emitted * plain > draft + option.ms + costs_.rest_ms(emitted)) {
            draft_purse_.refund();
            return;
        }
    }
}

void RoundPlanner::observe_offered(std::int32_t depth, bool accepted) {
    if (offered_.source == NodeSource::grammar) {
        forced_.observe(accepted);
    } else {
        copies_.observe(offered_.evidence, depth, accepted);
    }
}

void RoundPlanner::learn_offered(const RoundOutcome & outcome, std::span<const llama_token> tokens) {
    if (offered_.n_past != outcome.n_past) {
        return;
    }
    const std::vector<llama_token> & chain = offered_.chain;
    for (std::size_t i = 0; i < tokens.size() && i < chain.size(); ++i) {
        const bool right = tokens[i] == chain[i];
        observe_offered(static_cast<std::int32_t>(i) + 1, right);
        if (!right) {
            return;
        }
    }
    if (outcome.tokens.empty() && tokens.size() < chain.size()) {
        const std::vector<llama_token> wrong = refused(outcome);
        if (std::ranges::find(wrong, chain[tokens.size()]) != wrong.end()) {
            observe_offered(static_cast<std::int32_t>(tokens.size()) + 1, false);
        }
    }
}

void RoundPlanner::settle(const RoundOutcome & outcome) {
    const auto rows = static_cast<std::int32_t>(outcome.verified.size()) + 1;
    const double predicted = costs_.target_ms(rows, outcome.n_past) + costs_.rest_ms(outcome.emitted) +
                             (outcome.draft_ms > 0.0 ? costs_.draft_ms(outcome.draft_slots) : 0.0);
    const double plain = plain_ms(outcome.n_past);
    draft_purse_.pass(outcome.emitted);
    chain_purse_.pass(outcome.emitted);
    draft_guard_.pass(outcome.emitted);
    chain_guard_.pass(outcome.emitted);
    if (trial_ && plain > 0.0) {
        const double cost = fair_ms(outcome.total_ms, predicted) / plain - outcome.emitted;
        TrialPurse & purse = outcome.source == RoundSource::drafter ? draft_purse_ : chain_purse_;
        purse.settle(cost, promising_ || cost < 0.0);
        ++status_.trials;
    }
    stake_.pass(outcome.emitted);
    if (plain > 0.0 && (rows > 1 || outcome.draft_ms > 0.0)) {
        stake_.settle(outcome.emitted - predicted / plain);
    }
    unsettled_.push_back(
        {outcome.source, trial_, outcome.n_past, outcome.emitted, predicted / costs_.load(), outcome.total_ms});
    trial_ = false;
    if (unsettled_.size() > settle_delay) {
        settle_oldest();
    }
}

void RoundPlanner::settle_oldest() {
    const Unsettled round = unsettled_.front();
    unsettled_.pop_front();
    const double plain = plain_ms(round.n_past);
    if (round.source == RoundSource::plain || round.trial || plain <= 0.0) {
        return;
    }
    const double spent = fair_ms(round.total_ms, round.predicted_ms * costs_.load()) / plain;
    (round.source == RoundSource::drafter ? draft_guard_ : chain_guard_).settle(spent, round.emitted);
}

}  // namespace dflash
