// Rounds of plain decoding and of drafting, each a transaction over target K/V, drafter context and tokens.
#include "dflash/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <utility>

#include "dflash/draft_tree.h"
#include "dflash/error.h"
#include "dflash/verifier.h"

namespace dflash {

namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

/// Unless released, puts memories and tokens back to what the session says it holds.
class Engine::RollbackGuard {
  public:
    explicit RollbackGuard(Engine & engine) : engine_(engine), n_tokens_(engine.session_.n_tokens()) {}
    RollbackGuard(const RollbackGuard &) = delete;
    RollbackGuard & operator=(const RollbackGuard &) = delete;
    ~RollbackGuard() {
        engine_.walked_rows_ = 0;
        if (released_) {
            return;
        }
        engine_.output_rows_.clear();
        engine_.session_.drop_walked(n_tokens_);
        if (engine_.session_.draft_context) {
            engine_.session_.draft_context->rewind(engine_.session_.n_decoded());
        }
        engine_.rewind_memories(engine_.session_.n_decoded());
    }
    void release() noexcept { released_ = true; }

  private:
    Engine & engine_;
    std::int32_t n_tokens_;
    bool released_ = false;
};

Engine::Engine(llama_model * model, const llama_context_params & params, std::shared_ptr<Drafter> drafter,
               TapMode tap_mode)
    : drafter_(std::move(drafter)),
      target_(model, params, drafter_ ? drafter_->spec().tap_inputs : std::vector<std::int32_t>{}, tap_mode),
      session_(target_.feature_size()),
      flash_attn_(params.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED) {
    if (!drafter_) {
        return;
    }
    if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) {
        throw Error(ErrorCode::unsupported,
                    "this target keeps recurrent state, which this version cannot roll back after a rejected draft; "
                    "run it without a drafter (-d off)",
                    "general.architecture");
    }
    if (drafter_->feature_size() != target_.feature_size()) {
        throw Error(ErrorCode::incompatible_drafter,
                    "the drafter reads " + std::to_string(drafter_->feature_size()) +
                        " numbers per position, the target's taps give " + std::to_string(target_.feature_size()) +
                        "; use a drafter made for this target",
                    "fc.weight");
    }
    session_.draft_context = drafter_->new_context();
    session_.pending().rows.reserve(static_cast<std::size_t>(2 * max_pending_rows) *
                                    static_cast<std::size_t>(target_.feature_size()));
}

std::string Engine::declined() const {
    if (!drafter_) {
        return {};
    }
    return failure_.empty() ? planner_.declined() : failure_;
}

void Engine::drafter_failed(const std::string & why) { failure_ = why; }

void Engine::check_tokens(std::span<const llama_token> tokens) const {
    const std::int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(target_.model()));
    const auto bad = std::ranges::find_if(tokens, [&](llama_token token) { return token < 0 || token >= n_vocab; });
    if (bad != tokens.end()) {
        throw Error(
            ErrorCode::invalid_argument,
            "token id " + std::to_string(*bad) + " is outside the vocabulary of 0 to " + std::to_string(n_vocab - 1));
    }
}

void Engine::rewind_memories(std::int32_t pos) {
    if (!target_.rewind(pos)) {
        session_.forget_decoded();
    }
}

std::int32_t Engine::begin(std::span<const llama_token> prompt, bool reuse) {
    if (prompt.empty()) {
        throw Error(ErrorCode::invalid_argument, "the prompt holds no tokens; give at least one");
    }
    if (static_cast<std::int32_t>(prompt.size()) >= target_.n_ctx()) {
        throw Error(ErrorCode::context_overflow, "the prompt has " + std::to_string(prompt.size()) +
                                                     " tokens, the context holds " + std::to_string(target_.n_ctx()) +
                                                     "; shorten it or use a larger context (--ctx)");
    }
    check_tokens(prompt);
    target_.clear_cancel();
    session_.begin(prompt, reuse);
    output_rows_.clear();
    rewind_memories(session_.n_decoded());
    return session_.n_decoded();
}

void Engine::truncate(std::int32_t n) {
    if (n < 0) {
        throw Error(ErrorCode::invalid_argument, "cannot keep " + std::to_string(n) + " tokens");
    }
    if (n < session_.n_tokens()) {
        rewind_memories(session_.truncate(n));
    }
}

void Engine::append(std::span<const llama_token> tokens) {
    check_tokens(tokens);
    session_.append(tokens);
}

void Engine::reset() {
    session_.clear();
    output_rows_.clear();
    rewind_memories(0);
    target_.clear_cancel();
}

void Engine::decode_prompt_chunk(std::int32_t n_rows, bool last, bool all_logits) {
    const std::int32_t pos0 = session_.n_decoded();
    std::vector<Row> rows;
    rows.reserve(static_cast<std::size_t>(n_rows));
    for (std::int32_t i = 0; i < n_rows; ++i) {
        rows.push_back(
            {session_.tokens()[static_cast<std::size_t>(pos0 + i)], pos0 + i, all_logits || (last && i + 1 == n_rows)});
    }
    target_.decode(rows, wants_taps(pos0 + n_rows - 1));
}

bool Engine::prefill() {
    const std::int32_t chunk = target_.n_chunk();
    if (session_.n_pending() <= chunk) {
        return false;
    }
    RollbackGuard guard(*this);
    const Clock::time_point start = Clock::now();
    const std::int32_t pos0 = session_.n_decoded();
    const bool tapped = wants_taps(pos0 + chunk - 1);
    decode_prompt_chunk(chunk, false, false);
    if (tapped) {
        keep_taps(pos0, chunk);
    }
    RoundTimes times;
    times.total = times.target = ms_since(start);
    session_.commit({pos0, chunk, chunk, 0, RoundKind::prefill, true, false}, {}, times);
    output_rows_.clear();
    guard.release();
    return session_.n_pending() > chunk;
}

void Engine::eval(std::span<const llama_token> tokens, bool all_logits) {
    const std::int32_t n_rows = session_.n_pending() + static_cast<std::int32_t>(tokens.size());
    if (n_rows < 1 || n_rows > target_.n_chunk()) {
        throw Error(ErrorCode::invalid_argument, "eval decodes 1 to " + std::to_string(target_.n_chunk()) +
                                                     " tokens, waiting ones included, not " + std::to_string(n_rows));
    }
    const std::int32_t pos0 = session_.n_decoded();
    if (pos0 + n_rows > target_.n_ctx()) {
        throw Error(ErrorCode::context_overflow, "the context of " + std::to_string(target_.n_ctx()) +
                                                     " tokens is full; start anew or use a larger one (--ctx)");
    }
    check_tokens(tokens);
    RollbackGuard guard(*this);
    session_.append(tokens);
    std::vector<Row> rows;
    rows.reserve(static_cast<std::size_t>(n_rows));
    for (std::int32_t i = 0; i < n_rows; ++i) {
        rows.push_back(
            {session_.tokens()[static_cast<std::size_t>(pos0 + i)], pos0 + i, all_logits || i + 1 == n_rows});
    }
    const Clock::time_point start = Clock::now();
    const bool tapped = wants_taps(pos0 + n_rows - 1);
    target_.decode(rows, tapped);
    if (tapped) {
        keep_taps(pos0, n_rows);
    }
    RoundTimes times;
    times.total = times.target = ms_since(start);
    session_.commit({pos0, n_rows, n_rows, 0, RoundKind::prefill, true, all_logits}, {}, times);
    output_rows_.clear();
    for (std::int32_t i = all_logits ? 0 : n_rows - 1; i < n_rows; ++i) {
        output_rows_.push_back(i);
    }
    guard.release();
}

llama_token Engine::sample_row(llama_sampler * sampler, std::int32_t row) {
    const float * logits = llama_get_logits_ith(target_.get(), row);
    if (logits == nullptr) {
        throw Error(ErrorCode::decode_failed, "llama.cpp gave no logits for row " + std::to_string(row));
    }
    sampled_.resize(static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(target_.model()))));
    for (std::size_t i = 0; i < sampled_.size(); ++i) {
        sampled_[i] = {static_cast<llama_token>(i), logits[i], 0.0F};
    }
    llama_token_data_array candidates{sampled_.data(), sampled_.size(), -1, false};
    try {
        llama_sampler_apply(sampler, &candidates);
        if (candidates.selected < 0 || static_cast<std::size_t>(candidates.selected) >= candidates.size) {
            throw Error(ErrorCode::invalid_argument,
                        "the sampler chain chose no token; end it with greedy, dist or mirostat");
        }
        const llama_token_data & chosen = candidates.data[candidates.selected];
        // A grammar aborts the process when it has to accept a token that it forbade.
        if (!(chosen.logit > -std::numeric_limits<float>::infinity())) {
            throw Error(ErrorCode::decode_failed,
                        "no token is left to choose: the grammar, the logit bias and the logits "
                        "processors forbid all of them here");
        }
        llama_sampler_accept(sampler, chosen.id);
        return chosen.id;
    } catch (const Error &) {
        throw;
    } catch (const std::exception & error) {
        throw Error(ErrorCode::decode_failed, std::string("the sampler failed: ") + error.what());
    }
}

std::int32_t Engine::slots_to_draft(const RoundOptions & options) const {
    return std::min({drafter_->spec().block_size - 1, target_.n_ctx() - session_.n_decoded() - 1, target_.n_chunk() - 1,
                     options.max_emit - 1});
}

std::int32_t Engine::rows_to_draft(const RoundOptions & options) {
    const bool first = !session_.has_emitted();
    if (!drafter_ || !failure_.empty() || options.draft_rows == 0 || session_.n_pending() != 1 || first) {
        return 0;
    }
    const std::int32_t slots = slots_to_draft(options);
    if (slots < 1) {
        return 0;
    }
    if (options.draft_rows == draft_auto) {
        return planner_.decide(slots);
    }
    const bool tree = std::min(options.draft_leaves, target_.max_leaves()) > 1;
    const std::int32_t room = tree ? std::min(target_.n_ctx() - session_.n_decoded(), target_.n_chunk()) - 1 : slots;
    return std::min(options.draft_rows, room);
}

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
    const std::int32_t n_draft = rows_to_draft(options);
    return n_draft > 0 ? draft_round(sampler, options, n_draft) : plain_round(sampler, options);
}

std::vector<llama_token> Engine::plain_round(llama_sampler * sampler, const RoundOptions & options) {
    RollbackGuard guard(*this);
    RoundTimes times;
    const Clock::time_point start = Clock::now();
    const std::int32_t pos0 = session_.n_decoded();
    const std::int32_t n_rows = session_.n_pending();
    const bool tapped = wants_taps(pos0 + n_rows - 1);
    decode_prompt_chunk(n_rows, true, options.all_logits);
    times.target = ms_since(start);

    const Clock::time_point sampling = Clock::now();
    walked_rows_ = n_rows;
    if (options.on_sample) {
        options.on_sample();
    }
    const std::vector<llama_token> emitted{sample_row(sampler, n_rows - 1)};
    times.sample = ms_since(sampling);

    if (tapped) {
        const Clock::time_point injecting = Clock::now();
        keep_taps(pos0, n_rows);
        times.draft = ms_since(injecting);
    }
    times.total = ms_since(start);
    const bool in_run = session_.has_emitted();
    session_.commit({pos0, n_rows, n_rows, 1, RoundKind::plain, true, options.all_logits}, emitted, times);
    output_rows_.resize(options.all_logits ? static_cast<std::size_t>(n_rows) : 1);
    std::iota(output_rows_.begin(), output_rows_.end(), options.all_logits ? 0 : n_rows - 1);
    guard.release();
    if (drafter_ && in_run && n_rows == 1) {
        planner_.observe_plain(times.total);
    }
    return emitted;
}

bool Engine::make_draft(std::int32_t n_slots, double & draft_ms) {
    const Clock::time_point start = Clock::now();
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
    draft_ms = ms_since(start);
    return true;
}

DraftTree Engine::make_tree(const RoundOptions & options, std::int32_t n_draft) const {
    const std::int32_t leaves = std::min({options.draft_leaves, target_.max_leaves(), max_tree_leaves});
    if (leaves == 1 || options.draft_rows == draft_auto) {
        return DraftTree::chain(candidates_, n_draft);
    }
    std::vector<float> probs(candidates_.log_probs.size());
    std::ranges::transform(candidates_.log_probs, probs.begin(), [](float log_prob) { return std::exp(log_prob); });
    TreeInputs inputs;
    inputs.candidates = &candidates_;
    inputs.probs = probs;
    return DraftTree::grow(inputs, {.max_nodes = n_draft, .max_leaves = leaves, .seed_depth = 0});
}

std::vector<llama_token> Engine::draft_round(llama_sampler * sampler, const RoundOptions & options,
                                             std::int32_t n_draft) {
    const Clock::time_point start = Clock::now();
    RoundTimes times;
    if (!make_draft(std::min(n_draft, slots_to_draft(options)), times.draft)) {
        return plain_round(sampler, options);
    }
    const DraftTree tree = make_tree(options, n_draft);

    RollbackGuard guard(*this);
    const std::int32_t pos0 = session_.n_decoded();
    const std::vector<Row> rows = verify_rows(tree, session_.tokens().back(), pos0);
    const Clock::time_point decoding = Clock::now();
    target_.share_prefix(n_leaves(rows), pos0);
    target_.decode(rows, true);
    times.target = ms_since(decoding);

    const Clock::time_point sampling = Clock::now();
    const llama_vocab * vocab = llama_model_get_vocab(target_.model());
    const auto sample = [&](std::int32_t row) {
        if (row > 0) {
            session_.show_walked(rows[static_cast<std::size_t>(row)].token);
        }
        ++walked_rows_;
        if (options.on_sample) {
            options.on_sample();
        }
        return sample_row(sampler, row);
    };
    const Walk path =
        walk(tree, options.max_emit, sample, [&](llama_token token) { return llama_vocab_is_eog(vocab, token); });
    times.sample = ms_since(sampling);

    const auto n_rows = static_cast<std::int32_t>(rows.size());
    const auto n_kept = static_cast<std::int32_t>(path.emitted.size());
    DecodeRecord record{pos0, n_rows, n_kept, n_kept, RoundKind::draft, true, true};
    keep_taps(pos0, path.kept_rows);
    bool rewound = true;
    if (n_leaves(rows) > 1) {
        target_.keep_leaf(leaf_of(rows[static_cast<std::size_t>(path.kept_rows.back())]), pos0, pos0 + n_kept);
        record.tree = {parents_of(tree), path.kept_rows};
    } else {
        rewound = n_kept == n_rows || target_.rewind(pos0 + n_kept);
    }
    times.total = ms_since(start);
    session_.commit(record, path.emitted, times);
    output_rows_ = path.kept_rows;
    guard.release();
    if (!rewound) {
        session_.forget_decoded();
    }
    if (record.tree.parents.empty() && tree.size() == std::min(Planner::fixed_rows, drafter_->spec().block_size - 1)) {
        planner_.observe_draft(times.total, n_kept);
    }
    return path.emitted;
}

std::int32_t Engine::output_row(std::int32_t row) const {
    const auto n = static_cast<std::int32_t>(output_rows_.size());
    const std::int32_t index = row < 0 ? row + n : row;
    if (index < 0 || index >= n) {
        throw Error(ErrorCode::invalid_argument, "no logits of row " + std::to_string(row) + ": the last decode kept " +
                                                     std::to_string(n) + " output rows");
    }
    return output_rows_[static_cast<std::size_t>(index)];
}

llama_token Engine::sample(llama_sampler * sampler, std::int32_t row) {
    if (sampler == nullptr) {
        throw Error(ErrorCode::invalid_argument, "sample needs a sampler");
    }
    return sample_row(sampler, output_row(row));
}

std::span<const float> Engine::logits(std::int32_t row) const {
    const float * values = llama_get_logits_ith(target_.get(), output_row(row));
    if (values == nullptr) {
        throw Error(ErrorCode::decode_failed, "llama.cpp gave no logits for row " + std::to_string(row));
    }
    return {values, static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(target_.model())))};
}

DraftMemory Engine::draft_memory() const {
    DraftMemory memory = drafter_ ? drafter_->memory() : DraftMemory{};
    memory.taps = target_.tap_bytes() + session_.pending_bytes();
    return memory;
}

}  // namespace dflash
