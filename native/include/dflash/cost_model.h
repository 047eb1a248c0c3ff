// Measured times of target batches by rows and context, of draft passes and of what is left of a round. Pure.
#pragma once

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
};

/// Learns online: a shape per width that moves slowly, and one load factor that follows the machine fast.
class CostModel {
  public:
    /// Throws Error(invalid_argument) on a table that is not finite, not positive or not ascending.
    void set_table(const CostTable & table);
    [[nodiscard]] CostTable table() const;  // the load factor taken out

    /// Widths with a measured time, ascending; empty: nothing is known yet.
    [[nodiscard]] std::span<const std::int32_t> widths() const noexcept;
    /// Predicted under the load of now. Between measured widths: the next wider one's (steps stay steps).
    [[nodiscard]] double target_ms(std::int32_t rows, std::int32_t n_past) const;
    [[nodiscard]] double draft_ms(std::int32_t slots) const;
    [[nodiscard]] double rest_ms(std::int32_t emitted) const;
    [[nodiscard]] double load() const noexcept;  // 1: as in the table

    void observe_target(std::int32_t rows, std::int32_t n_past, double ms);
    void observe_draft(std::int32_t slots, double ms);
    void observe_rest(std::int32_t emitted, double ms);
};

}  // namespace dflash
