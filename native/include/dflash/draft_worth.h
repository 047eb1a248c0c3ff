// What draft passes have been good for lately: expected tokens by nodes verified, priced at the costs of now. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "dflash/cost_model.h"
#include "dflash/draft_tree.h"

namespace dflash {

/// What one batch width costs and how many nodes it verifies.
struct WidthOption {
    std::int32_t nodes = 0;
    double ms = 0.0;  // of the target batch
};

/// Expected emitted tokens of a tree cut to its first 0, 1, 2, ... nodes.
[[nodiscard]] std::vector<float> expected_tokens(const DraftTree & tree);

/// The widths to choose among: those measured, up to `max_nodes` nodes, and twice the widest of them at a wary price.
[[nodiscard]] std::vector<WidthOption> width_options(const CostModel & costs, std::int32_t n_past,
                                                     std::int32_t max_nodes);

/// The width with the most expected tokens less lambda * time.
struct WidthChoice {
    std::int32_t nodes = 0;
    double emitted = 0.0;
    double ms = 0.0;  // the rest of the round included
    double value = 0.0;
};

/// What of a round is the same whatever its width.
struct RoundTerms {
    double lambda = 0.0;   // tokens per ms that time is worth
    double rest_ms = 0.0;  // per emitted token
};

/// `expected`: of a tree by its nodes; `extra_ms`: the same, of what its leaves cost besides, or empty.
[[nodiscard]] WidthChoice best_width(std::span<const float> expected, std::span<const float> extra_ms,
                                     std::span<const WidthOption> options, const RoundTerms & terms);

/// The expected parts of a round's outcomes below and above plain speed, in tokens.
struct WidthRisk {
    double loss = 0.0;
    double gain = 0.0;
};

/// `spent`: the round's cost in tokens at plain speed.
[[nodiscard]] WidthRisk width_risk(std::span<const float> expected, std::int32_t nodes, double spent);

struct DraftRate {
    double tokens_per_ms = 0.0;  // 0: nothing known
    double emitted = 0.0;        // expected, per round
    double ms = 0.0;             // per round
};

class DraftWorth {
  public:
    static constexpr std::size_t history = 32;  // draft rounds
    static constexpr double steady = 16.0;      // rounds of memory
    static constexpr double recent = 3.0;

    void add(std::vector<float> expected);
    void clear() { rounds_.clear(); }
    [[nodiscard]] bool empty() const noexcept { return rounds_.empty(); }

    /// The long-run rate of draft rounds that choose their width best (renewal reward: the rate at which the expected
    /// tokens less rate * time come to nothing), each weighted by exp(-age / memory).
    [[nodiscard]] DraftRate rate(std::span<const WidthOption> options, double draft_ms, const RoundTerms & terms,
                                 double memory) const;

  private:
    std::deque<std::vector<float>> rounds_;  // newest first
};

}  // namespace dflash
