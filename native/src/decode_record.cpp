// Shapes of decoded batches: their depth, the cells they took, and whether they can be true.
#include <algorithm>
#include <utility>
#include <vector>

#include "dflash/session.h"

namespace dflash {

namespace {

bool is_path(const TreeShape & tree) {
    for (std::size_t i = 0; i < tree.kept_rows.size(); ++i) {
        const std::int32_t row = tree.kept_rows[i];
        const bool follows = i == 0 ? row == 0
                                    : row > 0 && row <= static_cast<std::int32_t>(tree.parents.size()) &&
                                          tree.parents[static_cast<std::size_t>(row - 1)] + 1 == tree.kept_rows[i - 1];
        if (!follows) {
            return false;
        }
    }
    return true;
}

}  // namespace

std::vector<std::int32_t> DecodeRecord::nodes_by_depth() const {
    if (tree.parents.empty()) {
        return std::vector<std::int32_t>(static_cast<std::size_t>(n_rows - 1), 1);
    }
    std::vector<std::int32_t> counts;
    std::vector<std::size_t> depths{0};
    for (const std::int32_t parent : tree.parents) {
        const std::size_t depth = depths[static_cast<std::size_t>(parent + 1)] + 1;
        depths.push_back(depth);
        counts.resize(std::max(counts.size(), depth));
        ++counts[depth - 1];
    }
    return counts;
}

bool is_well_formed(const DecodeRecord & record) {
    const TreeShape & tree = record.tree;
    if (record.pos0 < 0 || record.n_kept < 1 || record.n_kept > record.n_rows || record.n_emitted < 0 ||
        record.n_emitted > record.n_kept || record.kind > RoundKind::draft) {
        return false;
    }
    if (tree.parents.empty()) {
        return tree.kept_rows.empty();
    }
    std::int32_t node = 0;
    const bool ordered =
        std::ranges::all_of(tree.parents, [&](std::int32_t parent) { return parent >= -1 && parent < node++; });
    return ordered && record.kind == RoundKind::draft && record.all_logits &&
           std::cmp_equal(tree.parents.size(), record.n_rows - 1) &&
           std::cmp_equal(tree.kept_rows.size(), record.n_kept) && is_path(tree);
}

std::int32_t positions_in_place(std::span<const DecodeRecord> records) {
    std::vector<bool> used;  // by cell
    std::vector<std::size_t> cell_of;
    std::size_t lowest_free = 0;
    for (const DecodeRecord & record : records) {
        std::vector<std::size_t> cells;  // of the rows, up to the last one kept
        const std::int32_t last = record.kept_row(record.n_kept - 1);
        for (std::size_t cell = lowest_free; std::cmp_less_equal(cells.size(), last); ++cell) {
            if (cell == used.size()) {
                used.push_back(false);
            }
            if (!used[cell]) {
                cells.push_back(cell);
            }
        }
        for (std::int32_t i = 0; i < record.n_kept; ++i) {
            const std::size_t cell = cells[static_cast<std::size_t>(record.kept_row(i))];
            used[cell] = true;
            cell_of.push_back(cell);
        }
        while (lowest_free < used.size() && used[lowest_free]) {
            ++lowest_free;
        }
    }
    const auto moved = std::ranges::find_if(cell_of, [&](std::size_t cell) { return cell > lowest_free; });
    return static_cast<std::int32_t>(moved - cell_of.begin());
}

}  // namespace dflash
