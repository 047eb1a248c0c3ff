// Shares K/V cells between the leaves of a tree; every id was checked before llama.cpp, which aborts on wrong ones.
#include "leaf_sequences.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "dflash/error.h"

namespace dflash {

namespace {

// Neither recurrent nor hybrid to llama.cpp, but with an index beside the K/V cells.
constexpr std::array indexed_architectures{
    std::string_view{"deepseek32"}, std::string_view{"dots3note"},  std::string_view{"glm-dsa"},
    std::string_view{"hy_v4"},      std::string_view{"minimax-m3"},
};

}  // namespace

bool has_dense_memory(const llama_model * model, const std::string & architecture) {
    const bool indexed =
        std::ranges::find(indexed_architectures, std::string_view{architecture}) != indexed_architectures.end();
    return !indexed && !llama_model_is_recurrent(model) && !llama_model_is_hybrid(model) &&
           !llama_model_has_encoder(model) && llama_model_n_swa(model) == 0;
}

void LeafSequences::check(std::span<const Row> rows) const {
    const auto bad = std::ranges::find_if(
        rows, [&](const Row & row) { return row.seqs == 0 || std::cmp_greater(std::bit_width(row.seqs), most_); });
    if (bad != rows.end()) {
        throw Error(ErrorCode::invalid_argument, "row " + std::to_string(bad - rows.begin()) +
                                                     " of a batch belongs to no sequence, or to one beyond the " +
                                                     std::to_string(most_) + " of this context");
    }
}

void LeafSequences::share(llama_memory_t memory, std::int32_t n_leaves, llama_pos pos) {
    if (n_leaves < 1 || n_leaves > most_) {
        throw Error(ErrorCode::invalid_argument, "a tree of " + std::to_string(n_leaves) +
                                                     " leaves does not fit this context, which takes " +
                                                     std::to_string(most_));
    }
    for (std::int32_t leaf = 1; leaf < n_leaves; ++leaf) {
        llama_pos & end = shared_end_[static_cast<std::size_t>(leaf)];
        if (end < pos) {
            llama_memory_seq_cp(memory, 0, leaf, end, pos);
            end = pos;
        }
    }
    n_used_ = std::max(n_used_, n_leaves);
}

void LeafSequences::keep(llama_memory_t memory, std::int32_t leaf, llama_pos pos, llama_pos end) const {
    llama_memory_seq_rm(memory, leaf, end, -1);
    if (leaf != 0) {
        llama_memory_seq_rm(memory, 0, pos, -1);
        llama_memory_seq_cp(memory, leaf, 0, pos, end);
    }
    for (std::int32_t other = 1; other < n_used_; ++other) {
        llama_memory_seq_rm(memory, other, pos, -1);
    }
}

void LeafSequences::rewind(llama_memory_t memory, llama_pos pos) {
    if (n_used_ == 1) {
        return;
    }
    llama_memory_seq_rm(memory, -1, pos, -1);
    for (llama_pos & end : shared_end_) {
        end = std::min(end, pos);
    }
    n_used_ = pos == 0 ? 1 : n_used_;
}

void LeafSequences::forget() noexcept {
    shared_end_ = {};
    n_used_ = 1;
}

}  // namespace dflash
