// Learns what target batches, draft passes and the rest of a round cost.
#include "dflash/cost_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "dflash/error.h"

namespace dflash {

namespace {

constexpr double drift = 0.05;         // share of a miss by which a trusted shape moves
constexpr double miss_bound = 0.5;     // of a logarithm: what lies beyond counts as this much
constexpr double far_miss = 1.0;       // of a logarithm: what lies beyond is no drift
constexpr double standard_off = 0.03;  // of a logarithm: misses of one-row rounds that are still noise

constexpr std::int32_t misses_needed = 3;

bool usable(double ms) { return std::isfinite(ms) && ms > 0.0; }

double bounded(double miss) { return std::clamp(miss, -miss_bound, miss_bound); }

/// The middle value, of two the smaller; sorts a handful of values in place.
double lower_median(std::span<double> values) {
    for (std::size_t i = 1; i < values.size(); ++i) {
        for (std::size_t j = i; j > 0 && values[j] < values[j - 1]; --j) {
            std::swap(values[j], values[j - 1]);
        }
    }
    return values[(values.size() - 1) / 2];
}

/// What a slow estimate takes over from a new ratio: a little, nothing of an outlier, all where the last few are far
/// off.
double slow_part(double ratio, const RecentMedian & ratios) {
    const double level = ratios.value(0.0);
    if (std::abs(level) > far_miss) {
        return level;
    }
    return std::abs(ratio) > far_miss ? 0.0 : drift * bounded(ratio);
}

double shape(const WidthCost & cost, std::int32_t n_past) { return cost.base_ms + cost.slope_ms * std::max(n_past, 0); }

void refuse(const std::string & what, const std::string & field) {
    throw Error(ErrorCode::invalid_argument, "cost table: " + what + "; measure it anew", field);
}

void check(const CostTable & table) {
    std::int32_t last = 0;
    for (const WidthCost & width : table.widths) {
        if (width.rows <= last) {
            refuse("widths must ascend from 1, found " + std::to_string(width.rows) + " after " + std::to_string(last),
                   "widths");
        }
        last = width.rows;
        if (!usable(width.base_ms) || !std::isfinite(width.slope_ms) || width.slope_ms < 0.0) {
            refuse("the times of " + std::to_string(width.rows) + " rows must be finite and positive", "widths");
        }
    }
    for (const double ms : {table.draft_ms, table.draft_slot_ms, table.rest_ms, table.leaf_ms}) {
        if (!std::isfinite(ms) || ms < 0.0) {
            refuse("times of draft pass and rest must be finite and not negative", "draft_ms");
        }
    }
    if (table.draft_slots < 0 || (table.draft_ms > 0.0 && table.draft_slot_ms * table.draft_slots > table.draft_ms)) {
        refuse("the slots of a draft pass cannot save more than it takes", "draft_slot_ms");
    }
}

}  // namespace

void RecentMedian::push(double value) noexcept {
    values_[next_] = value;
    next_ = (next_ + 1) % window;
    n_ = std::min(n_ + 1, window);
}

void RecentMedian::shift(double by) noexcept {
    for (double & value : values_) {
        value += by;
    }
}

double RecentMedian::value(double otherwise) const noexcept {
    if (n_ == 0) {
        return otherwise;
    }
    std::array<double, window> sorted = values_;
    return lower_median(std::span(sorted).first(n_));
}

void CostModel::set_table(const CostTable & table) {
    check(table);
    *this = CostModel{};
    extra_ = table;
    extra_.widths.clear();
    for (const WidthCost & cost : table.widths) {
        rows_.push_back(cost.rows);
        widths_.push_back({cost, cost.base_ms, 0, 0, {}});
    }
}

CostTable CostModel::table() const {
    CostTable out = extra_;
    const double draft_factor = std::exp(draft_ratios_.value(0.0));
    const double rest_factor = std::exp(rest_ratios_.value(0.0));
    out.draft_ms *= draft_factor;
    out.draft_slot_ms *= draft_factor;
    out.rest_ms *= rest_factor;
    out.leaf_ms *= rest_factor;
    for (const Width & width : widths_) {
        out.widths.push_back(width.cost);
    }
    return out;
}

std::int32_t CostModel::observations(std::int32_t rows) const noexcept {
    const auto it = std::ranges::lower_bound(rows_, rows);
    if (it == rows_.end() || *it != rows) {
        return 0;
    }
    const Width & found = widths_[static_cast<std::size_t>(it - rows_.begin())];
    return found.n + (found.prior_ms > 0.0 ? trusted_after : 0);
}

bool CostModel::seen(std::int32_t rows) const noexcept {
    const auto it = std::ranges::lower_bound(rows_, rows);
    return it != rows_.end() && *it == rows && widths_[static_cast<std::size_t>(it - rows_.begin())].n > 0;
}

double CostModel::target_ms(std::int32_t rows, std::int32_t n_past) const {
    if (widths_.empty()) {
        return 0.0;
    }
    const double factor = load();
    const auto it = std::ranges::lower_bound(rows_, rows);
    if (it != rows_.end()) {
        return factor * shape(widths_[static_cast<std::size_t>(it - rows_.begin())].cost, n_past);
    }
    const double widest = shape(widths_.back().cost, n_past);
    double per_row = widest / rows_.back();
    if (rows_.size() > 1) {
        const std::size_t before = rows_.size() - 2;
        const double rise = widest - shape(widths_[before].cost, n_past);
        per_row = std::max(0.0, rise) / (rows_.back() - rows_[before]);
    }
    return factor * (widest + per_row * (rows - rows_.back()));
}

double CostModel::load() const noexcept { return std::exp(load_log_); }

CostModel::Width & CostModel::width(std::int32_t rows, std::int32_t n_past, double ms) {
    const auto at = std::ranges::lower_bound(rows_, rows) - rows_.begin();
    const auto index = static_cast<std::size_t>(at);
    if (index < rows_.size() && rows_[index] == rows) {
        return widths_[index];
    }
    // A new width grows with the context as its neighbour does.
    WidthCost cost{rows, ms, 0.0};
    if (!widths_.empty()) {
        const WidthCost & near = widths_[std::min(index, widths_.size() - 1)].cost;
        const double quiet = ms / load();
        const double scale = quiet / shape(near, n_past);
        cost.base_ms = near.base_ms * scale;
        cost.slope_ms = near.slope_ms * scale;
    }
    rows_.insert(rows_.begin() + at, rows);
    return *widths_.insert(widths_.begin() + at, Width{cost, 0.0, 0, 0, {}});
}

void CostModel::learn_young(Width & width, double ratio) {
    const double before = width.cost.base_ms;
    const double unit = width.prior_ms > 0.0 ? width.prior_ms : before;
    const auto n = static_cast<std::size_t>(width.n);
    width.first[n] = ratio * before;
    std::array<double, trusted_after + 1> sorted{};
    std::copy_n(width.first.begin(), n + 1, sorted.begin());
    std::size_t count = n + 1;
    if (width.prior_ms > 0.0) {
        sorted[count++] = unit;  // the table is one voice among them
    }
    const double scale = lower_median(std::span(sorted).first(count)) / before;
    width.cost.base_ms *= scale;
    width.cost.slope_ms *= scale;
}

void CostModel::check_standard(double miss) {
    if (n_plain_misses_ == 0 || plain_miss_ * miss <= 0.0) {
        plain_miss_ = miss;
        n_plain_misses_ = 0;
    }
    ++n_plain_misses_;
    plain_miss_ = std::abs(miss) < std::abs(plain_miss_) ? miss : plain_miss_;
    const double chance = 3.0 * noise_ / std::sqrt(n_plain_misses_);
    if (n_plain_misses_ < misses_needed || std::abs(plain_miss_) < std::max(standard_off, chance)) {
        return;
    }
    n_plain_misses_ = 0;
    const double shift = plain_miss_;
    ratios_.shift(shift);
    for (Width & other : widths_) {
        if (other.cost.rows != rows_.front() && other.n >= trusted_after) {
            other.cost.base_ms *= std::exp(-shift);
            other.cost.slope_ms *= std::exp(-shift);
        }
    }
}

void CostModel::observe_target(std::int32_t rows, std::int32_t n_past, double ms) {
    if (!usable(ms) || rows < 1) {
        return;
    }
    Width & seen = width(rows, n_past, ms);
    const bool standard = rows == rows_.front();
    const double ratio = std::log(ms / shape(seen.cost, n_past));
    if (seen.n < trusted_after && !(standard && seen.prior_ms > 0.0)) {
        learn_young(seen, std::exp(ratio - load_log_));
        ++seen.n;
        return;
    }
    ++seen.n;
    if (standard && since_plain_ >= trusted_after) {
        check_standard(ratio - load_log_);
    }
    since_plain_ = standard ? 0 : since_plain_ + 1;
    ratios_.push(ratio);
    load_log_ = ratios_.value(0.0);
    const double miss = ratio - load_log_;
    if (std::abs(miss) > far_miss) {
        if (++seen.n_far >= trusted_after && !standard) {
            seen.n = 0;  // learned anew
            seen.n_far = 0;
            seen.prior_ms = 0.0;
        }
        return;
    }
    seen.n_far = 0;
    noise_ += drift * (std::abs(miss) - noise_);
    if (!standard) {
        const double move = std::exp(drift * bounded(miss));
        seen.cost.base_ms *= move;
        seen.cost.slope_ms *= move;
    }
}

double CostModel::draft_shape(std::int32_t slots) const noexcept {
    const std::int32_t missing = std::max(0, extra_.draft_slots - slots);
    return std::max(extra_.draft_ms - extra_.draft_slot_ms * missing, 0.1 * extra_.draft_ms);
}

double CostModel::draft_ms(std::int32_t slots) const {
    return load() * std::exp(draft_ratios_.value(0.0)) * draft_shape(slots);
}

void CostModel::observe_draft(std::int32_t slots, double ms) {
    if (!usable(ms) || slots < 1) {
        return;
    }
    extra_.draft_slots = std::max(extra_.draft_slots, slots);
    if (extra_.draft_ms <= 0.0) {
        extra_.draft_ms = ms / load();
        return;
    }
    const double ratio = std::log(ms / load() / draft_shape(slots));
    draft_ratios_.push(ratio);
    const double move = slow_part(ratio, draft_ratios_);
    extra_.draft_ms *= std::exp(move);
    const std::int32_t missing = extra_.draft_slots - slots;
    // What a shorter pass takes less than told is what its missing slots save.
    const double saved = missing > 0 ? -move * extra_.draft_ms / missing : 0.0;
    extra_.draft_slot_ms =
        std::clamp(extra_.draft_slot_ms * std::exp(move) + saved, 0.0, 0.9 * extra_.draft_ms / extra_.draft_slots);
    draft_ratios_.shift(-move);
}

double CostModel::rest_shape(double emitted, std::int32_t extra_leaves) const noexcept {
    return extra_.rest_ms * emitted + extra_.leaf_ms * extra_leaves;
}

double CostModel::rest_ms(double emitted, std::int32_t extra_leaves) const {
    return load() * std::exp(rest_ratios_.value(0.0)) * rest_shape(emitted, extra_leaves);
}

void CostModel::observe_rest(std::int32_t emitted, double ms, std::int32_t extra_leaves) {
    if (!usable(ms) || emitted < 1 || extra_leaves < 0) {
        return;
    }
    const double quiet = ms / load();
    if (extra_.rest_ms <= 0.0) {
        extra_.rest_ms = quiet / (emitted + extra_leaves);
        return;
    }
    const double predicted = rest_shape(emitted, extra_leaves);
    if (extra_leaves > 0) {
        // Trees teach the leaf's share only; chains teach the rest.
        const double miss = std::clamp(quiet - predicted * std::exp(rest_ratios_.value(0.0)), -predicted, predicted);
        extra_.leaf_ms = std::max(0.0, extra_.leaf_ms + 4.0 * drift * miss / extra_leaves);
        return;
    }
    const double ratio = std::log(quiet / predicted);
    rest_ratios_.push(ratio);
    const double move = slow_part(ratio, rest_ratios_);
    extra_.rest_ms *= std::exp(move);
    rest_ratios_.shift(-move);
}

}  // namespace dflash
