// What a round verifies: gathers what is on offer (a forced text, a copy, the drafter's block) and asks the planner.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "dflash/engine.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::int32_t most_forced = 16;  // tokens
constexpr std::size_t most_top_k = 64;

double ms_between(RoundClock::time_point from, RoundClock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
}

/// Leading tokens that the grammar allows one after the other.
std::size_t n_allowed(const GrammarAhead & grammar, std::span<const llama_token> tokens) {
    const std::unique_ptr<GrammarAhead> ahead = grammar.clone();
    std::size_t n = 0;
    for (; n < tokens.size(); ++n) {
        bool allowed = false;
        ahead->allowed(tokens.subspan(n, 1), std::span(&allowed, 1));
        if (!allowed) {
            break;
        }
        ahead->accept(tokens[n]);
    }
    return n;
}

/// Moves the candidates that are allowed to the front, in their order, and gives them the probability of the others,
/// which becomes 0. False where none is allowed.
bool keep_allowed(std::span<const bool> allowed, std::span<std::int32_t> ids, std::span<float> log_probs) {
    double kept = 0.0;
    std::size_t n = 0;
    for (std::size_t k = 0; k < ids.size(); ++k) {
        if (!allowed[k]) {
            continue;
        }
        kept += std::exp(static_cast<double>(log_probs[k]));
        const auto to = static_cast<std::ptrdiff_t>(n++);
        const auto from = static_cast<std::ptrdiff_t>(k);
        std::rotate(ids.begin() + to, ids.begin() + from, ids.begin() + from + 1);
        std::rotate(log_probs.begin() + to, log_probs.begin() + from, log_probs.begin() + from + 1);
    }
    if (n == 0 || kept <= 0.0) {
        return false;
    }
    for (std::size_t k = 0; k < ids.size(); ++k) {
        log_probs[k] =
            k < n ? log_probs[k] - static_cast<float>(std::log(kept)) : -std::numeric_limits<float>::infinity();
    }
    return true;
}

}  // namespace

std::int32_t Engine::most_nodes() const {
    const std::int32_t cells = target_.n_ctx() - session_.n_decoded() - 1;
    return std::max(0, std::min({cells, target_.n_chunk() - 1, RoundPlanner::max_nodes}));
}

std::int32_t Engine::slots_to_draft(const RoundOptions & options) const {
    const bool usable = drafter_ && failure_.empty();
    return usable ? std::min({drafter_->spec().block_size - 1, most_nodes(), options.max_emit - 1}) : 0;
}

bool Engine::may_draft(const RoundOptions & options) const {
    return options.draft_rows != 0 && options.max_emit > 1 && session_.n_pending() == 1 && session_.has_emitted() &&
           most_nodes() > 0 && (can_copy_ || slots_to_draft(options) > 0);
}

void Engine::gather_offer(llama_sampler * sampler, std::int32_t n) {
    offer_ = {};
    std::unique_ptr<GrammarAhead> found =
        GrammarAhead::of(sampler, llama_model_get_vocab(target_.model()), vocab_bytes_);
    if (!found || !grammar_ || !found->same_source(*grammar_)) {
        grammar_ = std::move(found);
    }
    if (grammar_) {
        grammar_->rewind();
        offer_.chain = grammar_->forced(std::min(n, most_forced), session_.tokens());
        if (!offer_.chain.empty()) {
            offer_.source = NodeSource::grammar;
            return;
        }
    }
    if (!can_copy_) {
        return;
    }
    copies_.sync(session_.tokens());
    CopyProposal copy = copies_.propose(n);
    if (grammar_) {
        copy.tokens.resize(n_allowed(*grammar_, copy.tokens));
    }
    offer_.chain = std::move(copy.tokens);
    offer_.match_length = copy.match_length;
    offer_.n_sources = copy.n_sources;
    offer_.n_agreeing = copy.n_agreeing;
}

void Engine::prune_candidates() {
    const auto top_k = static_cast<std::size_t>(candidates_.top_k);
    if (!grammar_ || top_k > most_top_k) {
        return;
    }
    const std::unique_ptr<GrammarAhead> ahead = grammar_->clone();
    std::array<bool, most_top_k> storage{};
    const std::span<bool> allowed(storage.data(), top_k);
    // Slots are judged along the likeliest path; a token that is forbidden elsewhere only costs its row.
    for (std::int32_t slot = 0; slot < candidates_.n_slots; ++slot) {
        const std::size_t first = static_cast<std::size_t>(slot) * top_k;
        const std::span<std::int32_t> ids = std::span(candidates_.ids).subspan(first, top_k);
        ahead->allowed(ids, allowed);
        if (!keep_allowed(allowed, ids, std::span(candidates_.log_probs).subspan(first, top_k))) {
            candidates_.n_slots = slot;
            candidates_.ids.resize(first);
            candidates_.log_probs.resize(first);
            return;
        }
        ahead->accept(ids[0]);
    }
}

bool Engine::make_draft(std::int32_t n_slots, double & draft_ms) {
    const RoundClock::time_point start = RoundClock::now();
    PendingTaps & pending = session_.pending();
    try {
        drafter_->draft(*session_.draft_context, pending.pos0, pending.rows, session_.tokens().back(), candidates_,
                        n_slots);
    } catch (const Error & error) {
        drafter_failed(error.what());
        return false;
    }
    pending.rows.clear();
    pending.pos0 = session_.draft_context->end();
    draft_ms = ms_between(start, RoundClock::now());
    return true;
}

DraftTree Engine::fixed_tree(const RoundOptions & options, const RoundPlan & plan) const {
    const std::int32_t leaves = std::min({options.draft_leaves, target_.max_leaves(), max_tree_leaves});
    TreeInputs inputs;
    std::vector<float> probs;
    if (plan.source == RoundSource::drafter) {
        if (leaves == 1) {
            return DraftTree::chain(candidates_, plan.draft_slots);
        }
        probs.resize(candidates_.log_probs.size());
        std::ranges::transform(candidates_.log_probs, probs.begin(), [](float log_prob) { return std::exp(log_prob); });
        inputs.candidates = &candidates_;
        inputs.probs = probs;
    } else {
        probs.assign(offer_.chain.size(), 1.0F);
        inputs.chain = offer_.chain;
        inputs.chain_probs = probs;
        inputs.chain_source = offer_.source;
    }
    return DraftTree::grow(
        inputs, {.max_nodes = std::min(options.draft_rows, most_nodes()), .max_leaves = leaves, .seed_depth = 0});
}

RoundPlan Engine::plan_fixed(llama_sampler * sampler, const RoundOptions & options) {
    RoundPlan plan;
    const std::int32_t slots = std::min(options.draft_rows, slots_to_draft(options));
    if (slots > 0 && make_draft(slots, plan.draft_ms)) {
        plan.source = RoundSource::drafter;
        plan.draft_slots = slots;
    } else if (!drafter_) {
        gather_offer(sampler, std::min({options.draft_rows, most_nodes(), options.max_emit - 1}));
        plan.source = offer_.chain.empty() ? RoundSource::plain : RoundSource::chain;
    }
    if (plan.source != RoundSource::plain) {
        plan.tree = fixed_tree(options, plan);
    }
    return plan;
}

RoundPlan Engine::plan_round(llama_sampler * sampler, const RoundOptions & options) {
    if (options.draft_rows != draft_auto) {
        return plan_fixed(sampler, options);
    }
    RoundPlan plan;
    gather_offer(sampler, std::min(most_nodes(), options.max_emit - 1));
    RoundView view{
        .n_past = session_.n_decoded(),
        .max_nodes = most_nodes(),
        .n_slots = slots_to_draft(options),
        .max_leaves = keeps_bits_ ? 1 : std::min(target_.max_leaves(), max_tree_leaves),
        .chain = offer_.chain,
        .chain_source = offer_.source,
        .match_length = offer_.match_length,
        .n_sources = offer_.n_sources,
        .n_agreeing = offer_.n_agreeing,
    };
    plan.source = planner_.choose(view);
    if (plan.source == RoundSource::drafter) {
        const std::int32_t slots = planner_.draft_slots(view);
        if (make_draft(slots, plan.draft_ms)) {
            plan.draft_slots = slots;
            prune_candidates();
            plan.tree = planner_.plan(view, &candidates_);
            return plan;
        }
        view.n_slots = 0;
        plan.source = planner_.choose(view);
    }
    if (plan.source == RoundSource::chain) {
        plan.tree = planner_.plan(view, nullptr);
    }
    return plan;
}

}  // namespace dflash
