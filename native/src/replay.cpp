// The proof: decodes a conversation anew in the batches it was made in and samples it again.
#include <string>

#include "dflash/engine.h"
#include "dflash/error.h"
#include "dflash/verifier.h"

namespace dflash {

namespace {

/// The record's rows again: committed tokens, and a dummy in the place of each rejected one.
std::vector<Row> replay_rows(const DecodeRecord & record, std::span<const llama_token> tokens) {
    const auto pos0 = static_cast<std::size_t>(record.pos0);
    std::vector<llama_token> row_tokens(static_cast<std::size_t>(record.n_rows), tokens[pos0]);
    for (std::int32_t i = 0; i < record.n_kept; ++i) {
        row_tokens[static_cast<std::size_t>(record.kept_row(i))] = tokens[pos0 + static_cast<std::size_t>(i)];
    }
    if (!record.tree.parents.empty()) {
        return verify_rows(record.tree.parents, row_tokens, record.pos0);
    }
    std::vector<Row> rows;
    rows.reserve(row_tokens.size());
    for (std::int32_t i = 0; i < record.n_rows; ++i) {
        const bool last = record.kind == RoundKind::plain && i + 1 == record.n_rows;
        rows.push_back({row_tokens[static_cast<std::size_t>(i)], record.pos0 + i, record.all_logits || last});
    }
    return rows;
}

}  // namespace

ReplayResult Engine::replay(llama_sampler * sampler) {
    if (sampler == nullptr) {
        throw Error(ErrorCode::invalid_argument, "replay needs a sampler");
    }
    const std::vector<llama_token> tokens(session_.tokens().begin(), session_.tokens().end());
    const std::vector<DecodeRecord> records(session_.records().begin(), session_.records().end());
    ReplayResult result;
    output_rows_.clear();
    target_.rewind(0);
    try {
        for (const DecodeRecord & record : records) {
            if (record.n_rows > target_.n_chunk()) {
                throw Error(ErrorCode::invalid_argument,
                            "the conversation holds a batch of " + std::to_string(record.n_rows) +
                                " rows, this context decodes at most " + std::to_string(target_.n_chunk()));
            }
            const std::vector<Row> rows = replay_rows(record, tokens);
            target_.share_prefix(n_leaves(rows), record.pos0);
            target_.decode(rows, false);
            const std::int32_t n_samples = record.current_run ? record.n_emitted : 0;
            for (std::int32_t i = 0; i < n_samples; ++i) {
                const bool draft = record.kind == RoundKind::draft;
                const std::int32_t row = draft ? record.kept_row(i) : record.n_rows - 1;
                const auto expected =
                    static_cast<std::size_t>(draft ? record.pos0 + 1 + i : record.pos0 + record.n_rows);
                if (sample_row(sampler, row) == tokens[expected]) {
                    ++result.exact;
                } else if (result.first_mismatch < 0) {
                    result.first_mismatch = result.tokens;
                }
                ++result.tokens;
            }
            const std::int32_t end = record.pos0 + record.n_kept;
            if (n_leaves(rows) > 1) {
                const auto last = static_cast<std::size_t>(record.kept_row(record.n_kept - 1));
                target_.keep_leaf(leaf_of(rows[last]), record.pos0, end);
            } else if (record.n_kept < record.n_rows) {
                target_.rewind(end);
            }
        }
    } catch (...) {
        target_.rewind(0);
        session_.forget_decoded();
        throw;
    }
    return result;
}

}  // namespace dflash
