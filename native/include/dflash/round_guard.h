// Purses of the planner, counted in tokens at plain speed: what trials may cost, what an answer may stake, what rounds
// really won. Pure.
#pragma once

#include <cstdint>

namespace dflash {

/// When to try what does not pay by the present estimate: at doubling intervals, out of an allowance that lets trials
/// cost 2% of the first hundred tokens and less than 1% of those after them.
class TrialPurse {
  public:
    static constexpr std::int32_t first_interval = 8;  // tokens between two trials
    static constexpr std::int32_t last_interval = 64;  // or more, where a trial costs more than half a token
    static constexpr double start = 1.8;
    static constexpr double share = 0.005;  // of each token after the first hundred
    static constexpr std::int32_t first_tokens = 100;
    static constexpr double most = 2.0;  // held at once, or what one trial costs

    void pass(std::int32_t emitted) noexcept;
    [[nodiscard]] bool due(double cost) noexcept;
    [[nodiscard]] bool affords(double cost) const noexcept { return allowance_ >= cost; }
    /// A trial is over and cost this much; negative: it won.
    void settle(double cost, bool promising) noexcept;
    /// The last trial would have won, had its draft been followed: it costs nothing, and the next comes soon.
    void refund() noexcept;
    void hurry() noexcept;  // something changed: the next trial comes soon
    [[nodiscard]] std::int32_t next_in() const noexcept;

  private:
    double allowance_ = start;
    void earn(double tokens) noexcept;

    double asked_ = 0.0;
    double last_cost_ = 0.0;
    std::int32_t tokens_ = 0;
    std::int32_t since_ = first_interval;
    std::int32_t interval_ = first_interval;
};

/// What rounds that may lose can stake within one answer: little at first, a share of each token, and what was won
/// before. So a short answer loses little to a copy that does not hold, and a long one begins its bold rounds later.
class StakePurse {
  public:
    static constexpr double start = 0.25;
    static constexpr double share = 0.01;  // of each token
    static constexpr double most = 8.0;    // held at once
    static constexpr double odds =
        20.0;  // a round that wins this many times what it loses, in the mean, needs no stake

    void begin() noexcept { held_ = start; }
    void pass(std::int32_t emitted) noexcept { settle(share * emitted); }
    /// A round is over and won this much; negative: it lost.
    void settle(double won) noexcept;
    /// `loss` and `gain`: the expected parts of a round's outcomes below and above plain speed.
    [[nodiscard]] bool allows(double loss, double gain) const noexcept { return loss <= held_ || loss * odds <= gain; }

  private:
    double held_ = start;
};

/// Watches what a kind of round really wins against plain decoding and suspends it where it loses.
class RoundGuard {
  public:
    static constexpr double memory = 64.0;      // rounds
    static constexpr double loss = 2.0;         // tokens, when no chance explains it
    static constexpr double worst_loss = 4.0;   // tokens, chance or not
    static constexpr double loss_share = 0.02;  // of the time spent
    static constexpr double credit = 6.0;       // tokens that winners may lose in a row
    static constexpr double credit_speed = 1.03;
    static constexpr std::int32_t first_pause = 64;  // tokens
    static constexpr std::int32_t last_pause = 2048;

    /// A round that took `spent` and brought `emitted` tokens, both at plain speed.
    void settle(double spent, double emitted) noexcept;
    void pass(std::int32_t emitted) noexcept;
    [[nodiscard]] bool suspended() const noexcept { return pause_left_ > 0; }
    [[nodiscard]] std::int32_t pause_left() const noexcept { return pause_left_; }
    /// Do these rounds win by the last ones' account, and have not lost much since they last did?
    [[nodiscard]] bool has_credit() const noexcept;
    [[nodiscard]] std::int32_t strikes() const noexcept { return strikes_; }
    /// Strikes since these rounds last won clearly.
    [[nodiscard]] std::int32_t distrust() const noexcept { return distrust_; }
    /// Speed of recent rounds against plain; 0: there were none.
    [[nodiscard]] double speed() const noexcept { return spent_ > 0.0 ? 1.0 + won_ / spent_ : 0.0; }
    /// As it was when the guard last struck.
    [[nodiscard]] double struck_speed() const noexcept { return struck_speed_; }

  private:
    double won_ = 0.0;
    double squares_ = 0.0;
    double slump_ = 0.0;  // lost since the sum of all that was won stood highest
    double spent_ = 0.0;
    double struck_speed_ = 0.0;
    std::int32_t pause_left_ = 0;
    std::int32_t pause_ = first_pause;
    std::int32_t strikes_ = 0;
    std::int32_t distrust_ = 0;
};

}  // namespace dflash
