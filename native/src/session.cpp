// Keeps the tokens, decode records and counters of a conversation in step.
#include "dflash/session.h"

#include <algorithm>
#include <cassert>

#include "dflash/error.h"

namespace dflash {

namespace {

double median(std::vector<double> & values) {
    if (values.empty()) {
        return 0.0;
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

}  // namespace

std::int32_t Session::begin(std::span<const llama_token> prompt, bool reuse) {
    const auto limit = reuse ? std::min<std::size_t>(tokens_.size(), prompt.size()) : 0;
    std::size_t common = 0;
    while (common < limit && tokens_[common] == prompt[common]) {
        ++common;
    }
    const auto n_common = static_cast<std::int32_t>(common);
    const auto size = static_cast<std::int32_t>(prompt.size());
    // A prompt asked again: two rows take the kernels that the whole prompt took, one row others, with other numbers.
    const std::int32_t most = std::min(n_common, n_decoded_) == size ? std::max(0, size - 2) : size - 1;
    cut(n_common, std::min({n_common, most, n_decoded_}));
    tokens_.assign(prompt.begin(), prompt.end());
    for (DecodeRecord & record : records_) {
        record.current_run = false;
    }
    notes_.clear();
    reused_n_ = n_decoded_;
    return n_decoded_;
}

void Session::append(std::span<const llama_token> tokens) {
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

void Session::commit(const DecodeRecord & record, std::span<const llama_token> emitted, const RoundTimes & times,
                     const DraftNote & draft) {
    assert(record.pos0 == n_decoded_);
    if (record.kind == RoundKind::draft) {
        tokens_.resize(static_cast<std::size_t>(record.pos0) +
                       1);  // the walk may have shown tokens ahead of the commit
    }
    tokens_.insert(tokens_.end(), emitted.begin(), emitted.end());
    n_decoded_ += record.n_kept;
    records_.push_back(record);
    notes_.push_back({records_.size() - 1, record.kind == RoundKind::draft ? record.n_rows - 1 : 0, draft, times});
}

std::int32_t Session::truncate(std::int32_t n) {
    if (n < n_tokens()) {
        cut(std::max(0, n), std::min(n_decoded_, std::max(0, n - 1)));
    }
    return n_decoded_;
}

void Session::cut(std::int32_t n, std::int32_t decoded) {
    tokens_.resize(static_cast<std::size_t>(n));
    while (!records_.empty() && records_.back().pos0 >= decoded) {
        records_.pop_back();
    }
    if (!records_.empty()) {
        DecodeRecord & last = records_.back();
        last.n_kept = std::min(last.n_kept, decoded - last.pos0);
        if (!last.tree.kept_rows.empty()) {
            last.tree.kept_rows.resize(static_cast<std::size_t>(last.n_kept));
        }
        const std::int32_t first_emitted = last.kind == RoundKind::draft ? last.pos0 + 1 : last.pos0 + last.n_rows;
        last.n_emitted = std::clamp(n - first_emitted, 0, last.n_emitted);
        if (last.kind == RoundKind::draft) {
            last.n_emitted = std::min(last.n_emitted, last.n_kept);
        }
    }
    std::erase_if(notes_, [&](const RoundNote & note) { return note.record >= records_.size(); });
    n_decoded_ = decoded;
    cut_taps(decoded);
    if (draft_context) {
        draft_context->rewind(decoded);
    }
}

void Session::clear() {
    tokens_.clear();
    notes_.clear();
    reused_n_ = 0;
    forget_decoded();
}

void Session::forget_decoded() {
    n_decoded_ = 0;
    records_.clear();
    notes_.clear();
    pending_ = {};
    if (draft_context) {
        draft_context->clear();
    }
}

void Session::push_taps(std::int32_t pos0, std::span<const float> rows) {
    const std::int32_t n = feature_size_ > 0 ? static_cast<std::int32_t>(pending_.rows.size()) / feature_size_ : 0;
    if (pending_.rows.empty() || pending_.pos0 + n != pos0) {
        pending_.rows.clear();
        pending_.pos0 = pos0;
    }
    pending_.rows.insert(pending_.rows.end(), rows.begin(), rows.end());
}

void Session::cut_taps(std::int32_t pos) {
    const std::int32_t keep = std::max(0, pos - pending_.pos0);
    const std::size_t floats = static_cast<std::size_t>(keep) * static_cast<std::size_t>(feature_size_);
    if (pending_.rows.size() > floats) {
        pending_.rows.resize(floats);
    }
}

bool Session::has_emitted() const {
    // Only prompt batches and evaluated tokens emit nothing, so the search ends at once.
    return std::any_of(notes_.rbegin(), notes_.rend(),
                       [&](const RoundNote & note) { return records_[note.record].n_emitted > 0; });
}

RunStats Session::stats() const {
    RunStats stats;
    stats.reused_n = reused_n_;
    std::vector<double> plain;
    std::vector<double> draft;
    for (const RoundNote & note : notes_) {
        const DecodeRecord & record = records_[note.record];
        const bool first = stats.predicted_n == 0;
        if (first) {
            stats.prompt_n += record.n_rows;
            stats.prompt_ms += note.times.total;
        } else {
            stats.predicted_ms += note.times.total;
            stats.sums.target += note.times.target;
            stats.sums.draft += note.times.draft;
            stats.sums.sample += note.times.sample;
            stats.sums.total += note.times.total;
        }
        if (record.n_emitted == 0) {
            continue;
        }
        stats.predicted_n += record.n_emitted;
        if (record.kind == RoundKind::plain) {
            ++stats.plain_rounds;
            if (!first && record.n_rows == 1) {
                plain.push_back(note.times.total);
            }
            continue;
        }
        ++stats.draft_rounds;
        draft.push_back(note.times.total);
        stats.draft_n += note.drafted;
        const std::int32_t accepted = record.n_emitted - 1;
        stats.draft_n_accepted += accepted;
        stats.copy_rounds += note.draft.copied > 0 ? 1 : 0;
        stats.copy_n_accepted += std::min(note.draft.copied_accepted, accepted);  // a cut may have taken some
        const std::size_t depth = record.nodes_by_depth().size();
        stats.accepted_per_slot.resize(std::max(stats.accepted_per_slot.size(), depth), 0);
        for (std::int32_t slot = 0; slot < accepted; ++slot) {
            ++stats.accepted_per_slot[static_cast<std::size_t>(slot)];
        }
    }
    stats.plain_round_ms = median(plain);
    stats.draft_round_ms = median(draft);
    return stats;
}

std::vector<RoundReport> Session::rounds() const {
    std::vector<RoundReport> out;
    for (const RoundNote & note : notes_) {
        const DecodeRecord & record = records_[note.record];
        if (record.n_emitted > 0) {
            const bool drafted = record.kind == RoundKind::draft;
            out.push_back({note.draft.source, drafted ? record.nodes_by_depth() : std::vector<std::int32_t>{}});
        }
    }
    return out;
}

}  // namespace dflash
