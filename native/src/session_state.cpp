// Saves and restores the bookkeeping of a session.
#include "dflash/session.h"

#include <utility>

#include "byte_stream.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::uint32_t session_magic = 0x53534644U;  // "DFSS"

void write_record(ByteWriter & out, const DecodeRecord & record) {
    out.value(record.pos0);
    out.value(record.n_rows);
    out.value(record.n_kept);
    out.value(record.n_emitted);
    out.value(record.kind);
    out.value(static_cast<std::uint8_t>(record.all_logits));
    out.array<std::int32_t>(record.tree.parents);
    out.array<std::int32_t>(record.tree.kept_rows);
}

/// Of no current run.
DecodeRecord read_record(ByteReader & in) {
    DecodeRecord record{};
    record.pos0 = in.value<std::int32_t>();
    record.n_rows = in.value<std::int32_t>();
    record.n_kept = in.value<std::int32_t>();
    record.n_emitted = in.value<std::int32_t>();
    record.kind = in.value<RoundKind>();
    record.all_logits = in.value<std::uint8_t>() != 0;
    record.tree.parents = in.array<std::int32_t>();
    record.tree.kept_rows = in.array<std::int32_t>();
    return record;
}

/// Do the records, one after the other, tell how positions 0 to n_decoded - 1 came in?
bool adds_up(std::span<const DecodeRecord> records, std::int32_t n_decoded) {
    std::int64_t pos = 0;
    for (const DecodeRecord & record : records) {
        if (record.pos0 != pos || !is_well_formed(record)) {
            return false;
        }
        pos += record.n_kept;
    }
    return pos == n_decoded;
}

}  // namespace

std::vector<std::byte> Session::save() const {
    ByteWriter out;
    out.value(session_magic);
    out.value(state_version);
    out.value(feature_size_);
    out.value(n_decoded_);
    out.array<llama_token>(tokens_);
    out.value(static_cast<std::uint64_t>(records_.size()));
    for (const DecodeRecord & record : records_) {
        write_record(out, record);
    }
    out.value(pending_.pos0);
    out.array<float>(pending_.rows);
    out.array<std::byte>(draft_context ? draft_context->save() : std::vector<std::byte>{});
    return out.take();
}

void Session::restore(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    check_state_header(in, session_magic);
    const auto feature_size = in.value<std::int32_t>();
    const auto n_decoded = in.value<std::int32_t>();
    auto tokens = in.array<llama_token>();
    std::vector<DecodeRecord> records;
    for (auto n = in.value<std::uint64_t>(); n > 0; --n) {
        records.push_back(read_record(in));
    }
    PendingTaps pending;
    pending.pos0 = in.value<std::int32_t>();
    pending.rows = in.array<float>();
    const auto context = in.array<std::byte>();
    in.finish();
    const bool consistent =
        n_decoded >= 0 && n_decoded <= static_cast<std::int32_t>(tokens.size()) && adds_up(records, n_decoded);
    if (!consistent || (feature_size_ > 0 && pending.rows.size() % static_cast<std::size_t>(feature_size_) != 0)) {
        throw Error(ErrorCode::invalid_argument, "the saved state is damaged: its counts disagree; save it again");
    }
    if (draft_context && feature_size == feature_size_ && !context.empty()) {
        draft_context->restore(context);
        pending_ = std::move(pending);
    } else {
        // Saved without a drafter or with another one: the text goes on, drafting starts with what comes.
        pending_ = {n_decoded, {}};
        if (draft_context) {
            draft_context->clear();
        }
    }
    tokens_ = std::move(tokens);
    records_ = std::move(records);
    n_decoded_ = n_decoded;
    notes_.clear();
    reused_n_ = 0;
}

}  // namespace dflash
