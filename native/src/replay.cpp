// The proof: decodes a conversation anew in the batches it was made in and samples it again.
#include <algorithm>

#include "dflash/engine.h"
#include "dflash/error.h"

namespace dflash {

namespace {

/// The record's rows again: committed tokens, and a dummy in the place of each rejected one.
std::vector<Row> replay_rows(const DecodeRecord & record, std::span<const llama_token> tokens) {
    std::vector<Row> rows;
    rows.reserve(static_cast<std::size_t>(record.n_rows));
    for (std::int32_t i = 0; i < record.n_rows; ++i) {
        const std::int32_t pos = record.pos0 + i;
        const llama_token token = tokens[static_cast<std::size_t>(i < record.n_kept ? pos : record.pos0)];
        const bool last = record.kind == RoundKind::plain && i + 1 == record.n_rows;
        rows.push_back({token, pos, record.all_logits || last});
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
            target_.decode(replay_rows(record, tokens), false);
            const std::int32_t n_samples = record.current_run ? record.n_emitted : 0;
            for (std::int32_t i = 0; i < n_samples; ++i) {
                const bool draft = record.kind == RoundKind::draft;
                const std::int32_t row = draft ? i : record.n_rows - 1;
                const auto expected =
                    static_cast<std::size_t>(draft ? record.pos0 + 1 + i : record.pos0 + record.n_rows);
                if (sample_row(sampler, row) == tokens[expected]) {
                    ++result.exact;
                } else if (result.first_mismatch < 0) {
                    result.first_mismatch = result.tokens;
                }
                ++result.tokens;
            }
            if (record.n_kept < record.n_rows) {
                target_.rewind(record.pos0 + record.n_kept);
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
