// Judges drafting by measured times, with trials on a loss budget.
#include "dflash/planner.h"

#include <algorithm>
#include <cstdio>
#include <ranges>
#include <vector>

namespace dflash {

namespace {

double median(std::vector<double> values) {
    if (values.empty()) {
        return 0.0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

}  // namespace

double Planner::plain_ms() const { return median({plain_.begin(), plain_.end()}); }

double Planner::draft_gain() const {
    if (draft_.empty() || plain_.empty()) {
        return 0.0;
    }
    const auto n = static_cast<std::ptrdiff_t>(std::min<std::size_t>(draft_.size(), check_interval));
    std::vector<double> times;
    double emitted = 0.0;
    for (const DraftRound & round : std::ranges::subrange(draft_.end() - n, draft_.end())) {
        times.push_back(round.ms);
        emitted += round.emitted;
    }
    const double round_ms = median(std::move(times));
    return round_ms > 0.0 ? emitted / static_cast<double>(n) * plain_ms() / round_ms : 0.0;
}

double Planner::trial_loss_ms() const {
    const double gain = draft_gain();
    if (gain <= 0.0) {
        return plain_ms();  // nothing known: as dear as a token
    }
    return std::max(0.0, draft_.back().ms * (1.0 - gain));
}

std::int32_t Planner::decide(std::int32_t block_slots) {
    if (block_slots < 1 || plain_.size() < static_cast<std::size_t>(plain_needed)) {
        return 0;
    }
    const std::int32_t rows = std::min(block_slots, fixed_rows);
    if (drafting_) {
        return since_plain_ >= refresh_interval ? 0 : rows;
    }
    return budget_ms_ >= trial_loss_ms() ? rows : 0;
}

void Planner::observe_plain(double ms) {
    plain_.push_back(ms);
    if (plain_.size() > history) {
        plain_.pop_front();
    }
    since_plain_ = 0;
    budget_ms_ += (judged_ && !drafting_ ? declined_share : loss_share) * ms;
    if (!started_ && plain_.size() >= static_cast<std::size_t>(plain_needed)) {
        started_ = true;
        budget_ms_ = plain_ms();  // the first trial costs about one token
    }
    // No hoarding: at most one batch of trials is ever affordable at once.
    budget_ms_ = std::min(budget_ms_, 2.0 * plain_ms());
}

void Planner::observe_draft(double ms, std::int32_t emitted) {
    draft_.push_back({ms, emitted});
    if (draft_.size() > history) {
        draft_.pop_front();
    }
    ++since_plain_;
    budget_ms_ = std::min(budget_ms_ + emitted * plain_ms() - ms, 2.0 * plain_ms());
    if (++since_check_ >= check_interval) {
        since_check_ = 0;
        judge();
    }
}

void Planner::judge() {
    judged_ = true;
    drafting_ = draft_gain() >= gain_needed;
}

std::string Planner::declined() const {
    if (drafting_) {
        return {};
    }
    if (draft_.empty()) {
        return "too few rounds so far to judge it";
    }
    char text[96];
    std::snprintf(text, sizeof(text), "drafting ran at %.2f of plain speed here", draft_gain());
    return text;
}

}  // namespace dflash
