// What this machine takes for target batches by width, for a draft pass and for sampling, measured before a
// conversation.
#include <llama.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dflash/attention_timing.h"
#include "dflash/engine.h"
#include "dflash/error.h"
#include "dflash/timing_plan.h"

namespace dflash {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double batches_afforded = 30.0;  // target batches may take as long as this many of one row
constexpr double min_budget_ms = 60.0;
constexpr std::int32_t near_cells = 256;  // llama.cpp reads cells in steps of 256, also in an empty context
constexpr std::int32_t far_cells = 2048;
constexpr double attention_budget_ms = 0.5;  // for each timing of the attention alone
constexpr std::int32_t injected_rows = 4;
constexpr int most_runs = 3;          // of a draft pass, of a sampler
constexpr double target_share = 0.7;  // of the budget, for target batches; the rest is for draft passes and attention
constexpr double part_share = 0.05;   // of the budget, for each repeated part

double ms_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Of a few runs, fewer where they take more than limit_ms together.
template <typename Work>
double shortest_ms(double limit_ms, Work && work) {
    double best = std::numeric_limits<double>::infinity();
    double spent = 0.0;
    for (int i = 0; i < most_runs && (i == 0 || spent < limit_ms); ++i) {
        const Clock::time_point start = Clock::now();
        work();
        const double ms = ms_since(start);
        best = std::min(best, ms);
        spent += ms;
    }
    return best;
}

std::int32_t meta_int(const llama_model * model, const std::string & key) {
    std::array<char, 64> arch{};
    std::array<char, 32> text{};
    std::int32_t value = 0;
    if (llama_model_meta_val_str(model, "general.architecture", arch.data(), arch.size()) < 0 ||
        llama_model_meta_val_str(model, (arch.data() + key).c_str(), text.data(), text.size()) < 0) {
        return 0;
    }
    const std::string_view digits(text.data());
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
}

AttentionShape attention_of(const llama_model * model, bool flash) {
    AttentionShape shape;
    shape.n_head = llama_model_n_head(model);
    shape.n_head_kv = llama_model_n_head_kv(model);
    shape.head_dim = meta_int(model, ".attention.key_length");
    if (shape.head_dim <= 0 && shape.n_head > 0) {
        shape.head_dim = llama_model_n_embd(model) / shape.n_head;
    }
    shape.flash = flash;
    return shape;
}

struct SamplerDeleter {
    void operator()(llama_sampler * sampler) const noexcept { llama_sampler_free(sampler); }
};

/// What `generate` and `chat` sample with unless told otherwise.
std::unique_ptr<llama_sampler, SamplerDeleter> usual_sampler() {
    std::unique_ptr<llama_sampler, SamplerDeleter> chain(
        llama_sampler_chain_init(llama_sampler_chain_default_params()));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(40));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_top_p(0.95F, 1));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_min_p(0.05F, 1));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_temp(0.7F));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(0));
    return chain;
}

}  // namespace

/// Puts the memories back to what the session says, whatever was decoded in between.
class Engine::TimingGuard {
  public:
    explicit TimingGuard(Engine & engine) : engine_(engine) { engine_.output_rows_.clear(); }
    TimingGuard(const TimingGuard &) = delete;
    TimingGuard & operator=(const TimingGuard &) = delete;
    ~TimingGuard() { engine_.rewind_memories(engine_.session_.n_decoded()); }

  private:
    Engine & engine_;
};

double Engine::time_batch(std::int32_t n_rows) {
    const std::int32_t pos0 = session_.n_decoded();
    const std::int32_t most = std::min(target_.n_chunk(), target_.n_ctx() - pos0);
    if (n_rows < 1 || n_rows > most) {
        throw Error(ErrorCode::invalid_argument,
                    "n_rows is " + std::to_string(n_rows) + ", expected 1 to " + std::to_string(most) +
                        ", the room left in batch and context",
                    "n_rows");
    }
    if (pos0 > 0 && (llama_model_is_recurrent(target_.model()) || llama_model_is_hybrid(target_.model()))) {
        throw Error(ErrorCode::unsupported, "a target with recurrent state is timed on an empty context only",
                    "n_rows");
    }
    // Different tokens, so that a mixture of experts is asked for different ones.
    const auto n_vocab = static_cast<std::uint32_t>(llama_vocab_n_tokens(llama_model_get_vocab(target_.model())));
    std::vector<Row> rows;
    rows.reserve(static_cast<std::size_t>(n_rows));
    for (std::int32_t i = 0; i < n_rows; ++i) {
        const std::uint32_t mixed = (static_cast<std::uint32_t>(pos0 + i) + 1) * 2654435761U;
        rows.push_back({static_cast<llama_token>(mixed % n_vocab), pos0 + i, true});
    }
    const TimingGuard guard(*this);
    const Clock::time_point start = Clock::now();
    target_.decode(rows, drafter_ != nullptr);
    return ms_since(start);
}

double Engine::time_slope(std::int32_t n_rows) const {
    AttentionShape shape = attention_of(target_.model(), flash_attn_);
    const std::int32_t cells = std::min(far_cells, target_.n_ctx());
    ggml_backend_dev_t const device = head_device(target_.model());
    if (is_gpu(device) || cells <= near_cells || shape.n_head < 1 || shape.n_head_kv < 1 || shape.head_dim < 1 ||
        shape.n_head % shape.n_head_kv != 0) {
        return 0.0;
    }
    const std::int32_t n_threads = llama_n_threads(target_.get());
    shape.n_rows = n_rows;
    const auto layer_ms = [&](std::int32_t n_kv) {
        shape.n_kv = n_kv;
        // Median of three: one preempted run can use up a budget as small as this.
        std::array<double, 3> ms{};
        std::ranges::generate(
            ms, [&] { return time_attention(shape, n_threads, attention_budget_ms, shape.flash ? device : nullptr); });
        std::ranges::sort(ms);
        return ms[1];
    };
    const double near_ms = layer_ms(near_cells);
    const double far_ms = layer_ms(cells);
    return std::max(0.0, far_ms - near_ms) * llama_model_n_layer(target_.model()) / (cells - near_cells);
}

void Engine::time_draft(CostTable & table, double limit_ms) {
    time_batch(std::min({injected_rows, target_.n_chunk(), target_.n_ctx()}));
    const std::vector<float> taps(target_.taps().begin(), target_.taps().end());
    DraftContext & context = *session_.draft_context;
    const auto pass_ms = [&](std::int32_t n_slots) {
        return shortest_ms(limit_ms, [&] {
            context.clear();
            drafter_->draft(context, 0, taps, 0, candidates_, n_slots);
        });
    };
    try {
        table.draft_ms = pass_ms(all_slots);
        table.draft_slots = candidates_.n_slots;
        const double one_ms = pass_ms(1);
        const std::int32_t fewer = table.draft_slots - candidates_.n_slots;
        if (fewer > 0) {
            table.draft_slot_ms =
                std::clamp((table.draft_ms - one_ms) / fewer, 0.0, 0.9 * table.draft_ms / table.draft_slots);
        }
    } catch (const Error & error) {
        drafter_failed(error.what());
    }
    context.clear();
}

CostTable Engine::time_costs(double budget_ms) {
    if (!std::isfinite(budget_ms) || budget_ms <= 0.0) {
        throw Error(ErrorCode::invalid_argument,
                    "budget_ms is " + std::to_string(budget_ms) + ", expected a positive number", "budget_ms");
    }
    if (session_.n_decoded() > 0) {
        throw Error(ErrorCode::invalid_argument, "costs are timed before anything is decoded, but " +
                                                     std::to_string(session_.n_decoded()) +
                                                     " tokens are: reset the conversation first");
    }
    const double first_ms = time_batch(1);
    const double affordable = std::min(std::max(min_budget_ms, batches_afforded * first_ms), target_share * budget_ms);
    TimingPlan plan(affordable, std::min(target_.n_chunk(), target_.n_ctx()));
    plan.record(1, first_ms);
    while (const std::int32_t rows = plan.next()) {
        plan.record(rows, time_batch(rows));
    }
    const std::vector<WidthTime> times = plan.times();
    std::vector<double> slopes;
    slopes.reserve(times.size());
    for (const WidthTime & time : times) {
        slopes.push_back(time_slope(time.rows));
    }
    // The clock may have changed since the batches were timed: one row again tells by how much.
    const double one_ms = times.front().ms;
    const bool cheap = one_ms < part_share * budget_ms;
    const double clock = cheap ? std::clamp(one_ms / std::min(time_batch(1), time_batch(1)), 0.5, 2.0) : 1.0;
    CostTable table;
    const double seen = std::min(near_cells, target_.n_ctx());
    for (std::size_t i = 0; i < times.size(); ++i) {
        const auto & [rows, ms] = times[i];
        const double slope_ms = clock * slopes[i];
        // The step of 256 cells that was read stands for a context of half as many, on average.
        table.widths.push_back({rows, std::max(0.1 * ms, ms - slope_ms * seen / 2.0), slope_ms});
    }
    // The logits of the last batch are still there.
    const auto sampler = usual_sampler();
    table.rest_ms = shortest_ms(part_share * budget_ms, [&] { sample_row(sampler.get(), 0); });
    if (drafter_ && failure_.empty()) {
        time_draft(table, part_share * budget_ms);
    }
    return table;
}

}  // namespace dflash
