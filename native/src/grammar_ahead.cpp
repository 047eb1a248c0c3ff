// Tests tokens against a grammar without its sampler chain, and reads off it the text that has no alternative.
#include "dflash/grammar_ahead.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dflash/error.h"
#include "dflash/space_guess.h"

namespace dflash {

namespace {

constexpr std::size_t written_tokens = 256;  // looked at for a guess at white space
constexpr std::int32_t max_slow = 12;        // at most 4095 calls are skipped in a row

/// The one interface that all grammar samplers of llama.cpp share: names can be anyone's.
const llama_sampler_i * grammar_interface(const llama_vocab * vocab) {
    llama_sampler * empty = llama_sampler_init_grammar(vocab, "", "root");
    const llama_sampler_i * iface = empty != nullptr ? empty->iface : nullptr;
    llama_sampler_free(empty);
    return iface;
}

llama_sampler * find_grammar(llama_sampler * sampler, const llama_sampler_i * iface, int depth) {
    if (sampler == nullptr || depth == 0) {
        return nullptr;
    }
    if (sampler->iface == iface) {
        return sampler;
    }
    if (llama_sampler_chain_get(sampler, -1) == nullptr) {
        return nullptr;  // no chain
    }
    for (std::int32_t i = 0; i < llama_sampler_chain_n(sampler); ++i) {
        if (llama_sampler * found = find_grammar(llama_sampler_chain_get(sampler, i), iface, depth - 1)) {
            return found;
        }
    }
    return nullptr;
}

/// The grammar sets the logits of what it forbids to -infinity and looks at no token but these.
void apply(llama_sampler * grammar, std::vector<llama_token_data> & candidates) {
    llama_token_data_array array{candidates.data(), candidates.size(), -1, false};
    llama_sampler_apply(grammar, &array);
}

bool is_kept(const llama_token_data & candidate) { return !std::isinf(candidate.logit); }

/// Bytes by what they can be at a place in UTF-8 text. A free place shows with the first few of `beginning`.
struct ByteSets {
    std::vector<std::uint8_t> common = {'a', '"', '0', ' ', 'T', ',', '}', '\n'};
    std::vector<std::uint8_t> beginning;
    std::vector<std::uint8_t> continuing;

    ByteSets() {
        for (int byte = 1; byte <= 0xF4; ++byte) {
            const auto value = static_cast<std::uint8_t>(byte);
            if (byte >= 0x80 && byte < 0xC0) {
                continuing.push_back(value);
            } else if (byte < 0x80 || byte >= 0xC2) {
                if (std::ranges::find(common, value) == common.end()) {
                    beginning.push_back(value);
                }
            }
        }
    }
};

const ByteSets & byte_sets() {
    static const ByteSets sets;
    return sets;
}

/// Bytes that UTF-8 puts after this first byte of a character.
std::int32_t n_continuing(std::uint8_t byte) { return byte < 0xC2 ? 0 : byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3; }

bool is_continuing(char byte) { return (static_cast<std::uint8_t>(byte) & 0xC0U) == 0x80U; }

/// Part of a word: tokens often go on from here.
bool is_wordy(std::uint8_t byte) {
    return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
}

std::string end_of_text(const VocabBytes & bytes, std::span<const llama_token> tokens) {
    std::string text;
    for (const llama_token token : tokens.last(std::min(tokens.size(), written_tokens))) {
        text += bytes.piece(token);
    }
    return text;
}

}  // namespace

/// Goes on byte by byte while the grammar leaves no choice.
class GrammarAhead::Walk {
  public:
    Walk(llama_sampler * grammar, const VocabBytes & bytes, std::span<const llama_token> written)
        : grammar_(grammar), bytes_(bytes), tokens_(written) {}

    void run(std::size_t n_bytes, Patience patience) {
        using Clock = std::chrono::steady_clock;
        const auto start = Clock::now();
        while (text_.size() < n_bytes) {
            const auto before = Clock::now();
            const std::optional<std::uint8_t> byte = next();
            // Where a test is slow, very many alternatives are open, and a copy takes far longer still.
            const auto after = Clock::now();
            too_slow_ = after - before > patience / 8 || after - start > patience;
            if (!byte || too_slow_) {
                is_cut_ = too_slow_ || (joins_ && !text_.empty() &&
                                        (is_wordy(static_cast<std::uint8_t>(text_.back())) || text_.back() == ' '));
                break;
            }
            if (!copy_) {
                copy_.reset(llama_sampler_clone(grammar_));
            }
            llama_sampler_accept(copy_.get(), bytes_.alone(*byte));
            n_inside_ = n_inside_ > 0 ? n_inside_ - 1 : n_continuing(*byte);
            text_ += static_cast<char>(*byte);
        }
        // A character begun is left out.
        while (n_inside_ > 0 && !text_.empty()) {
            n_inside_ = is_continuing(text_.back()) ? n_inside_ : 0;
            text_.pop_back();
        }
    }

    [[nodiscard]] const std::string & text() const { return text_; }
    /// Ends inside a word, or where a limit cut it.
    [[nodiscard]] bool is_cut() const { return is_cut_; }
    [[nodiscard]] bool too_slow() const { return too_slow_; }

  private:
    struct Choice {
        std::vector<std::uint8_t> visible;  // bytes that may come and are no white space
        std::string spaces;
        bool other = false;  // something that begins with a byte that no token writes alone
        bool end = false;

        [[nodiscard]] bool is_free() const { return other || visible.size() + (end ? 1 : 0) > 1; }
    };

    /// Adds to `choice` what may come of these bytes.
    void test(std::span<const std::uint8_t> tested, bool end_too, Choice & choice) const {
        std::vector<llama_token_data> candidates;
        std::vector<std::uint8_t> alone;  // of the first candidates
        for (const std::uint8_t byte : tested) {
            if (const llama_token token = bytes_.alone(byte); token >= 0) {
                candidates.push_back({token, 0.0F, 0.0F});
                alone.push_back(byte);
            }
        }
        for (const std::uint8_t byte : tested) {
            for (const llama_token token : bytes_.others(byte)) {
                candidates.push_back({token, 0.0F, 0.0F});
            }
        }
        if (end_too && bytes_.end() >= 0) {
            candidates.push_back({bytes_.end(), 0.0F, 0.0F});
        }
        apply(copy_ ? copy_.get() : grammar_, candidates);
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            if (!is_kept(candidates[i])) {
                continue;
            }
            if (i >= alone.size()) {
                (candidates[i].id == bytes_.end() ? choice.end : choice.other) = true;
            } else if (is_space(static_cast<char>(alone[i]))) {
                choice.spaces += static_cast<char>(alone[i]);
            } else {
                choice.visible.push_back(alone[i]);
            }
        }
    }

    /// The byte that must come, or that is guessed where only white space is optional.
    std::optional<std::uint8_t> next() {
        Choice choice;
        if (n_inside_ > 0) {
            test(byte_sets().continuing, false, choice);
            joins_ = choice.is_free();
            return joins_ || choice.visible.empty() ? std::nullopt : std::optional(choice.visible[0]);
        }
        test(byte_sets().common, true, choice);
        if (!choice.is_free()) {
            test(byte_sets().beginning, false, choice);
        }
        if (choice.is_free() || choice.end) {
            joins_ = std::ranges::any_of(choice.visible, is_wordy) || choice.other;
            return std::nullopt;
        }
        if (choice.visible.empty()) {
            return choice.spaces.size() == 1 ? std::optional(static_cast<std::uint8_t>(choice.spaces[0]))
                                             : std::nullopt;
        }
        return choice.spaces.empty() ? choice.visible[0] : guess(choice);
    }

    std::uint8_t guess(const Choice & choice) {
        if (!before_) {
            before_ = end_of_text(bytes_, tokens_);
        }
        const std::string written = *before_ + text_;
        const std::size_t n_there = written.size() - visible_size(written);
        const std::string expected = expected_space(written, static_cast<char>(choice.visible[0]));
        if (expected.size() > n_there &&
            expected.starts_with(std::string_view(written).substr(written.size() - n_there)) &&
            choice.spaces.find(expected[n_there]) != std::string::npos) {
            return static_cast<std::uint8_t>(expected[n_there]);
        }
        return choice.visible[0];
    }

    llama_sampler * grammar_;
    const VocabBytes & bytes_;
    std::span<const llama_token> tokens_;  // before the text
    std::optional<std::string> before_;    // what they write, once it is needed
    std::string text_;
    Sampler copy_;
    std::int32_t n_inside_ = 0;  // bytes still to come of a character begun
    bool is_cut_ = true;
    bool joins_ = false;  // a letter or a digit may follow
    bool too_slow_ = false;
};

std::unique_ptr<GrammarAhead> GrammarAhead::of(const llama_sampler * sampler, const llama_vocab * vocab,
                                               std::shared_ptr<const VocabBytes> & bytes) {
    if (vocab == nullptr) {
        throw Error(ErrorCode::invalid_argument, "a grammar can only be looked ahead with its vocabulary");
    }
    // Only read: applying a grammar changes nothing but the candidates. The API has no const for it.
    auto * chain = const_cast<llama_sampler *>(sampler);
    llama_sampler * grammar = find_grammar(chain, grammar_interface(vocab), 8);
    if (grammar == nullptr) {
        return nullptr;
    }
    if (!bytes) {
        bytes = std::make_shared<const VocabBytes>(vocab);
    }
    return std::unique_ptr<GrammarAhead>(new GrammarAhead(grammar, bytes));
}

std::unique_ptr<GrammarAhead> GrammarAhead::clone() const {
    std::unique_ptr<GrammarAhead> copy(new GrammarAhead(source_, bytes_));
    copy->own_.reset(own_ ? llama_sampler_clone(own_.get()) : nullptr);
    copy->patience_ = patience_;
    copy->slow_ = slow_;
    copy->skip_ = skip_;
    return copy;
}

void GrammarAhead::allowed(std::span<const llama_token> tokens, std::span<bool> out) const {
    if (out.size() < tokens.size()) {
        throw Error(ErrorCode::invalid_argument, "allowed needs one answer for each token");
    }
    std::vector<llama_token_data> candidates;
    candidates.reserve(tokens.size());
    for (const llama_token token : tokens) {
        if (token >= 0 && token < bytes_->n_tokens()) {
            candidates.push_back({token, 0.0F, 0.0F});
        }
    }
    apply(now(), candidates);
    auto candidate = candidates.cbegin();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const bool known = tokens[i] >= 0 && tokens[i] < bytes_->n_tokens();
        out[i] = known && is_kept(*candidate++);
    }
}

void GrammarAhead::accept(llama_token token) {
    std::array<bool, 1> may_come{};
    allowed({&token, 1}, may_come);
    if (!may_come[0]) {
        throw Error(ErrorCode::invalid_argument, "the grammar does not allow token " + std::to_string(token) + " here");
    }
    if (!own_) {
        own_.reset(llama_sampler_clone(source_));
    }
    try {
        llama_sampler_accept(own_.get(), token);
    } catch (const std::exception & error) {
        rewind();  // a lazy grammar triggered by text that it does not take: its copy is of no more use
        throw Error(ErrorCode::invalid_argument, std::string("the grammar cannot go on: ") + error.what());
    }
}

std::vector<llama_token> GrammarAhead::forced(std::int32_t n, std::span<const llama_token> written) {
    if (n < 1) {
        return {};
    }
    if (skip_ > 0) {
        --skip_;
        return {};
    }
    const auto most = static_cast<std::size_t>(n);
    Walk walk(now(), *bytes_, written);
    walk.run(std::min<std::size_t>(most * 8, max_bytes), patience_);
    slow_ = walk.too_slow() ? std::min(slow_ + 1, max_slow) : 0;
    skip_ = (1 << slow_) - 1;
    std::vector<llama_token> tokens = bytes_->tokenize(walk.text());
    if (!tokens.empty() && walk.is_cut()) {
        tokens.pop_back();  // its text goes on
    }
    tokens.resize(std::min(tokens.size(), most));
    return tokens;
}

}  // namespace dflash
