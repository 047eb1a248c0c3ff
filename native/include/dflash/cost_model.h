// Measured times of target batches by rows and context, of draft passes and of what is left of a round. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace dflash {

/// One measured width of a target batch: ms = base + slope * cells of context.
struct WidthCost {
    std::int32_t rows = 1;
    double base_ms = 0.0;
    double slope_ms = 0.0;  // per cell
};

/// What is kept on disk: the shape of the costs on a quiet machine.
struct CostTable {
    std::vector<WidthCost> widths;  // ascending rows
    double draft_ms = 0.0;          // a draft pass with all slots, pending features injected; 0: unknown
    double draft_slot_ms = 0.0;     // what one slot less saves
    double rest_ms = 0.0;           // a round besides target and draft pass, per sampled token
    double leaf_ms = 0.0;           // the same, per leaf beyond the first
    std::int32_t draft_slots = 0;   // all slots; 0: unknown, then draft_slot_ms counts from the most that were seen
};

/// The median of the last few values. One outlier does not move it; a new level shows after three values.
class RecentMedian {
  public:
    static constexpr std::size_t window = 5;
    void push(double value) noexcept;
    void shift(double by) noexcept;                               // adds to every value held
    [[nodiscard]] double value(double otherwise) const noexcept;  // `otherwise` while empty

  private:
    std::array<double, window> values_{};
    std::size_t n_ = 0;
    std::size_t next_ = 0;
};

/// Learns online: a shape per width that moves slowly, and one load factor that follows the machine fast. One row is
/// the standard: where another width disagrees with it for long, that width's shape gives way.
class CostModel {
  public:
    /// Throws Error(invalid_argument) on a table that is not finite, not positive or not ascending. An empty list of
    /// widths is a table of which nothing is known.
    void set_table(const CostTable & table);
    [[nodiscard]] CostTable table() const;  // the load factor taken out

    /// Widths with a measured time, ascending; empty: nothing is known yet.
    [[nodiscard]] std::span<const std::int32_t> widths() const noexcept { return rows_; }
    /// Times a width was observed; what a table tells counts as trusted_after times.
    [[nodiscard]] std::int32_t observations(std::int32_t rows) const noexcept;
    /// Was the width timed since the table was set?
    [[nodiscard]] bool seen(std::int32_t rows) const noexcept;
    /// Predicted under the load of now. Between measured widths: the next wider one's (steps stay steps). Beyond the
    /// widest: on by the last two widths' time per row. 0 while nothing is known.
    [[nodiscard]] double target_ms(std::int32_t rows, std::int32_t n_past) const;
    [[nodiscard]] double draft_ms(std::int32_t slots) const;  // 0: unknown
    [[nodiscard]] double rest_ms(double emitted, std::int32_t extra_leaves = 0) const;
    [[nodiscard]] double load() const noexcept;  // 1: as in the table

    /// Times that are not finite or not positive are passed over.
    void observe_target(std::int32_t rows, std::int32_t n_past, double ms);
    void observe_draft(std::int32_t slots, double ms);
    void observe_rest(std::int32_t emitted, double ms, std::int32_t extra_leaves = 0);

    static constexpr std::int32_t trusted_after = 3;

  private:
    struct Width {
        WidthCost cost;
        double prior_ms = 0.0;  // base as the table has it; 0: not in the table
        std::int32_t n = 0;
        std::int32_t n_far = 0;  // far misses in a row: outliers, or another machine than the one that was measured
        std::array<double, trusted_after> first{};  // the first observations, over what was predicted for base_ms
    };

    std::vector<Width> widths_;
    std::vector<std::int32_t> rows_;
    RecentMedian ratios_;  // log(observed / shape) of trusted widths
    double load_log_ = 0.0;
    double noise_ = 0.0;       // usual distance of a ratio from the load, as a logarithm
    double plain_miss_ = 0.0;  // the least by which one-row rounds in a row missed the load that other widths told
    std::int32_t n_plain_misses_ = 0;
    std::int32_t since_plain_ = 0;

    CostTable extra_;  // draft and rest
    RecentMedian draft_ratios_;
    RecentMedian rest_ratios_;

    [[nodiscard]] Width & width(std::int32_t rows, std::int32_t n_past, double ms);
    void learn_young(Width & width, double ratio);
    void check_standard(double miss);
    [[nodiscard]] double draft_shape(std::int32_t slots) const noexcept;
    [[nodiscard]] double rest_shape(double emitted, std::int32_t extra_leaves) const noexcept;
};

}  // namespace dflash
