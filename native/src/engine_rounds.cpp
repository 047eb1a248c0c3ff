// Rounds, plain and drafted, each a transaction over target K/V, drafter context and tokens.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "dflash/engine.h"
#include "dflash/error.h"
#include "dflash/verifier.h"
#include "engine_guard.h"

namespace dflash {

std::vector<llama_token> Engine::round(llama_sampler * sampler, const RoundOptions & options) {
    if (sampler == nullptr || options.max_emit < 1 || options.draft_rows < draft_auto || options.draft_leaves < 1) {
        throw Error(ErrorCode::invalid_argument,
                    "round needs a sampler, max_emit >= 1, draft_rows >= -1 and draft_leaves >= 1");
    }
    while (prefill()) {
    }
    if (session_.n_pending() < 1) {
        throw Error(ErrorCode::invalid_argument, "nothing to decode: begin a conversation first");
    }
    if (session_.n_tokens() > target_.n_ctx()) {
        throw Error(ErrorCode::context_overflow, "the context of " + std::to_string(target_.n_ctx()) +
                                                     " tokens is full; start anew or use a larger one (--ctx)");
    }
    const RoundClock::time_point start = RoundClock::now();
    RoundPlan plan;
    if (may_draft(options)) {
        plan = plan_round(sampler, options);
    }
    plan.start = start;
    return plan.tree.size() > 0 ? draft_round(sampler, options, plan) : plain_round(sampler, options, plan);
}

std::vector<llama_token> Engine::plain_round(llama_sampler * sampler, const RoundOptions & options,
                                             const RoundPlan & plan) {
    RollbackGuard guard(*this);
    RoundTimes times;
    const std::int32_t pos0 = session_.n_decoded();
    const std::int32_t n_rows = session_.n_pending();
    const bool tapped = wants_taps(pos0 + n_rows - 1);
    const RoundClock::time_point decoding = RoundClock::now();
    decode_prompt_chunk(n_rows, true, options.all_logits);
    times.target = ms_since(decoding);

    const RoundClock::time_point sampling = RoundClock::now();
    walked_rows_ = n_rows;
    if (options.on_sample) {
        options.on_sample();
    }
    const std::vector<llama_token> emitted{sample_row(sampler, n_rows - 1)};
    times.sample = ms_since(sampling);

    times.draft = plan.draft_ms;
    if (tapped) {
        const RoundClock::time_point injecting = RoundClock::now();
        keep_taps(pos0, n_rows);
        times.draft += ms_since(injecting);
    }
    times.total = ms_since(plan.start);
    const bool in_run = session_.has_emitted();
    session_.commit({pos0, n_rows, n_rows, 1, RoundKind::plain, true, options.all_logits}, emitted, times,
                    note_of(plan, {}));
    output_rows_.resize(options.all_logits ? static_cast<std::size_t>(n_rows) : 1);
    std::iota(output_rows_.begin(), output_rows_.end(), options.all_logits ? 0 : n_rows - 1);
    guard.release();
    if (in_run && n_rows == 1) {
        planner_.observe({.source = plan.source,
                          .n_past = pos0,
                          .verified = {},
                          .accepted = {},
                          .tokens = emitted,
                          .emitted = 1,
                          .cut_short = ends_text(emitted.back()),
                          .target_ms = times.target,
                          .draft_ms = plan.draft_ms,
                          .draft_slots = plan.draft_slots,
                          .total_ms = times.total});
    }
    return emitted;
}

bool Engine::ends_text(llama_token token) const {
    return llama_vocab_is_eog(llama_model_get_vocab(target_.model()), token);
}

Walk Engine::walk_tree(llama_sampler * sampler, const RoundOptions & options, const DraftTree & tree) {
    const auto sample = [&](std::int32_t row) {
        if (row > 0) {
            session_.show_walked(tree.nodes()[static_cast<std::size_t>(row - 1)].token);
        }
        ++walked_rows_;
        if (options.on_sample) {
            options.on_sample();
        }
        return sample_row(sampler, row);
    };
    return walk(tree, options.max_emit, sample, [this](llama_token token) { return ends_text(token); });
}

std::vector<llama_token> Engine::draft_round(llama_sampler * sampler, const RoundOptions & options,
                                             const RoundPlan & plan) {
    RollbackGuard guard(*this);
    RoundTimes times;
    times.draft = plan.draft_ms;
    const DraftTree & tree = plan.tree;
    const std::int32_t pos0 = session_.n_decoded();
    const std::vector<Row> rows = verify_rows(tree, session_.tokens().back(), pos0);
    const bool tapped = wants_taps(pos0);
    const RoundClock::time_point decoding = RoundClock::now();
    target_.share_prefix(n_leaves(rows), pos0);
    target_.decode(rows, tapped);
    times.target = ms_since(decoding);

    const RoundClock::time_point sampling = RoundClock::now();
    const Walk path = walk_tree(sampler, options, tree);
    times.sample = ms_since(sampling);

    const auto n_rows = static_cast<std::int32_t>(rows.size());
    const auto n_kept = static_cast<std::int32_t>(path.emitted.size());
    DecodeRecord record{pos0, n_rows, n_kept, n_kept, RoundKind::draft, true, true};
    if (tapped) {
        keep_taps(pos0, path.kept_rows);
    }
    bool rewound = true;
    if (n_leaves(rows) > 1) {
        target_.keep_leaf(leaf_of(rows[static_cast<std::size_t>(path.kept_rows.back())]), pos0, pos0 + n_kept);
        record.tree = {parents_of(tree), path.kept_rows};
    } else {
        rewound = n_kept == n_rows || target_.rewind(pos0 + n_kept);
    }
    times.total = ms_since(plan.start);
    session_.commit(record, path.emitted, times, note_of(plan, path.kept_rows));
    output_rows_ = path.kept_rows;
    guard.release();
    if (!rewound) {
        session_.forget_decoded();
    }
    observe_draft(plan, path, pos0, times, options);
    return path.emitted;
}

DraftNote Engine::note_of(const RoundPlan & plan, std::span<const std::int32_t> kept_rows) const {
    DraftNote note;
    if (plan.draft_slots > 0) {
        note.source = DraftSource::drafter;
    } else if (plan.tree.size() > 0) {
        note.source = offer_.source == NodeSource::grammar ? DraftSource::grammar : DraftSource::copy;
    }
    for (const DraftNode & node : plan.tree.nodes()) {
        note.copied += node.source == NodeSource::copy ? 1 : 0;
    }
    for (const std::int32_t row : kept_rows) {
        const bool copied = row > 0 && plan.tree.nodes()[static_cast<std::size_t>(row - 1)].source == NodeSource::copy;
        note.copied_accepted += copied ? 1 : 0;
    }
    return note;
}

void Engine::observe_draft(const RoundPlan & plan, const Walk & path, std::int32_t pos0, const RoundTimes & times,
                           const RoundOptions & options) {
    std::vector<std::int32_t> accepted;
    for (const std::int32_t row : std::span(path.kept_rows).subspan(1)) {
        accepted.push_back(row - 1);
    }
    const auto n_emitted = static_cast<std::int32_t>(path.emitted.size());
    planner_.observe({.source = plan.source,
                      .n_past = pos0,
                      .verified = plan.tree.nodes(),
                      .accepted = accepted,
                      .tokens = path.emitted,
                      .emitted = n_emitted,
                      .cut_short = n_emitted == options.max_emit || ends_text(path.emitted.back()),
                      .target_ms = times.target,
                      .draft_ms = plan.draft_ms,
                      .draft_slots = plan.draft_slots,
                      .total_ms = times.total});
}

}  // namespace dflash
