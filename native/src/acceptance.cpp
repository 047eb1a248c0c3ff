// Calibrates the drafter's candidates against what the target said.
#include "dflash/acceptance.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "dflash/error.h"

namespace dflash {

namespace {

constexpr float version = 1.0F;
constexpr std::size_t shared_values = 8;
constexpr double margin_bound = 10.0;
constexpr double sibling_mass = 0.98;  // of what the best candidate leaves, at most

// Neutral: the drafter's own probabilities, log-odds tempered by 0.8.
constexpr OnlineLogit<4>::Prior best_prior{{0.0, 0.0, 1.6, 0.0}, {0.15, 0.5, 0.3, 0.1}, {0.95, 0.998, 0.9995, 0.9995}};
constexpr OnlineLogit<2>::Prior slot_prior{{0.0, 0.0}, {0.3, 0.05}, {0.995, 0.999}};
constexpr OnlineLogit<3>::Prior sibling_prior{{0.0, 1.6, 0.0}, {0.5, 0.2, 0.1}, {0.9998, 0.9998, 0.9998}};

void refuse(const std::string & what) {
    throw Error(ErrorCode::invalid_argument,
                "acceptance priors: " + what + "; expected [1, n, 6 shared weights, 2 per slot], 8 + 2n values",
                "dflash_local.acceptance");
}

}  // namespace

/// One slot's candidates: the best that is allowed, and what the regressions see of each.
struct DraftAcceptance::Slice {
    std::span<const std::int32_t> ids;
    std::span<const float> log_probs;
    std::size_t best = 0;

    Slice(const DraftCandidates & candidates, std::int32_t slot) {
        const auto top_k = static_cast<std::size_t>(candidates.top_k);
        const std::size_t first = static_cast<std::size_t>(slot) * top_k;
        ids = std::span(candidates.ids).subspan(first, top_k);
        log_probs = std::span(candidates.log_probs).subspan(first, top_k);
        while (best < top_k && !allowed(best)) {
            ++best;
        }
    }

    [[nodiscard]] bool empty() const { return best == ids.size(); }
    [[nodiscard]] bool allowed(std::size_t rank) const { return std::isfinite(log_probs[rank]); }

    [[nodiscard]] std::array<double, 4> best_features() const {
        double next = -std::numeric_limits<double>::infinity();
        for (std::size_t rank = best + 1; rank < ids.size() && !std::isfinite(next); ++rank) {
            next = log_probs[rank];
        }
        const double margin = std::clamp(static_cast<double>(log_probs[best]) - next, 0.0, margin_bound);
        return {1.0, 1.0, logit_of_log(log_probs[best]) / 2.0, margin / 2.0};
    }
    [[nodiscard]] std::array<double, 2> slot_features() const { return {1.0, logit_of_log(log_probs[best]) / 2.0}; }
    /// log of the probability that the drafter leaves to all but the best.
    [[nodiscard]] double log_others() const {
        return std::log(std::max(1e-6, -std::expm1(std::min(0.0, static_cast<double>(log_probs[best])))));
    }
    [[nodiscard]] std::array<double, 3> sibling_features(std::size_t rank, double others) const {
        return {1.0, logit_of_log(log_probs[rank] - others) / 2.0, std::log2(static_cast<double>(rank))};
    }
};

DraftAcceptance::DraftAcceptance()
    : best_(best_prior), sibling_(sibling_prior), slots_(static_cast<std::size_t>(max_slots), Slot(slot_prior)) {}

std::size_t DraftAcceptance::slot_index(std::int32_t slot) noexcept {
    return static_cast<std::size_t>(std::clamp(slot, 0, max_slots - 1));
}

void DraftAcceptance::set_priors(std::span<const float> values) {
    if (!std::ranges::all_of(values, [](float value) { return std::abs(value) <= max_weight; })) {
        refuse("a value is not a number from -64 to 64");
    }
    if (values.size() < shared_values || values[0] != version) {
        refuse("found " + std::to_string(values.size()) + " values" +
               (values.empty() ? "" : " of version " + std::to_string(values[0])));
    }
    const float n = values[1];
    if (n < 0.0F || n > static_cast<float>(max_slots) || n != std::floor(n) ||
        values.size() != shared_values + 2 * static_cast<std::size_t>(n)) {
        refuse("found " + std::to_string(values.size()) + " values for " + std::to_string(n) + " slots");
    }
    best_.set_mean({0.0, values[2], values[3], values[4]});
    sibling_.set_mean({values[5], values[6], values[7]});
    n_slots_ = static_cast<std::int32_t>(n);
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
        const bool given = slot < static_cast<std::size_t>(n);
        const std::size_t at = shared_values + 2 * slot;
        slots_[slot].set_mean(given ? Slot::Vector{values[at], values[at + 1]} : Slot::Vector{});
    }
}

std::vector<float> DraftAcceptance::priors() const {
    const Best::Vector & best = best_.mean();
    const Sibling::Vector & sibling = sibling_.mean();
    std::vector<double> values{version, static_cast<double>(n_slots_), best[1], best[2], best[3]};
    values.insert(values.end(), sibling.begin(), sibling.end());
    for (std::int32_t slot = 0; slot < n_slots_; ++slot) {
        const Slot::Vector & own = slots_[slot_index(slot)].mean();
        values.insert(values.end(), own.begin(), own.end());
    }
    std::vector<float> out(values.size());
    std::ranges::transform(values, out.begin(), [](double value) { return static_cast<float>(value); });
    return out;
}

void DraftAcceptance::probs(const DraftCandidates & candidates, std::vector<float> & out) const {
    const auto top_k = static_cast<std::size_t>(candidates.top_k);
    out.assign(static_cast<std::size_t>(candidates.n_slots) * top_k, 0.0F);
    for (std::int32_t slot = 0; slot < candidates.n_slots; ++slot) {
        const Slice slice(candidates, slot);
        if (slice.empty()) {
            continue;
        }
        const std::span<float> row = std::span(out).subspan(static_cast<std::size_t>(slot) * top_k, top_k);
        const Slot & own = slots_[slot_index(slot)];
        const double best = logistic(best_.score(slice.best_features()) + own.score(slice.slot_features()));
        row[slice.best] = static_cast<float>(best);
        const double others = slice.log_others();
        double sum = 0.0;
        for (std::size_t rank = slice.best + 1; rank < top_k; ++rank) {
            if (slice.allowed(rank)) {
                const double given = logistic(sibling_.score(slice.sibling_features(rank, others)));
                row[rank] = static_cast<float>(given);
                sum += given;
            }
        }
        const double scale = (1.0 - best) * (sum > sibling_mass ? sibling_mass / sum : 1.0);
        for (std::size_t rank = slice.best + 1; rank < top_k; ++rank) {
            row[rank] *= static_cast<float>(scale);
        }
    }
}

void DraftAcceptance::observe(const DraftCandidates & candidates, std::int32_t slot, llama_token token) {
    const Slice slice(candidates, slot);
    if (slice.empty()) {
        return;
    }
    n_slots_ = std::clamp(slot + 1, n_slots_, max_slots);
    const bool best_right = slice.ids[slice.best] == token;
    learn(best_, slice.best_features(), slots_[slot_index(slot)], slice.slot_features(), best_right);
    if (best_right) {
        return;
    }
    const double others = slice.log_others();
    for (std::size_t rank = slice.best + 1; rank < slice.ids.size(); ++rank) {
        if (slice.allowed(rank)) {
            learn(sibling_, slice.sibling_features(rank, others), slice.ids[rank] == token);
        }
    }
}

void DraftAcceptance::observe_rejected(const DraftCandidates & candidates, std::int32_t slot,
                                       std::span<const llama_token> tokens) {
    const Slice slice(candidates, slot);
    const auto rejected = [&](std::size_t rank) { return std::ranges::find(tokens, slice.ids[rank]) != tokens.end(); };
    if (slice.empty() || !rejected(slice.best)) {
        return;  // without a verdict on the best one nothing is known of those that come after it
    }
    n_slots_ = std::clamp(slot + 1, n_slots_, max_slots);
    learn(best_, slice.best_features(), slots_[slot_index(slot)], slice.slot_features(), false);
    const double others = slice.log_others();
    for (std::size_t rank = slice.best + 1; rank < slice.ids.size(); ++rank) {
        if (slice.allowed(rank) && rejected(rank)) {
            learn(sibling_, slice.sibling_features(rank, others), false);
        }
    }
}

}  // namespace dflash
