// Plays rounds of made-up candidates through the planner and times its decisions.
#include "dflash/planner_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "dflash/error.h"
#include "dflash/round_planner.h"

namespace dflash {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int32_t most = 1 << 20;

double us_since(Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> & values) {
    if (values.empty()) {
        return 0.0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

/// Wide batches that cost little more than narrow ones.
CostTable cheap_batches() {
    CostTable table;
    for (const std::int32_t rows : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
        table.widths.push_back({rows, 10.0 + 0.1 * rows, 0.0});
    }
    table.draft_ms = 1.0;
    table.draft_slots = 7;
    table.rest_ms = 0.05;
    table.leaf_ms = 0.02;
    return table;
}

/// Candidate k of a slot has token k and a probability that falls by a random share from rank to rank.
DraftCandidates made_up(const PlanningCase & what, std::mt19937 & random) {
    DraftCandidates out{what.n_slots, what.top_k, {}, {}};
    std::uniform_real_distribution<float> share(0.4F, 0.9F);
    for (std::int32_t slot = 0; slot < what.n_slots; ++slot) {
        float left = 1.0F;
        for (std::int32_t rank = 0; rank < what.top_k; ++rank) {
            const float prob = left * share(random);
            out.ids.push_back(rank);
            out.log_probs.push_back(std::log(prob));
            left -= prob;
        }
    }
    return out;
}

/// The target takes the likeliest path down to a random depth, then says something else.
RoundOutcome outcome_of(const DraftTree & tree, RoundSource source, std::int32_t n_past, std::mt19937 & random,
                        std::vector<std::int32_t> & path, std::vector<llama_token> & tokens) {
    path.clear();
    tokens.clear();
    std::int32_t at = -1;
    for (std::int32_t node = 0; node < tree.size(); ++node) {
        const DraftNode & next = tree.nodes()[static_cast<std::size_t>(node)];
        if (next.parent == at && random() % 4 != 0) {
            at = node;
            path.push_back(node);
            tokens.push_back(next.token);
        }
    }
    tokens.push_back(-1);
    const double target = 10.0 + 0.1 * (tree.size() + 1);
    const bool drafted = source == RoundSource::drafter;
    return {.source = source,
            .n_past = n_past,
            .verified = tree.nodes(),
            .accepted = path,
            .tokens = tokens,
            .emitted = static_cast<std::int32_t>(tokens.size()),
            .target_ms = target,
            .draft_ms = drafted ? 1.0 : 0.0,
            .draft_slots = drafted ? 7 : 0,
            .total_ms = target + (drafted ? 1.0 : 0.0) + 0.05 * static_cast<double>(tokens.size())};
}

}  // namespace

PlanningTimes time_planning(const PlanningCase & what) {
    if (what.n_slots < 1 || what.n_slots > 128 || what.top_k < 1 || what.top_k > 64 || what.max_leaves < 1 ||
        what.max_leaves > max_tree_leaves || what.chain < 0 || what.chain > most || what.n_rounds < 1 ||
        what.n_rounds > most) {
        throw Error(ErrorCode::invalid_argument,
                    "expected 1 to 128 slots, 1 to 64 candidates, 1 to 32 leaves, a chain and rounds up to 2^20");
    }
    std::mt19937 random(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same rounds each time
    RoundPlanner planner;
    planner.costs().set_table(cheap_batches());
    std::vector<llama_token> chain(static_cast<std::size_t>(what.chain));
    std::iota(chain.begin(), chain.end(), 0);
    std::vector<double> choosing;
    std::vector<double> planning;
    std::vector<double> observing;
    std::vector<std::int32_t> path;
    std::vector<llama_token> tokens;
    std::int32_t n_past = 100;
    for (std::int32_t round = 0; round < what.n_rounds; ++round) {
        const RoundView view{
            .n_past = n_past,
            .max_nodes = RoundPlanner::max_nodes,
            .n_slots = what.n_slots,
            .max_leaves = what.max_leaves,
            .chain = round % 2 == 0 ? std::span<const llama_token>(chain) : std::span<const llama_token>(),
            .match_length = 8,
            .n_sources = 1,
            .n_agreeing = 1};
        Clock::time_point start = Clock::now();
        const RoundSource source = planner.choose(view);
        choosing.push_back(us_since(start));
        DraftTree tree;
        if (source != RoundSource::plain) {
            const DraftCandidates candidates = made_up(what, random);
            start = Clock::now();
            tree = planner.plan(view, source == RoundSource::drafter ? &candidates : nullptr);
            planning.push_back(us_since(start));
        }
        const RoundOutcome outcome = outcome_of(tree, source, n_past, random, path, tokens);
        start = Clock::now();
        planner.observe(outcome);
        observing.push_back(us_since(start));
        n_past += outcome.emitted;
    }
    return {median(choosing), median(planning), median(observing)};
}

}  // namespace dflash
