// Copies against a search through all places, and the bound on their work.
#include "dflash/copy_index.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace dflash;

namespace {

using Tokens = std::vector<llama_token>;

std::int32_t match_length(const Tokens & where, std::size_t place, const Tokens & text) {
    std::int32_t length = 0;
    while (length < CopyIndex::max_match && place >= static_cast<std::size_t>(length) + 1 &&
           text.size() >= static_cast<std::size_t>(length) + 1 &&
           where[place - 1 - static_cast<std::size_t>(length)] ==
               text[text.size() - 1 - static_cast<std::size_t>(length)]) {
        ++length;
    }
    return length;
}

/// Looks at every place, latest first, as the index does with its chains.
CopyProposal naive(const std::vector<Tokens> & past, const Tokens & text, std::int32_t n) {
    CopyProposal out;
    Tokens best;
    Tokens nexts;
    bool loops = false;
    const auto look = [&](const Tokens & where, std::size_t end, bool present) {
        for (std::size_t place = end; place-- > 1;) {
            const std::int32_t length = match_length(where, place, text);
            if (length < CopyIndex::min_match || nexts.size() == static_cast<std::size_t>(CopyIndex::max_sources)) {
                continue;
            }
            nexts.push_back(where[place]);
            if (length > out.match_length) {
                out.match_length = length;
                best.assign(where.begin() + static_cast<std::ptrdiff_t>(place), where.end());
                loops = present;
            }
        }
    };
    look(text, text.size(), true);
    for (auto conversation = past.rbegin(); conversation != past.rend(); ++conversation) {
        look(*conversation, conversation->size(), false);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(n) && !best.empty(); ++i) {
        if (i >= best.size() && !loops) {
            break;
        }
        out.tokens.push_back(i < best.size() ? best[i] : out.tokens[i - best.size()]);
    }
    out.n_sources = static_cast<std::int32_t>(nexts.size());
    out.n_agreeing = static_cast<std::int32_t>(out.tokens.empty() ? 0 : std::ranges::count(nexts, out.tokens.front()));
    return out;
}

void check_equal(const CopyProposal & got, const CopyProposal & expected) {
    CHECK(got.tokens == expected.tokens);
    CHECK(got.match_length == expected.match_length);
    CHECK(got.n_sources == expected.n_sources);
    CHECK(got.n_agreeing == expected.n_agreeing);
}

Tokens random_text(std::mt19937 & random, std::size_t n, std::int32_t alphabet) {
    Tokens text(n);
    std::ranges::generate(text,
                          [&] { return static_cast<llama_token>(random() % static_cast<std::uint32_t>(alphabet)); });
    return text;
}

}  // namespace

TEST_CASE("a copy goes on where the longest match went on") {
    CopyIndex index;
    index.sync(Tokens{1, 2, 3, 4, 5, 9, 2, 3, 7, 8, 1, 2, 3});
    const CopyProposal proposal = index.propose(3);
    CHECK(proposal.tokens == Tokens{4, 5, 9});
    CHECK(proposal.match_length == 3);
    CHECK(proposal.n_sources == 2);
    CHECK(proposal.n_agreeing == 1);
}

TEST_CASE("among equal matches the latest is taken") {
    CopyIndex index;
    index.sync(Tokens{1, 2, 3, 0, 1, 2, 4, 0, 1, 2});
    CHECK(index.propose(1).tokens == Tokens{4});
}

TEST_CASE("a loop goes on as a loop") {
    CopyIndex index;
    index.sync(Tokens{1, 2, 3, 1, 2, 3});
    CHECK(index.propose(8).tokens == Tokens{1, 2, 3, 1, 2, 3, 1, 2});
}

TEST_CASE("without a repetition nothing is proposed") {
    CopyIndex index;
    CHECK(index.propose(4).tokens.empty());
    index.sync(Tokens{1});
    CHECK(index.propose(4).tokens.empty());
    index.sync(Tokens{1, 2, 3, 4});
    CHECK(index.propose(4).tokens.empty());
    index.sync(Tokens{1, 2, 1, 2});
    CHECK(index.propose(0).tokens.empty());
    CHECK(index.propose(4).n_sources == 1);
}

TEST_CASE("past conversations come after the present one and never run into each other") {
    CopyIndex index;
    index.add_past(Tokens{5, 1, 2, 3});
    index.add_past(Tokens{6, 7, 8});
    index.sync(Tokens{1, 2});
    CHECK(index.propose(4).tokens == Tokens{3});
    index.sync(Tokens{2, 3});
    CHECK(index.propose(4).tokens.empty());
    index.sync(Tokens{3, 6, 7});
    CHECK(index.propose(4).tokens == Tokens{8});
    CHECK(index.propose(4).match_length == 2);
    index.sync(Tokens{6, 7, 9, 6, 7});
    CHECK(index.propose(1).tokens == Tokens{9});
}

TEST_CASE("the oldest past goes first") {
    CopyIndex index;
    index.add_past(Tokens{11, 12, 13});
    index.sync(Tokens{11, 12});
    CHECK(index.propose(1).tokens == Tokens{13});
    Tokens filler(1000);
    for (llama_token i = 0; i < CopyIndex::max_past / 1000 + 1; ++i) {
        std::ranges::fill(filler, 1000 + i);
        index.add_past(filler);
    }
    CHECK(index.propose(1).tokens.empty());
    index.sync(Tokens{1000 + CopyIndex::max_past / 1000, 1000 + CopyIndex::max_past / 1000});
    CHECK(index.propose(2).tokens.size() == 1);  // the latest place, before its last token
    Tokens huge(static_cast<std::size_t>(CopyIndex::max_past) + 5, 7);
    huge[huge.size() - 1] = 8;
    index.add_past(huge);
    index.sync(Tokens{7, 7});
    CHECK(index.propose(1).tokens.size() == 1);
}

TEST_CASE("proposals equal those of a search through all places, through all kinds of changes") {
    std::mt19937 random(1);
    std::size_t n_found = 0;
    for (int round = 0; round < 1000; ++round) {
        const auto alphabet = static_cast<std::int32_t>(2 + random() % 12);
        CopyIndex index;
        std::vector<Tokens> past;
        for (std::size_t i = random() % 3; i > 0; --i) {
            past.push_back(random_text(random, 1 + random() % 30, alphabet));
            index.add_past(past.back());
        }
        Tokens text;
        for (int change = 0; change < 8; ++change) {
            switch (random() % 4) {
                case 0: text.resize(random() % (text.size() + 1)); break;            // a truncation
                case 1: text = random_text(random, random() % 25, alphabet); break;  // a new prompt
                default: break;
            }
            const Tokens more = random_text(random, random() % 12, alphabet);
            text.insert(text.end(), more.begin(), more.end());
            index.sync(text);
            const auto n = static_cast<std::int32_t>(random() % 20);
            const CopyProposal expected = n > 0 ? naive(past, text, n) : CopyProposal{};
            check_equal(index.propose(n), expected);
            n_found += expected.tokens.empty() ? 0 : 1;
        }
    }
    CHECK(n_found > 2000);
}

TEST_CASE("the work of a proposal is bounded, whatever the text") {
    constexpr std::int64_t bound =
        2 * (CopyIndex::max_steps + CopyIndex::max_sources * (CopyIndex::max_match + 1) + CopyIndex::max_steps);
    std::mt19937 random(2);
    const Tokens periodic{1, 2, 1, 2, 3, 1, 2};
    for (int kind = 0; kind < 4; ++kind) {
        Tokens text(100000, 5);
        for (std::size_t i = 0; i < text.size() && kind > 0; ++i) {
            text[i] = kind == 1 ? periodic[i % periodic.size()]
                                : static_cast<llama_token>(random() % (kind == 2 ? 2 : 50000));
        }
        CopyIndex index;
        index.add_past(text);
        index.sync(text);
        std::int64_t most = 0;
        for (int i = 0; i < 200; ++i) {
            index.sync(std::span<const llama_token>(text).first(text.size() - static_cast<std::size_t>(i)));
            const CopyProposal proposal = index.propose(64);
            most = std::max(most, index.work());
            CHECK(proposal.n_sources <= CopyIndex::max_sources);
            CHECK((kind > 1 || proposal.tokens.size() == 64));
        }
        CHECK(most <= bound);
    }
}

TEST_CASE("cutting off and writing again leaves no trace") {
    std::mt19937 random(3);
    const Tokens text = random_text(random, 5000, 3);
    CopyIndex straight;
    straight.sync(text);
    CopyIndex winding;
    for (std::size_t n = 1; n <= text.size(); n += 1 + random() % 200) {
        winding.sync(std::span<const llama_token>(text).first(n));
        winding.sync(std::span<const llama_token>(text).first(n / 2));
    }
    winding.sync({});
    winding.sync(text);
    for (const std::int32_t n : {1, 7, 64}) {
        check_equal(winding.propose(n), straight.propose(n));
    }
}
