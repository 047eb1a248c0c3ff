// Chains grow and shrink at their newest end only, so that cutting text off is popping.
#include "dflash/place_chains.h"

#include <algorithm>
#include <utility>

namespace dflash {

namespace {

constexpr std::size_t min_heads = 1024;

}  // namespace

std::size_t PlaceChains::slot(std::span<const llama_token> before) const {
    std::uint64_t hash = 0;
    for (const llama_token token : before.last(static_cast<std::size_t>(n_key_))) {
        hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 32U;
    }
    return static_cast<std::size_t>(hash) & (heads_.size() - 1);
}

void PlaceChains::chain(std::span<const llama_token> text, std::int32_t first) {
    for (auto place = std::max(first, n_key_); place <= static_cast<std::int32_t>(text.size()); ++place) {
        std::int32_t & head = heads_[slot(text.first(static_cast<std::size_t>(place)))];
        previous_[static_cast<std::size_t>(place) - 1] = std::exchange(head, place);
    }
}

void PlaceChains::grow(std::span<const llama_token> text) {
    if (text.size() > heads_.size()) {
        renew(text);
        return;
    }
    const auto first = static_cast<std::int32_t>(previous_.size()) + 1;
    previous_.resize(text.size());
    chain(text, first);
}

void PlaceChains::shrink(std::span<const llama_token> text, std::int32_t n) {
    for (auto place = static_cast<std::int32_t>(text.size()); place > n && place >= n_key_; --place) {
        heads_[slot(text.first(static_cast<std::size_t>(place)))] = previous(place);
    }
    previous_.resize(static_cast<std::size_t>(n));
}

void PlaceChains::renew(std::span<const llama_token> text) {
    std::size_t n_heads = std::max(min_heads, heads_.size());
    while (n_heads < text.size()) {
        n_heads *= 2;
    }
    heads_.assign(n_heads, 0);
    previous_.assign(text.size(), 0);
    chain(text, 1);
}

std::int32_t PlaceChains::last_place(std::span<const llama_token> text) const {
    if (heads_.empty() || text.size() < static_cast<std::size_t>(n_key_)) {
        return 0;
    }
    return heads_[slot(text)];
}

}  // namespace dflash
