// Follows the chains of the present text, then of past ones, and takes the longest match.
#include "dflash/copy_index.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace dflash {

namespace {

constexpr llama_token border = -1;  // equals no token, so that no match runs across it
constexpr std::int32_t long_match = 8;
constexpr std::int32_t short_match = 2;  // so common that the majority tells more than the latest
constexpr std::int32_t near_places = 16;
constexpr std::int32_t near_tokens = 40;  // that a long match is remembered for

std::size_t common_prefix(std::span<const llama_token> a, std::span<const llama_token> b) {
    constexpr std::size_t block = 1024;
    const std::size_t n = std::min(a.size(), b.size());
    std::size_t i = 0;
    while (i + block <= n && std::memcmp(&a[i], &b[i], block * sizeof(llama_token)) == 0) {
        i += block;
    }
    while (i < n && a[i] == b[i]) {
        ++i;
    }
    return i;
}

std::int32_t size_of(std::span<const llama_token> text) { return static_cast<std::int32_t>(text.size()); }

}  // namespace

void CopyIndex::sync(std::span<const llama_token> tokens) {
    const std::size_t n_same = common_prefix(present_, tokens);
    for (PlaceChains * chains : {&pairs_, &singles_}) {
        chains->shrink(present_, static_cast<std::int32_t>(n_same));
    }
    present_.resize(n_same);
    present_.insert(present_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(n_same), tokens.end());
    for (PlaceChains * chains : {&pairs_, &singles_}) {
        chains->grow(present_);
    }
}

void CopyIndex::add_past(std::span<const llama_token> tokens) {
    constexpr auto most = static_cast<std::size_t>(max_past);
    const auto text = tokens.last(std::min(tokens.size(), most - 1));
    if (text.empty()) {
        return;
    }
    const std::size_t size = past_.size() + text.size() + 1;
    const bool full = size > most;
    if (full) {
        // A quarter more than needed, since the rest is chained anew.
        const std::size_t n_dropped = std::min(past_.size(), size - most + most / 4);
        past_.erase(past_.begin(), past_.begin() + static_cast<std::ptrdiff_t>(n_dropped));
    }
    past_.insert(past_.end(), text.begin(), text.end());
    past_.push_back(border);
    full ? past_pairs_.renew(past_) : past_pairs_.grow(past_);
}

void CopyIndex::look_at(std::span<const llama_token> text, std::int32_t place, std::int32_t least, std::int32_t bonus) {
    const std::int32_t most = std::min({max_match, place, size_of(present_)});
    const llama_token * end = present_.data() + present_.size();
    std::int32_t length = 0;
    while (length < most && text[static_cast<std::size_t>(place - 1 - length)] == *(end - 1 - length)) {
        ++length;
    }
    work_ += length + 1;
    if (length >= least) {
        found_.push_back({text, place, length + bonus});
    }
}

bool CopyIndex::is_near(std::int32_t place) const {
    const std::int32_t size = size_of(present_);
    return distance_ > 0 && size >= long_size_ && size <= long_size_ + near_tokens &&
           std::abs(size - place - distance_) <= near_places;
}

void CopyIndex::look_along(const PlaceChains & chains, std::span<const llama_token> text, std::int32_t place,
                           std::int32_t least) {
    const std::size_t most = found_.size() + static_cast<std::size_t>(max_sources);
    const bool present = text.data() == present_.data();
    for (std::int32_t step = 0; step < max_steps && place > 0 && found_.size() < most; ++step) {
        ++work_;
        // Of past text, what ends a conversation; of the present text, what is looked at as near.
        const bool skip =
            place >= size_of(text) || text[static_cast<std::size_t>(place)] == border || (present && is_near(place));
        if (!skip) {
            look_at(text, place, least, 0);
        }
        place = chains.previous(place);
    }
}

void CopyIndex::look_near() {
    const std::int32_t size = size_of(present_);
    const std::int32_t middle = size - distance_;
    for (std::int32_t place = std::min(middle + near_places, size - 1);
         place >= std::max(middle - near_places, 1) && is_near(place); --place) {
        look_at(present_, place, 1, 1);
    }
}

const CopyIndex::Found & CopyIndex::best() const {
    const auto longest = std::ranges::max_element(found_, {}, &Found::length);  // the first of them: the latest place
    if (longest->length > short_match) {
        return *longest;
    }
    const Found * best = nullptr;
    std::ptrdiff_t most = 0;
    for (const Found & found : found_) {
        if (found.length < longest->length) {
            continue;
        }
        const std::ptrdiff_t n = std::ranges::count_if(
            found_, [&](const Found & other) { return other.length == found.length && other.next() == found.next(); });
        if (n > most) {
            most = n;
            best = &found;
        }
    }
    return *best;
}

CopyProposal CopyIndex::propose(std::int32_t n) {
    work_ = 0;
    found_.clear();
    const std::int32_t size = size_of(present_);
    CopyProposal out;
    if (n < 1 || size < 2) {
        return out;
    }
    look_near();
    look_along(pairs_, present_, pairs_.previous(size), 2);
    look_along(past_pairs_, past_, past_pairs_.last_place(present_), 2);
    if (found_.empty()) {
        look_along(singles_, present_, singles_.previous(size), 1);
    }
    if (found_.empty()) {
        return out;
    }
    const Found & source = best();
    const bool present = source.text.data() == present_.data();
    if (present && source.length >= long_match) {
        distance_ = size - source.place;
        long_size_ = size;
    }
    const auto following = source.text.subspan(static_cast<std::size_t>(source.place));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        const llama_token token = i < following.size() ? following[i] : out.tokens[i - following.size()];
        if (token == border) {
            break;
        }
        out.tokens.push_back(token);
    }
    out.match_length = source.length;
    out.n_sources = static_cast<std::int32_t>(found_.size());
    out.n_agreeing = static_cast<std::int32_t>(
        std::ranges::count_if(found_, [&](const Found & found) { return found.next() == out.tokens.front(); }));
    return out;
}

}  // namespace dflash
