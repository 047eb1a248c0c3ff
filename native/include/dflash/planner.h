// Decides, round by round, whether drafting pays. Pure: sees only counts and times.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace dflash {

/// Drafts a fixed small width while the measured tokens per round pay for the measured cost of such a round against a
/// plain one. Trials are paid out of a loss budget, a small share of the time spent decoding, so that a drafter that
/// never pays costs at most that share.
class Planner {
  public:
    static constexpr std::int32_t fixed_rows = 3;      // drafted rows of a round; with the anchor four rows
    static constexpr std::int32_t check_interval = 8;  // draft rounds between two judgements
    static constexpr double loss_share = 0.02;         // of plain decoding time, given to trials
    static constexpr double declined_share = 0.005;    // the same once drafting was judged not to pay
    static constexpr double gain_needed = 1.03;        // speed against plain to start or go on drafting

    /// Rows to draft in the next round, 0 for plain. `block_slots`: how many the drafter offers.
    [[nodiscard]] std::int32_t decide(std::int32_t block_slots);

    /// A finished one-row round.
    void observe_plain(double ms);
    /// A finished draft round of fixed_rows that emitted `emitted` tokens.
    void observe_draft(double ms, std::int32_t emitted);

    /// Why drafting is off now; empty while it is on.
    [[nodiscard]] std::string declined() const;
    [[nodiscard]] double plain_ms() const;    // median of recent rounds, 0: unknown
    [[nodiscard]] double draft_gain() const;  // speed of recent draft rounds against plain, 0: unknown

  private:
    struct DraftRound {
        double ms;
        std::int32_t emitted;
    };
    static constexpr std::size_t history = 32;
    static constexpr std::int32_t plain_needed = 4;  // plain rounds before the first trial
    static constexpr std::int32_t refresh_interval =
        64;  // draft rounds between two plain ones that renew the reference

    std::deque<double> plain_;
    std::deque<DraftRound> draft_;
    double budget_ms_ = 0.0;
    bool started_ = false;
    bool drafting_ = false;
    bool judged_ = false;
    std::int32_t since_check_ = 0;
    std::int32_t since_plain_ = 0;

    void judge();
    [[nodiscard]] double trial_loss_ms() const;
};

}  // namespace dflash
