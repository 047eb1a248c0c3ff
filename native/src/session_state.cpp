// Saves and restores the bookkeeping of a session.
#include "dflash/session.h"

#include <utility>

#include "byte_stream.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::uint32_t session_magic = 0x53534644U;  // "DFSS"

}  // namespace

std::vector<std::byte> Session::save() const {
    ByteWriter out;
    out.value(session_magic);
    out.value(state_version);
    out.value(feature_size_);
    out.value(n_decoded_);
    out.array<llama_token>(tokens_);
    out.array<DecodeRecord>(records_);
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
    auto records = in.array<DecodeRecord>();
    PendingTaps pending;
    pending.pos0 = in.value<std::int32_t>();
    pending.rows = in.array<float>();
    const auto context = in.array<std::byte>();
    in.finish();
    const bool consistent =
        n_decoded >= 0 && n_decoded <= static_cast<std::int32_t>(tokens.size()) &&
        (records.empty() ? n_decoded == 0 : records.back().pos0 + records.back().n_kept == n_decoded);
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
    for (DecodeRecord & record : records_) {
        record.current_run = false;
    }
}

}  // namespace dflash
