// Keeps trials cheap and losses short.
#include "dflash/round_guard.h"

#include <algorithm>
#include <cmath>

namespace dflash {

void TrialPurse::earn(double tokens) noexcept {
    allowance_ = std::min(allowance_ + tokens, std::max({most, asked_, allowance_}));
}

void TrialPurse::pass(std::int32_t emitted) noexcept {
    const std::int32_t before = tokens_;
    tokens_ = std::min(tokens_ + emitted, 2 * first_tokens);
    const std::int32_t paid = before >= first_tokens ? emitted : std::max(0, tokens_ - first_tokens);
    earn(share * paid);
    since_ += emitted;
}

bool TrialPurse::due(double cost) noexcept {
    asked_ = cost;
    return since_ >= interval_ && allowance_ >= cost;
}

void TrialPurse::settle(double cost, bool promising) noexcept {
    last_cost_ = std::max(cost, 0.0);
    earn(-cost);
    since_ = 0;
    if (promising) {
        interval_ = 1;
        return;
    }
    const auto longest =
        static_cast<std::int32_t>(std::clamp(cost / share, static_cast<double>(last_interval), 4096.0));
    interval_ = std::clamp(2 * interval_, first_interval, longest);
}

void TrialPurse::refund() noexcept {
    earn(last_cost_);
    last_cost_ = 0.0;
    interval_ = 1;
}

void TrialPurse::hurry() noexcept { interval_ = first_interval; }

std::int32_t TrialPurse::next_in() const noexcept { return std::max(0, interval_ - since_); }

void StakePurse::settle(double won) noexcept { held_ = std::min(held_ + won, most); }

void RoundGuard::settle(double spent, double emitted) noexcept {
    constexpr double keep = 1.0 - 1.0 / memory;
    const double won = emitted - spent;
    won_ = keep * won_ + won;
    squares_ = keep * squares_ + won * won;
    slump_ = std::max(0.0, slump_ - won);
    spent_ = keep * spent_ + spent;
    if (won_ > worst_loss) {
        pause_ = first_pause;
        distrust_ = 0;
    }
    const bool no_chance = won_ < -loss && won_ < -std::sqrt(squares_);
    if (won_ < -loss_share * spent_ && (no_chance || won_ < -worst_loss)) {
        struck_speed_ = speed();
        ++strikes_;
        ++distrust_;
        pause_left_ = pause_;
        pause_ = std::min(2 * pause_, last_pause);
        won_ = squares_ = spent_ = 0.0;
    }
}

bool RoundGuard::has_credit() const noexcept { return speed() > credit_speed && slump_ < credit; }

void RoundGuard::pass(std::int32_t emitted) noexcept { pause_left_ = std::max(0, pause_left_ - emitted); }

}  // namespace dflash
