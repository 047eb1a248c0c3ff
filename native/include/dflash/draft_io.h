// The host side of a draft graph: fills its inputs, reads its candidates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dflash/draft_context.h"
#include "dflash/draft_graph_dflash.h"
#include "dflash/drafter.h"
#include "dflash/pair_spec.h"

namespace dflash {

class DraftInputs {
  public:
    /// `mask_row` [n_embd]: the mask token's embedding, unscaled.
    DraftInputs(const DrafterSpec & spec, const KvLayout & layout, std::span<const float> mask_row);

    /// Taps of n rows at pos0; the graph's other rows go to the scratch cell. `interval` already holds the rows.
    void set_inject(const DraftGraph & graph, const RingInterval & interval, std::int32_t pos0,
                    std::span<const float> taps);
    /// The block [anchor, masks] at interval.end(), seeing the interval. `anchor_row` [n_embd] as `mask_row`.
    void set_block(const DraftGraph & graph, const RingInterval & interval, std::span<const float> anchor_row);

  private:
    void set_row(std::size_t slot, std::span<const float> row);
    void fill_mask(std::size_t kind, const RingInterval & interval, std::size_t n_columns);

    const DrafterSpec & spec_;
    KvLayout layout_;
    std::vector<float> block_embd_;  // [block_size x n_embd]
    std::vector<std::int32_t> positions_;
    std::vector<std::int64_t> cells_;
    std::vector<float> mask_;       // [block_size x columns]
    std::vector<std::byte> zeros_;  // padding rows of taps
};

/// Best first, ids through `d2t` where it is not empty. False where the probabilities are no numbers.
[[nodiscard]] bool read_candidates(const DraftGraph & graph, std::span<const std::int64_t> d2t, DraftCandidates & out);

}  // namespace dflash
