// Which widths of a target batch to time with the time there is, and what they take. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace dflash {

struct WidthTime {
    std::int32_t rows;
    double ms;
};

/// Hands out widths, most useful first, the narrow ones several times; leaves out what would not fit into the budget.
class TimingPlan {
  public:
    TimingPlan(double budget_ms, std::int32_t max_rows) : budget_ms_(budget_ms), max_rows_(max_rows) {}

    /// Rows of the next batch to time; 0: enough. One row first, whatever the budget.
    [[nodiscard]] std::int32_t next();
    void record(std::int32_t rows, double ms);

    /// By ascending rows: the median of three runs and more, the shorter of two (the first one warms up).
    [[nodiscard]] std::vector<WidthTime> times() const;

  private:
    [[nodiscard]] double expected_ms(std::int32_t rows) const;

    double budget_ms_;
    std::int32_t max_rows_;
    double spent_ms_ = 0.0;
    std::size_t place_ = 0;
    std::map<std::int32_t, std::vector<double>> runs_;
};

}  // namespace dflash
