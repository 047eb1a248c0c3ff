// Chooses the source of a round and the tree that it verifies.
#include "dflash/round_planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

namespace dflash {

namespace {

constexpr double start_margin = 1.02;   // speed against plain to begin with drafting, by the steady estimate
constexpr double recent_margin = 1.10;  // and by the recent one
constexpr double stay_recent = 1.05;
constexpr double distrust_margin = 0.03;  // more, for each strike of the guard since drafting last won
constexpr std::int32_t most_distrust = 5;
constexpr double chain_margin = 1.01;  // over the best of plain and drafting
constexpr float chain_floor = 0.02F;   // path probability below which a chain is not followed
constexpr std::array<std::int32_t, 3> trial_rows{2, 4, 8};
constexpr std::int32_t trial_observations = 2;
constexpr double trial_row_guess = 0.25;  // of a plain round, per row of a width never measured
constexpr double trial_hope = 0.7;        // speed against plain that a width never measured must promise
constexpr double doubt_hope = 0.5;        // and one that only the table knows
constexpr std::int32_t doubts_after = 4;  // draft rounds
constexpr float trial_chain_prob = 0.6F;
constexpr std::size_t depth_history = 8;  // draft rounds
constexpr std::int32_t all_slots_every = 16;
constexpr double slots_worth = 0.01;  // of a plain round: what fewer slots must save

struct Plan {
    DraftTree tree;
    WidthChoice choice;
};

/// What the leaves of a tree cost by its number of nodes.
std::vector<float> leaf_times(const DraftTree & tree, double leaf_ms) {
    std::vector<float> out{0.0F};
    out.reserve(static_cast<std::size_t>(tree.size()) + 1);
    std::vector<bool> has_child(static_cast<std::size_t>(tree.size()) + 1, false);
    for (const DraftNode & node : tree.nodes()) {
        const auto parent = static_cast<std::size_t>(node.parent + 1);
        out.push_back(out.back() + (has_child[parent] ? static_cast<float>(leaf_ms) : 0.0F));
        has_child[parent] = true;
    }
    return out;
}

}  // namespace

bool RoundPlanner::costs_known() const noexcept {
    return costs_.widths().size() > 1 || (!costs_.widths().empty() && plain_rounds_ >= plain_needed);
}

double RoundPlanner::plain_ms(std::int32_t n_past) const { return costs_.target_ms(1, n_past) + costs_.rest_ms(1.0); }

double RoundPlanner::draft_cost(const RoundView & view) const {
    const double known = costs_.draft_ms(draft_slots(view));
    return known > 0.0 ? known : plain_ms(view.n_past);
}

std::int32_t RoundPlanner::untried_rows(std::int32_t nodes) const {
    const std::span<const std::int32_t> widths = costs_.widths();
    for (const std::int32_t rows : trial_rows) {
        const bool tried = std::ranges::any_of(widths, [&](std::int32_t width) {
            return 2 * width > rows && width > 1 && width < 2 * rows &&
                   costs_.observations(width) >= trial_observations;
        });
        if (!tried) {
            return rows - 1 <= nodes ? rows : 0;
        }
    }
    return 0;
}

/// A width that only the table knows: its price may be the reason why it is not used.
std::int32_t RoundPlanner::doubted_rows(std::int32_t nodes) const {
    if (draft_rounds_ < doubts_after) {
        return 0;
    }
    for (const std::int32_t rows : costs_.widths()) {
        if (rows > 1 && rows - 1 <= nodes && !costs_.seen(rows)) {
            return rows;
        }
    }
    return 0;
}

double RoundPlanner::untried_ms(std::int32_t rows, std::int32_t n_past) const {
    return costs_.widths().size() > 1 ? costs_.target_ms(rows, n_past)
                                      : costs_.target_ms(1, n_past) * (1.0 + trial_row_guess * (rows - 1));
}

std::int32_t RoundPlanner::draft_slots(const RoundView & view) const {
    if (!drafting_ || depths_.size() < depth_history || draft_rounds_ % all_slots_every == 0) {
        return view.n_slots;
    }
    const std::int32_t deepest = *std::ranges::max_element(depths_);
    const std::int32_t slots = std::min(view.n_slots, deepest + 2);
    const double saved = costs_.draft_ms(view.n_slots) - costs_.draft_ms(slots);
    return saved > slots_worth * plain_ms(view.n_past) ? slots : view.n_slots;
}

void RoundPlanner::note_view(const RoundView & view) {
    if (view.n_past != expected_past_) {
        draft_purse_.hurry();  // another text
        stake_.begin();
        expected_past_ = view.n_past;
    }
    offered_.chain.assign(view.chain.begin(), view.chain.end());
    offered_.source = view.chain_source;
    offered_.evidence = {view.match_length, view.n_sources, view.n_agreeing};
    offered_.n_past = view.n_past;
}

void RoundPlanner::judge_drafting(const RoundView & view, std::span<const WidthOption> options) {
    const double plain = 1.0 / plain_ms(view.n_past);
    const double draft = draft_cost(view);
    // Early on the calibration still moves: old expectations are worth little.
    const double memory = std::clamp(draft_rounds_ / 3.0, 1.5, DraftWorth::steady);
    const RoundTerms terms{plain, costs_.rest_ms(1.0)};
    const DraftRate steady = worth_.rate(options, draft, terms, memory);
    const DraftRate recent = worth_.rate(options, draft, terms, std::min(memory, DraftWorth::recent));
    const double speed = std::max(steady.tokens_per_ms / plain, recent.tokens_per_ms / plain / recent_margin);
    const double wary = 1.0 + distrust_margin * std::min(draft_guard_.distrust(), most_distrust);
    const bool credit = drafting_ && draft_guard_.has_credit();
    drafting_ = !draft_guard_.suspended() &&
                (credit || steady.tokens_per_ms > plain * wary * (drafting_ ? 1.0 : start_margin) ||
                 recent.tokens_per_ms > plain * wary * (drafting_ ? stay_recent : recent_margin));
    status_.draft_speed = speed;
    status_.draft_tokens = steady.emitted;
    status_.needed_tokens = steady.ms * plain;
    status_.lambda = drafting_ ? std::max({plain, steady.tokens_per_ms, recent.tokens_per_ms}) : plain;
}

RoundSource RoundPlanner::choose(const RoundView & view) {
    note_view(view);
    trial_ = false;
    if (view.max_nodes < 1 || (view.n_slots < 1 && view.chain.empty()) || !costs_known()) {
        return RoundSource::plain;
    }
    const std::vector<WidthOption> options = width_options(costs_, view.n_past, std::min(view.max_nodes, max_nodes));
    if (view.n_slots > 0) {
        judge_drafting(view, options);
    } else {
        drafting_ = false;
        status_.lambda = 1.0 / plain_ms(view.n_past);
    }
    if (since_plain_ >= reference_after_) {
        return RoundSource::plain;
    }
    if (!view.chain.empty() && !chain_guard_.suspended() &&
        chain_worth(view, options).rate > chain_margin * status_.lambda) {
        return RoundSource::chain;
    }
    return drafting_ ? RoundSource::drafter : choose_trial(view);
}

RoundSource RoundPlanner::choose_trial(const RoundView & view) {
    const double plain = plain_ms(view.n_past);
    if (view.n_slots > 0 && !draft_guard_.suspended() && draft_purse_.due(draft_cost(view) / plain)) {
        trial_ = true;
        return RoundSource::drafter;
    }
    const auto length = static_cast<std::int32_t>(view.chain.size());
    const std::int32_t rows = untried_rows(std::min(view.max_nodes, length));
    if (rows > 0 && !chain_guard_.suspended() && chain_probs(view)[0] >= trial_chain_prob &&
        chain_purse_.due(untried_ms(rows, view.n_past) / plain - 1.0)) {
        trial_ = true;
        return RoundSource::chain;
    }
    return RoundSource::plain;
}

std::vector<float> RoundPlanner::chain_probs(const RoundView & view) const {
    const CopyEvidence evidence{view.match_length, view.n_sources, view.n_agreeing};
    std::vector<float> out;
    const std::size_t n = std::min(view.chain.size(), static_cast<std::size_t>(max_nodes));
    out.reserve(n);
    float path = 1.0F;
    for (std::size_t i = 0; i < n && path > chain_floor; ++i) {
        const bool forced = view.chain_source == NodeSource::grammar;
        out.push_back(forced ? forced_.prob() : copies_.cautious_prob(evidence, static_cast<std::int32_t>(i) + 1));
        path *= out.back();
    }
    return out;
}

RoundPlanner::ChainWorth RoundPlanner::chain_worth(const RoundView & view, std::span<const WidthOption> options) const {
    ChainWorth worth;
    worth.expected.push_back(1.0F);
    float path = 1.0F;
    for (const float prob : chain_probs(view)) {
        path *= prob;
        worth.expected.push_back(worth.expected.back() + path);
    }
    const double plain = plain_ms(view.n_past);
    const double rest = costs_.rest_ms(1.0);
    for (const WidthOption & option : options) {
        const WidthRisk risk = width_risk(worth.expected, option.nodes, (option.ms + rest) / plain);
        if (option.nodes == 0 || stake_.allows(risk.loss, risk.gain)) {
            worth.options.push_back(option);
        }
    }
    worth.rate = 1.0 / plain;
    for (int step = 0; step < 3; ++step) {
        const WidthChoice choice = best_width(worth.expected, {}, worth.options, {worth.rate, rest});
        worth.rate = std::max(worth.rate, choice.emitted / choice.ms);
    }
    return worth;
}

DraftTree RoundPlanner::plan(const RoundView & view, const DraftCandidates * candidates) {
    note_view(view);
    promising_ = false;
    drafted_.alive = false;
    if (view.max_nodes < 1 || !costs_known()) {
        return {};
    }
    return candidates != nullptr ? plan_draft(view, *candidates) : plan_chain(view);
}

DraftTree RoundPlanner::plan_chain(const RoundView & view) {
    const std::vector<WidthOption> options = width_options(costs_, view.n_past, std::min(view.max_nodes, max_nodes));
    const std::vector<float> probs = chain_probs(view);
    TreeInputs inputs;
    inputs.chain = view.chain;
    inputs.chain_probs = probs;
    inputs.chain_source = view.chain_source;
    DraftTree tree = DraftTree::grow(inputs, {options.back().nodes, 1, 0});
    const std::int32_t rows = trial_ ? untried_rows(tree.size()) : 0;
    if (rows > 0) {
        tree.cut(rows - 1);
        return tree;
    }
    // Within a copy the next round is another of its kind: the width with the best rate of its own.
    const ChainWorth worth = chain_worth(view, options);
    tree.cut(best_width(worth.expected, {}, worth.options, {worth.rate, costs_.rest_ms(1.0)}).nodes);
    return tree;
}

DraftTree RoundPlanner::plan_draft(const RoundView & view, const DraftCandidates & candidates) {
    std::int32_t room = std::min(view.max_nodes, max_nodes);
    const std::vector<WidthOption> options = width_options(costs_, view.n_past, room);
    const std::int32_t untried =
        untried_rows(std::min(room, std::max(view.n_slots, static_cast<std::int32_t>(view.chain.size()))));
    room = std::max(options.back().nodes, untried - 1);
    std::vector<float> probs;
    acceptance_.probs(candidates, probs);
    const std::vector<float> copied = chain_probs(view);
    const TreeInputs drafted{&candidates, probs, {}, {}, view.chain_source};
    const TreeInputs merged{&candidates, probs, view.chain, copied, view.chain_source};
    const TreeInputs chain{nullptr, {}, view.chain, copied, view.chain_source};

    const double plain = plain_ms(view.n_past);
    const double leaf = costs_.rest_ms(0.0, 1);
    const RoundTerms terms{std::max(status_.lambda, 1.0 / plain), costs_.rest_ms(1.0)};
    Plan best;
    best.choice.value = -1e300;
    const auto consider = [&](const TreeInputs & inputs, std::int32_t leaves) {
        Plan next{DraftTree::grow(inputs, {room, leaves, 0}), {}};
        std::vector<float> expected = expected_tokens(next.tree);
        next.choice = best_width(expected, leaf_times(next.tree, leaf), options, terms);
        if (next.choice.value > best.choice.value) {
            best = std::move(next);
        }
        return expected;
    };
    const bool trees = view.max_leaves > 1;
    std::vector<float> own = consider(drafted, 1);
    if (trees) {
        own = consider(drafted, view.max_leaves);
    }
    if (!view.chain.empty() && !chain_guard_.suspended()) {
        consider(chain, 1);
        consider(merged, view.max_leaves);
    }
    worth_.add(std::move(own));
    ++draft_rounds_;
    promising_ = best.choice.emitted * plain > best.choice.ms + draft_cost(view);

    const std::int32_t doubted = untried > 0 ? 0 : doubted_rows(best.tree.size());
    const std::int32_t rows = std::max(untried, doubted);
    if (rows > 0 && best.tree.size() >= rows - 1) {
        // A width never measured is tried where it might pay; the first one always.
        const double ms = untried_ms(rows, view.n_past) + draft_cost(view);
        const double emitted = expected_tokens(best.tree)[static_cast<std::size_t>(rows) - 1];
        const double hope = untried > 0 ? trial_hope : doubt_hope;
        const bool hopeful = costs_.widths().size() == 1 || emitted * plain > hope * ms;
        const double cost = ms / plain - emitted;
        if (hopeful && (trial_ ? draft_purse_.affords(cost) : draft_purse_.due(cost))) {
            trial_ = true;
            best.choice.nodes = rows - 1;
        }
    }
    best.tree.cut(best.choice.nodes);
    drafted_ = {candidates, view.n_past, 0, trial_, true};
    std::int32_t deepest = 0;
    for (const DraftNode & node : best.tree.nodes()) {
        deepest = std::max(deepest, node.depth);
    }
    depths_.push_back(deepest);
    if (depths_.size() > depth_history) {
        depths_.pop_front();
    }
    return std::move(best.tree);
}

std::string RoundPlanner::declined() const {
    if (drafting_) {
        return {};
    }
    char text[160];
    if (draft_guard_.suspended()) {
        std::snprintf(text, sizeof(text),
                      "drafting ran at %.2f of plain speed in its last rounds; it is tried again in %d tokens",
                      draft_guard_.struck_speed(), draft_guard_.pause_left());
        return text;
    }
    if (worth_.empty() || status_.draft_speed <= 0.0) {
        return "too few rounds so far to judge it";
    }
    std::snprintf(text, sizeof(text),
                  "drafting would run at %.2f of plain speed here (%.1f tokens per round expected, %.1f needed)",
                  status_.draft_speed, status_.draft_tokens, status_.needed_tokens);
    return text;
}

PlannerStatus RoundPlanner::status() const {
    PlannerStatus out = status_;
    out.load = costs_.load();
    out.draft_strikes = draft_guard_.strikes();
    out.chain_strikes = chain_guard_.strikes();
    return out;
}

}  // namespace dflash
