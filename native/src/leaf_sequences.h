// Sequence ids of a tree's leaves: each shares the conversation's prefix, so that all leaves fit into one batch.
#pragma once

#include <llama.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "dflash/llama_bridge.h"

namespace dflash {

/// Is a conversation in this target's memory nothing but K/V cells that sequences can share?
[[nodiscard]] bool has_dense_memory(const llama_model * model, const std::string & architecture);

/// Sequence 0 holds the conversation. The others hold a prefix of it, kept between trees, so that each tree adds few
/// cells: giving a cell one more sequence costs llama.cpp far more than passing over it.
class LeafSequences {
  public:
    void set_most(std::int32_t n) noexcept { most_ = n; }
    [[nodiscard]] std::int32_t most() const noexcept { return most_; }

    /// Throws Error(invalid_argument) where a row belongs to no sequence or to one that the context lacks.
    void check(std::span<const Row> rows) const;
    /// See TargetContext::share_prefix.
    void share(llama_memory_t memory, std::int32_t n_leaves, llama_pos pos);
    /// See TargetContext::keep_leaf.
    void keep(llama_memory_t memory, std::int32_t leaf, llama_pos pos, llama_pos end) const;
    /// Removes positions >= pos from all sequences; a tree's batch that failed leaves cells in any of them.
    void rewind(llama_memory_t memory, llama_pos pos);
    /// The memory was emptied.
    void forget() noexcept;

  private:
    std::array<llama_pos, max_sequences> shared_end_{};  // sequence s holds the positions < shared_end_[s]
    std::int32_t most_ = 1;
    std::int32_t n_used_ = 1;  // sequences that may hold anything
};

}  // namespace dflash
