// How likely the target takes what the drafter offers: learned online from the drafter's log-probabilities. Pure.
#pragma once

#include <llama.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dflash/drafter.h"
#include "dflash/online_logit.h"

namespace dflash {

/// A slot's best candidate: logistic regression on its log-odds and its margin to the next, weights shared by all slots
/// plus a slot's own. Its siblings: the same given that the best one is wrong. A candidate with a log-probability of
/// minus infinity is forbidden and gets 0.
class DraftAcceptance {
  public:
    static constexpr std::int32_t max_slots = 64;  // slots beyond share the last one's weights
    static constexpr float max_weight = 64.0F;
    static constexpr std::size_t max_priors = 8 + 2 * static_cast<std::size_t>(max_slots);

    DraftAcceptance();

    /// Layout, all finite and within +-max_weight: [0] 1, the version; [1] n, slots with weights of their own, 0 to
    /// max_slots; [2..4] best candidate: bias, weight of its log-odds / 2, weight of its margin to the next / 2; [5..7]
    /// sibling given that the best one is wrong: bias, weight of its log-odds / 2 among the others, weight of
    /// log2(rank); [8 + 2i, 9 + 2i], i < n: added to bias and log-odds weight in slot i. Length 8 + 2n.
    /// Throws Error(invalid_argument) on another length, version or slot count and on values beyond.
    void set_priors(std::span<const float> values);
    /// The weights of now in that layout, with as many slots as were seen or set.
    [[nodiscard]] std::vector<float> priors() const;

    /// Probability of each candidate given that the path before its slot is accepted: [n_slots x top_k], at most 1 in
    /// sum per slot.
    void probs(const DraftCandidates & candidates, std::vector<float> & out) const;

    /// The target said `token` in this slot, after an accepted path.
    void observe(const DraftCandidates & candidates, std::int32_t slot, llama_token token);
    /// It said none of these; what it said is not known.
    void observe_rejected(const DraftCandidates & candidates, std::int32_t slot, std::span<const llama_token> tokens);

  private:
    using Best = OnlineLogit<4>;     // fast bias, bias, log-odds, margin
    using Slot = OnlineLogit<2>;     // bias, log-odds
    using Sibling = OnlineLogit<3>;  // bias, log-odds among the others, rank

    Best best_;
    Sibling sibling_;
    std::vector<Slot> slots_;
    std::int32_t n_slots_ = 0;  // with weights worth shipping

    struct Slice;
    [[nodiscard]] static std::size_t slot_index(std::int32_t slot) noexcept;
};

}  // namespace dflash
