// One conversation on the target: prompt, evaluation, sampling of rows, and what the engine tells of itself.
#include "dflash/engine.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "dflash/cpu_backend.h"
#include "dflash/error.h"
#include "engine_guard.h"

namespace dflash {

Engine::Engine(llama_model * model, const llama_context_params & params, std::shared_ptr<Drafter> drafter,
               TapMode tap_mode, bool copies)
    : drafter_(std::move(drafter)),
      target_(model, params, drafter_ ? drafter_->spec().tap_inputs : std::vector<std::int32_t>{}, tap_mode),
      session_(target_.feature_size()),
      can_copy_(copies && !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model)),
      flash_attn_(params.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED),
      keeps_bits_(flash_attn_ && cpu_backend_device() != nullptr && head_device(model) == cpu_backend_device()) {
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
    if (!drafter_->spec().acceptance.empty()) {
        planner_.acceptance().set_priors(drafter_->spec().acceptance);
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
    const RoundClock::time_point start = RoundClock::now();
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
    const RoundClock::time_point start = RoundClock::now();
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
    // llama.cpp keeps room for the logits of a row per leaf of a draft tree.
    memory.compute += static_cast<std::size_t>(target_.max_leaves() - 1) *
                      static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(target_.model()))) *
                      sizeof(float);
    memory.taps = target_.tap_bytes() + session_.pending_bytes();
    return memory;
}

}  // namespace dflash
