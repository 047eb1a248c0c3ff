// Sorts a vocabulary by first bytes, and writes text with it.
#include "dflash/vocab_bytes.h"

#include <cstddef>

#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::size_t max_others = 8;

std::vector<llama_token> plain_tokens(const llama_vocab * vocab, std::string_view text) {
    std::vector<llama_token> tokens(text.size() + 2);
    const auto fill = [&] {
        return llama_tokenize(vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens.data(),
                              static_cast<std::int32_t>(tokens.size()), false, false);
    };
    std::int32_t n = fill();
    if (n < 0) {
        tokens.resize(static_cast<std::size_t>(-static_cast<std::int64_t>(n)));
        n = fill();
    }
    tokens.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return tokens;
}

}  // namespace

VocabBytes::VocabBytes(const llama_vocab * vocab)
    : vocab_(vocab), n_tokens_(vocab != nullptr ? llama_vocab_n_tokens(vocab) : 0) {
    if (vocab == nullptr) {
        throw Error(ErrorCode::invalid_argument,
                    "a grammar can only be looked ahead with the vocabulary of the target");
    }
    alone_.fill(-1);
    for (llama_token token = 0; token < n_tokens_; ++token) {
        if (llama_vocab_is_eog(vocab, token)) {
            end_ = token;
            continue;
        }
        const std::string text = piece(token);
        if (text.empty() || text[0] == '\0') {
            continue;  // a grammar never allows these
        }
        const auto first = static_cast<std::uint8_t>(text[0]);
        if (text.size() == 1 && alone_[first] < 0) {
            alone_[first] = token;
            others_[first].clear();
        } else if (alone_[first] < 0 && others_[first].size() < max_others) {
            others_[first].push_back(token);
        }
    }
}

std::string VocabBytes::piece(llama_token token) const {
    std::string text(32, '\0');
    const auto fill = [&] {
        return llama_token_to_piece(vocab_, token, text.data(), static_cast<std::int32_t>(text.size()), 0, true);
    };
    std::int32_t n = fill();
    if (n < 0) {
        text.resize(static_cast<std::size_t>(-static_cast<std::int64_t>(n)));
        n = fill();
    }
    text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return text;
}

std::vector<llama_token> VocabBytes::tokenize(std::string_view text) const {
    if (text.empty()) {
        return {};
    }
    // Some SentencePiece vocabularies put a space before the text, but not after other text. One of these guards does
    // not merge with it.
    for (const std::string_view guard : {"", "\n", ":", "1", "a"}) {
        const std::string whole = std::string(guard) + std::string(text);
        std::vector<llama_token> tokens = plain_tokens(vocab_, whole);
        std::string written;
        std::vector<std::size_t> ends;
        for (const llama_token token : tokens) {
            written += piece(token);
            ends.push_back(written.size());
        }
        if (!written.ends_with(text)) {
            continue;
        }
        const std::size_t begin = written.size() - text.size();
        if (begin == 0) {
            return tokens;
        }
        for (std::size_t i = 0; i < ends.size(); ++i) {
            if (ends[i] == begin) {
                return {tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1, tokens.end()};
            }
        }
    }
    return {};
}

}  // namespace dflash
