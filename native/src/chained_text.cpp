// Chains grow and shrink at their newest end only, so that cutting text off is popping.
#include "dflash/chained_text.h"

#include <algorithm>
#include <utility>

namespace dflash {

namespace {

constexpr std::size_t min_heads = 1024;

}  // namespace

std::size_t ChainedText::slot(std::span<const llama_token> before) const {
    std::uint64_t hash = 0;
    for (const llama_token token : before.last(static_cast<std::size_t>(n_key_))) {
        hash = (hash ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15U;
        hash ^= hash >> 32;
    }
    return static_cast<std::size_t>(hash) & (heads_.size() - 1);
}

std::int32_t & ChainedText::head(std::int32_t place) {
    return heads_[slot(tokens().first(static_cast<std::size_t>(place)))];
}

void ChainedText::chain_all(std::size_t n_heads) {
    heads_.assign(n_heads, 0);
    for (std::int32_t place = n_key_; place <= size(); ++place) {
        previous_[static_cast<std::size_t>(place) - 1] = std::exchange(head(place), place);
    }
}

void ChainedText::push(std::span<const llama_token> tokens) {
    const std::int32_t first = size() + 1;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    previous_.resize(tokens_.size());
    if (tokens_.size() > heads_.size()) {
        std::size_t n_heads = std::max(min_heads, heads_.size());
        while (n_heads < tokens_.size()) {
            n_heads *= 2;
        }
        chain_all(n_heads);
        return;
    }
    for (std::int32_t place = std::max(first, n_key_); place <= size(); ++place) {
        previous_[static_cast<std::size_t>(place) - 1] = std::exchange(head(place), place);
    }
}

void ChainedText::truncate(std::int32_t n) {
    for (std::int32_t place = size(); place > n && place >= n_key_; --place) {
        head(place) = previous(place);
    }
    tokens_.resize(static_cast<std::size_t>(n));
    previous_.resize(static_cast<std::size_t>(n));
}

void ChainedText::drop_front(std::int32_t n) {
    tokens_.erase(tokens_.begin(), tokens_.begin() + n);
    previous_.resize(tokens_.size());
    chain_all(heads_.size());
}

std::int32_t ChainedText::last_place(std::span<const llama_token> text) const {
    if (heads_.empty() || text.size() < static_cast<std::size_t>(n_key_)) {
        return 0;
    }
    return heads_[slot(text)];
}

}  // namespace dflash
