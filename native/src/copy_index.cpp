// Follows the chains of the present text, then of past ones, and takes the longest match.
#include "dflash/copy_index.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace dflash {

namespace {

constexpr llama_token border = -1;  // equals no token, so that no match runs across it

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

}  // namespace

struct CopyIndex::Best {
    const ChainedText * where = nullptr;
    std::int32_t place = 0;
    std::int32_t length = 0;
};

void CopyIndex::sync(std::span<const llama_token> tokens) {
    const std::size_t n_same = common_prefix(present_.tokens(), tokens);
    present_.truncate(static_cast<std::int32_t>(n_same));
    present_.push(tokens.subspan(n_same));
}

void CopyIndex::add_past(std::span<const llama_token> tokens) {
    constexpr auto most = static_cast<std::size_t>(max_past);
    const auto text = tokens.last(std::min(tokens.size(), most - 1));
    if (text.empty()) {
        return;
    }
    const std::size_t size = static_cast<std::size_t>(past_.size()) + text.size() + 1;
    if (size > most) {
        // A quarter more than needed, since the rest is chained anew.
        past_.drop_front(
            static_cast<std::int32_t>(std::min(static_cast<std::size_t>(past_.size()), size - most + most / 4)));
    }
    past_.push(text);
    past_.push({&border, 1});
}

std::int32_t CopyIndex::match_at(std::span<const llama_token> where, std::int32_t place) const {
    const std::span<const llama_token> text = present_.tokens();
    const auto most = static_cast<std::int32_t>(
        std::min<std::size_t>({static_cast<std::size_t>(max_match), static_cast<std::size_t>(place), text.size()}));
    std::int32_t length = 0;
    while (length < most && where[static_cast<std::size_t>(place - 1 - length)] == text[text.size() - 1 - length]) {
        ++length;
    }
    work_ += length + 1;
    return length;
}

void CopyIndex::look(const ChainedText & where, std::int32_t place, std::vector<llama_token> & nexts,
                     Best & best) const {
    const std::span<const llama_token> text = where.tokens();
    for (std::int32_t step = 0; step < max_steps && place > 0; ++step, place = where.previous(place)) {
        if (nexts.size() == static_cast<std::size_t>(max_sources)) {
            return;
        }
        ++work_;
        if (place >= where.size() || text[static_cast<std::size_t>(place)] == border) {
            continue;  // nothing follows
        }
        const std::int32_t length = match_at(text, place);
        if (length < min_match) {
            continue;
        }
        nexts.push_back(text[static_cast<std::size_t>(place)]);
        if (length > best.length) {
            best = {&where, place, length};
        }
    }
}

CopyProposal CopyIndex::propose(std::int32_t n) const {
    work_ = 0;
    CopyProposal out;
    if (n < 1 || present_.size() < min_match) {
        return out;
    }
    std::vector<llama_token> nexts;
    Best best;
    look(present_, present_.previous(present_.size()), nexts, best);
    look(past_, past_.last_place(present_.tokens()), nexts, best);
    if (best.where == nullptr) {
        return out;
    }
    const auto source = best.where->tokens().subspan(static_cast<std::size_t>(best.place));
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        const bool inside = i < source.size();
        if (!inside && best.where != &present_) {
            break;
        }
        const llama_token token = inside ? source[i] : out.tokens[i - source.size()];
        if (token == border) {
            break;
        }
        out.tokens.push_back(token);
    }
    out.match_length = best.length;
    out.n_sources = static_cast<std::int32_t>(nexts.size());
    out.n_agreeing = static_cast<std::int32_t>(std::ranges::count(nexts, out.tokens.front()));
    return out;
}

}  // namespace dflash
