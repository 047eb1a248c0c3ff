// How likely the target takes a copied or a forced token: learned online from the match. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "dflash/online_logit.h"

namespace dflash {

/// What speaks for a copy.
struct CopyEvidence {
    std::int32_t match_length = 0;
    std::int32_t n_sources = 0;
    std::int32_t n_agreeing = 0;
};

/// Logistic regression on the length of the match (a copy's own tokens lengthen it), on how far its sources agree, on
/// how long the present copy has run and on how copies fared lately. Starts at what answers of a small model and edits
/// of source files showed: a match of one token is worth 0.3, of two 0.5, of eight 0.85, of 32 0.97.
class CopyAcceptance {
  public:
    CopyAcceptance();

    /// Of token number `depth` (from 1), given those before it.
    [[nodiscard]] float prob(const CopyEvidence & evidence, std::int32_t depth) const;
    /// The same, lower by what is not known of it: copies are judged by what comes whether verified or not, so that
    /// caution costs no knowledge.
    [[nodiscard]] float cautious_prob(const CopyEvidence & evidence, std::int32_t depth) const;
    void observe(const CopyEvidence & evidence, std::int32_t depth, bool accepted);

  private:
    using Shared = OnlineLogit<7>;
    using Bucket = OnlineLogit<1>;

    Shared shared_;
    std::vector<Bucket> buckets_;  // of match lengths, two to an octave
    std::int32_t run_ = 0;         // copied tokens that came true since the last that did not

    [[nodiscard]] float prob_below(const CopyEvidence & evidence, std::int32_t depth, double deviations) const;
    [[nodiscard]] Shared::Vector features(const CopyEvidence & evidence, std::int32_t depth) const;
};

/// Of a token that a grammar forces: nearly sure, but the target may write the same text in other tokens.
class ForcedAcceptance {
  public:
    ForcedAcceptance();
    [[nodiscard]] float prob() const;
    void observe(bool accepted);

  private:
    OnlineLogit<1> rate_;
};

}  // namespace dflash
