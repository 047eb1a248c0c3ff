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

/// Looks at every place, latest first; remembers long matches as the index does.
struct Naive {
    std::vector<Tokens> past;
    std::size_t distance = 0;
    std::size_t long_size = 0;

    struct Found {
        Tokens following;
        std::int32_t length;
        std::size_t place;  // of the present text, 0: of the past
    };

    [[nodiscard]] bool is_near(const Tokens & text, std::size_t place) const {
        const std::size_t away = text.size() - place;
        return distance > 0 && text.size() >= long_size && text.size() <= long_size + 40 && away + 16 >= distance &&
               away <= distance + 16;
    }

    void look(std::vector<Found> & found, const Tokens & where, const Tokens & text, std::int32_t least, bool near,
              std::size_t most) const {
        const bool present = &where == &text;
        for (std::size_t place = where.size(); place-- > 1 && found.size() < most;) {
            const std::int32_t length = match_length(where, place, text);
            if (length >= least && (!present || is_near(text, place) == near)) {
                found.push_back({Tokens(where.begin() + static_cast<std::ptrdiff_t>(place), where.end()),
                                 length + (near ? 1 : 0), present ? place : 0});
            }
        }
    }

    CopyProposal propose(const Tokens & text, std::int32_t n) {
        constexpr auto sources = static_cast<std::size_t>(CopyIndex::max_sources);
        std::vector<Found> found;
        if (n < 1) {
            return {};
        }
        look(found, text, text, 1, true, 1000);
        look(found, text, text, 2, false, found.size() + sources);
        const std::size_t most = found.size() + sources;
        for (auto conversation = past.rbegin(); conversation != past.rend(); ++conversation) {
            look(found, *conversation, text, 2, false, most);
        }
        if (found.empty()) {
            look(found, text, text, 1, false, sources);
        }
        if (found.empty()) {
            return {};
        }
        const std::int32_t longest = std::ranges::max(found, {}, &Found::length).length;
        const auto votes = [&](const Found & one) {
            return std::ranges::count_if(found, [&](const Found & other) {
                return other.length == longest && other.following[0] == one.following[0];
            });
        };
        const Found * best = nullptr;
        for (const Found & one : found) {
            if (one.length == longest && (best == nullptr || (longest <= 2 && votes(one) > votes(*best)))) {
                best = &one;
            }
        }
        if (best->place > 0 && longest >= 8) {
            distance = text.size() - best->place;
            long_size = text.size();
        }
        CopyProposal out;
        for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
            if (i >= best->following.size() && best->place == 0) {
                break;
            }
            out.tokens.push_back(i < best->following.size() ? best->following[i]
                                                            : out.tokens[i - best->following.size()]);
        }
        out.match_length = longest;
        out.n_sources = static_cast<std::int32_t>(found.size());
        out.n_agreeing = static_cast<std::int32_t>(
            std::ranges::count_if(found, [&](const Found & one) { return one.following[0] == out.tokens[0]; }));
        return out;
    }
};

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
    index.sync(Tokens{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2});
    CHECK(index.propose(1).tokens == Tokens{4});
    CHECK(index.propose(1).n_agreeing == 1);
}

TEST_CASE("among short ones the majority is, and only then the latest") {
    CopyIndex index;
    index.sync(Tokens{1, 2, 3, 0, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2});
    CHECK(index.propose(1).tokens == Tokens{3});
    CHECK(index.propose(1).n_agreeing == 2);
    index.sync(Tokens{1, 2, 3, 0, 1, 2, 4, 6, 1, 2});
    CHECK(index.propose(1).tokens == Tokens{4});
}

TEST_CASE("one token is enough where two are found nowhere") {
    CopyIndex index;
    index.sync(Tokens{1, 2, 3, 9, 2});
    CHECK(index.propose(2).tokens == Tokens{3, 9});
    CHECK(index.propose(2).match_length == 1);
}

TEST_CASE("an edited copy is taken up again near where it broke off") {
    Tokens text(100);
    for (std::size_t i = 0; i < text.size(); ++i) {
        text[i] = static_cast<llama_token>(i);
    }
    text.insert(text.end(), {50, 7, 51, 7, 999});
    text.insert(text.end(), text.begin() + 20, text.begin() + 48);
    CopyIndex index;
    index.sync(text);
    CHECK(index.propose(2).tokens == Tokens{48, 49});
    text.insert(text.end(), {48, 1000, 50});  // 49 became 1000; the latest 50 is not the one
    index.sync(text);
    const CopyProposal proposal = index.propose(2);
    CHECK(proposal.tokens == Tokens{51, 52});
    CHECK(proposal.match_length == 2);
    CopyIndex fresh;
    fresh.sync(text);
    CHECK(fresh.propose(2).tokens == Tokens{7, 51});
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
    CHECK(index.propose(-1).tokens.empty());
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
        Naive naive;
        for (std::size_t i = random() % 3; i > 0; --i) {
            naive.past.push_back(random_text(random, 1 + random() % 30, alphabet));
            index.add_past(naive.past.back());
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
            const CopyProposal expected = naive.propose(text, n);
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
            CHECK(proposal.n_sources <= 2 * CopyIndex::max_sources + 33);
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
