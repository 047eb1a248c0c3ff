// Prices recent draft rounds at the costs of now.
#include "dflash/draft_worth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace dflash {

namespace {

constexpr double unmeasured_price = 1.15;  // of what the widths known would say

}  // namespace

std::vector<float> expected_tokens(const DraftTree & tree) {
    std::vector<float> out{1.0F};
    out.reserve(static_cast<std::size_t>(tree.size()) + 1);
    for (const DraftNode & node : tree.nodes()) {
        out.push_back(out.back() + node.path_prob);
    }
    return out;
}

std::vector<WidthOption> width_options(const CostModel & costs, std::int32_t n_past, std::int32_t max_nodes) {
    const std::span<const std::int32_t> widths = costs.widths();
    std::vector<WidthOption> out;
    out.reserve(widths.size() + 2);
    out.push_back({0, costs.target_ms(1, n_past)});
    for (const std::int32_t rows : widths) {
        if (rows > 1 && rows - 1 <= max_nodes) {
            out.push_back({rows - 1, costs.target_ms(rows, n_past)});
        }
    }
    if (widths.empty() || out.back().nodes >= max_nodes) {
        return out;
    }
    if (widths.back() - 1 > max_nodes) {
        out.push_back({max_nodes, costs.target_ms(max_nodes + 1, n_past)});
    } else if (widths.size() > 1) {
        const std::int32_t rows = std::min(2 * widths.back(), max_nodes + 1);
        out.push_back({rows - 1, unmeasured_price * costs.target_ms(rows, n_past)});
    }
    return out;
}

WidthChoice best_width(std::span<const float> expected, std::span<const float> extra_ms,
                       std::span<const WidthOption> options, const RoundTerms & terms) {
    WidthChoice best;
    best.value = -std::numeric_limits<double>::infinity();
    for (const WidthOption & option : options) {
        const std::size_t nodes = std::min(static_cast<std::size_t>(option.nodes), expected.size() - 1);
        const double emitted = expected[nodes];
        const double ms = option.ms + terms.rest_ms * emitted + (nodes < extra_ms.size() ? extra_ms[nodes] : 0.0);
        const double value = emitted - terms.lambda * ms;
        if (value > best.value) {
            best = {static_cast<std::int32_t>(nodes), emitted, ms, value};
        }
        if (nodes + 1 == expected.size()) {
            break;  // wider batches would verify nothing more
        }
    }
    return best;
}

WidthRisk width_risk(std::span<const float> expected, std::int32_t nodes, double spent) {
    const std::size_t deepest = std::min(static_cast<std::size_t>(nodes), expected.size() - 1);
    WidthRisk risk;
    double reached = 1.0;  // probability that at least k + 1 tokens are emitted
    for (std::size_t k = 0; k <= deepest; ++k) {
        const double further = k < deepest ? expected[k + 1] - expected[k] : 0.0;
        const double won = static_cast<double>(k) + 1.0 - spent;
        (won < 0.0 ? risk.loss : risk.gain) += std::abs(won) * std::max(0.0, reached - further);
        reached = further;
    }
    return risk;
}

void DraftWorth::add(std::vector<float> expected) {
    rounds_.push_front(std::move(expected));
    if (rounds_.size() > history) {
        rounds_.pop_back();
    }
}

DraftRate DraftWorth::rate(std::span<const WidthOption> options, double draft_ms, const RoundTerms & terms,
                           double memory) const {
    DraftRate best;
    if (rounds_.empty() || options.empty()) {
        return best;
    }
    RoundTerms now = terms;
    now.lambda = 1.0 / (options.front().ms + terms.rest_ms);
    constexpr int steps = 4;  // Dinkelbach's iteration; two are nearly always enough
    const double keep = std::exp(-1.0 / memory);
    for (int step = 0; step < steps; ++step) {
        double weight = 1.0;
        double weights = 0.0;
        double tokens = 0.0;
        double ms = 0.0;
        for (const std::vector<float> & expected : rounds_) {
            const WidthChoice choice = best_width(expected, {}, options, now);
            weights += weight;
            tokens += weight * choice.emitted;
            ms += weight * (choice.ms + draft_ms);
            weight *= keep;
        }
        best = {tokens / ms, tokens / weights, ms / weights};
        if (best.tokens_per_ms <= now.lambda * (1.0 + 1e-6)) {
            break;
        }
        now.lambda = best.tokens_per_ms;
    }
    return best;
}

}  // namespace dflash
