// Calibrates copies and forced text against what the target said.
#include "dflash/copy_acceptance.h"

#include <algorithm>
#include <cmath>

namespace dflash {

namespace {

constexpr double caution = 0.5;  // standard deviations
constexpr std::int32_t longest = 64;
constexpr std::size_t n_buckets = 12;

// Fast bias, bias, log2 of the match, share of sources that disagree, log2 of those that agree, log2 of the depth,
// log2 of the run.
constexpr OnlineLogit<7>::Prior shared_prior{{0.0, -0.9, 0.85, -2.4, 0.35, 0.0, 0.1},
                                             {0.6, 0.5, 0.1, 0.5, 0.05, 0.02, 0.02},
                                             {0.93, 0.998, 0.998, 0.998, 0.998, 0.998, 0.998}};
constexpr OnlineLogit<1>::Prior bucket_prior{{0.0}, {0.3}, {0.995}};
constexpr OnlineLogit<1>::Prior forced_prior{{3.476}, {0.5}, {0.98}};  // logistic(3.476) is 0.97

double log2_of(std::int32_t count) { return std::log2(static_cast<double>(std::clamp(count, 1, longest))); }

std::int32_t length_at(const CopyEvidence & evidence, std::int32_t depth) {
    return std::clamp(evidence.match_length + depth - 1, 1, longest);
}

std::size_t bucket_of(std::int32_t length) {
    return std::min(n_buckets - 1, static_cast<std::size_t>(2.0 * log2_of(length)));
}

}  // namespace

CopyAcceptance::CopyAcceptance() : shared_(shared_prior), buckets_(n_buckets, Bucket(bucket_prior)) {}

CopyAcceptance::Shared::Vector CopyAcceptance::features(const CopyEvidence & evidence, std::int32_t depth) const {
    const std::int32_t sources = std::max(evidence.n_sources, 1);
    const std::int32_t agreeing = std::clamp(evidence.n_agreeing, 1, sources);
    return {1.0,
            1.0,
            log2_of(length_at(evidence, depth)),
            1.0 - static_cast<double>(agreeing) / sources,
            log2_of(agreeing),
            log2_of(depth),
            log2_of(run_ + depth)};
}

float CopyAcceptance::prob_below(const CopyEvidence & evidence, std::int32_t depth, double deviations) const {
    const Bucket & bucket = buckets_[bucket_of(length_at(evidence, depth))];
    const Shared::Vector x = features(evidence, depth);
    const double spread = deviations > 0.0 ? std::sqrt(shared_.spread(x) + bucket.spread({1.0})) : 0.0;
    return static_cast<float>(logistic(shared_.score(x) + bucket.score({1.0}) - deviations * spread));
}

float CopyAcceptance::prob(const CopyEvidence & evidence, std::int32_t depth) const {
    return prob_below(evidence, depth, 0.0);
}

float CopyAcceptance::cautious_prob(const CopyEvidence & evidence, std::int32_t depth) const {
    return prob_below(evidence, depth, caution);
}

void CopyAcceptance::observe(const CopyEvidence & evidence, std::int32_t depth, bool accepted) {
    // The run that prob() saw for this depth began before the copy's first token.
    const std::int32_t run = run_;
    run_ = std::max(0, run_ - (depth - 1));
    const Shared::Vector x = features(evidence, depth);
    run_ = accepted ? run + 1 : 0;
    learn(shared_, x, buckets_[bucket_of(length_at(evidence, depth))], {1.0}, accepted);
}

ForcedAcceptance::ForcedAcceptance() : rate_(forced_prior) {}

float ForcedAcceptance::prob() const { return static_cast<float>(logistic(rate_.score({1.0}))); }

void ForcedAcceptance::observe(bool accepted) { learn(rate_, {1.0}, accepted); }

}  // namespace dflash
