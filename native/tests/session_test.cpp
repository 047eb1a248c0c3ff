// Tokens, decode records and counters in step, through cuts at every place.
#include "dflash/session.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "dflash/error.h"

using namespace dflash;

namespace {

using Tokens = std::vector<llama_token>;

DecodeRecord record(const Session & session, std::int32_t n_rows, std::int32_t n_kept, std::int32_t n_emitted,
                    RoundKind kind) {
    return {session.n_decoded(), n_rows, n_kept, n_emitted, kind, true, kind == RoundKind::draft};
}

void plain(Session & session, std::int32_t token) {
    const std::int32_t n = session.n_pending();
    session.commit(record(session, n, n, 1, RoundKind::plain), Tokens{token}, {1.0, 0.0, 0.0, 1.0});
}

void draft(Session & session, std::int32_t n_rows, const Tokens & emitted) {
    const auto n = static_cast<std::int32_t>(emitted.size());
    session.commit(record(session, n_rows, n, n, RoundKind::draft), emitted, {2.0, 1.0, 0.5, 4.0});
}

/// Prompt 1 2 3, then 10, 11 plainly, 12 13 14 of a round of 8 rows, 15 of a round of 4.
Session sample_session() {
    Session session(2);
    session.begin(Tokens{1, 2, 3}, true);
    plain(session, 10);
    plain(session, 11);
    draft(session, 8, {12, 13, 14});
    draft(session, 4, {15});
    return session;
}

Tokens tokens_of(const Session & session) { return {session.tokens().begin(), session.tokens().end()}; }

void check_identity(const RunStats & stats) {
    CHECK(stats.predicted_n == stats.draft_rounds + stats.plain_rounds + stats.draft_n_accepted);
}

}  // namespace

TEST_CASE("rounds tell what they were drafted from") {
    Session session(0);
    session.begin(Tokens{1, 2, 3}, true);
    plain(session, 10);
    session.commit(record(session, 4, 2, 2, RoundKind::draft), Tokens{11, 12}, {},
                   {.source = DraftSource::copy, .copied = 3, .copied_accepted = 1});
    session.commit(record(session, 1, 1, 1, RoundKind::plain), Tokens{13}, {}, {.source = DraftSource::drafter});
    const std::vector<RoundReport> rounds = session.rounds();
    REQUIRE(rounds.size() == 3);
    CHECK(rounds[0].source == DraftSource::none);
    CHECK(rounds[0].nodes.empty());
    CHECK(rounds[1].source == DraftSource::copy);
    CHECK(rounds[1].nodes == std::vector<std::int32_t>{1, 1, 1});
    CHECK(rounds[2].source == DraftSource::drafter);
    CHECK(rounds[2].nodes.empty());
    CHECK(session.stats().copy_rounds == 1);
    CHECK(session.stats().copy_n_accepted == 1);
}

TEST_CASE("counters follow the rounds") {
    const Session session = sample_session();
    const RunStats stats = session.stats();
    CHECK(tokens_of(session) == Tokens{1, 2, 3, 10, 11, 12, 13, 14, 15});
    CHECK(session.n_decoded() == 8);
    CHECK(session.n_pending() == 1);
    CHECK(stats.prompt_n == 3);
    CHECK(stats.predicted_n == 6);
    CHECK(stats.plain_rounds == 2);
    CHECK(stats.draft_rounds == 2);
    CHECK(stats.draft_n == 10);
    CHECK(stats.draft_n_accepted == 2);
    CHECK(stats.accepted_per_slot.at(0) == 1);
    CHECK(stats.accepted_per_slot.at(1) == 1);
    CHECK(stats.predicted_ms == doctest::Approx(9.0));
    CHECK(stats.prompt_ms == doctest::Approx(1.0));
    CHECK(stats.plain_round_ms == doctest::Approx(1.0));
    check_identity(stats);
}

TEST_CASE("a cut anywhere keeps the invariants") {
    for (std::int32_t n = 0; n <= 9; ++n) {
        Session session = sample_session();
        session.truncate(n);
        CHECK(session.n_tokens() == n);
        CHECK(session.n_decoded() == std::clamp(n - 1, 0, 8));
        check_identity(session.stats());
        CHECK(session.stats().predicted_n == std::max(0, n - 3));
        const auto records = session.records();
        CHECK((records.empty() ? 0 : records.back().pos0 + records.back().n_kept) == session.n_decoded());
    }
}

TEST_CASE("a round cut short counts only what is kept, its last token never as accepted") {
    Session session = sample_session();
    session.truncate(7);  // of 12, 13, 14 two remain
    const RunStats stats = session.stats();
    CHECK(stats.draft_rounds == 1);
    CHECK(stats.draft_n_accepted == 1);
    CHECK(stats.predicted_n == 4);
}

TEST_CASE("a new run keeps the common prefix but for the last prompt token, the last two of a prompt asked again") {
    Session session = sample_session();
    CHECK(session.begin(Tokens{1, 2, 3, 10, 11, 99}, true) == 5);
    CHECK(session.stats().predicted_n == 0);
    CHECK(session.stats().reused_n == 5);
    plain(session, 50);
    CHECK(session.stats().prompt_n == 1);
    CHECK(session.begin(Tokens{1, 2, 3}, true) == 1);
    CHECK(session.begin(Tokens{1, 2, 3}, false) == 0);
    CHECK(session.begin(Tokens{7}, true) == 0);
}

TEST_CASE("accepted tokens show during the walk and are dropped or committed after it") {
    Session session = sample_session();
    session.show_walked(16);
    CHECK(session.n_tokens() == 10);
    session.drop_walked(9);
    CHECK(tokens_of(session).back() == 15);
    session.show_walked(16);
    draft(session, 3, {16, 17});
    CHECK(tokens_of(session) == Tokens{1, 2, 3, 10, 11, 12, 13, 14, 15, 16, 17});
    CHECK(session.n_decoded() == 10);
}

TEST_CASE("pending features stay contiguous and follow cuts") {
    Session session = sample_session();
    session.push_taps(4, std::vector<float>{1, 2, 3, 4});
    session.push_taps(6, std::vector<float>{5, 6});
    CHECK(session.pending().pos0 == 4);
    CHECK(session.pending().rows.size() == 6);
    session.truncate(6);  // 5 decoded
    CHECK(session.pending().rows.size() == 2);
    session.push_taps(9, std::vector<float>{7, 8});  // a gap
    CHECK(session.pending().pos0 == 9);
    CHECK(session.pending().rows.size() == 2);
}

TEST_CASE("a saved session comes back equal") {
    Session session = sample_session();
    session.push_taps(8, std::vector<float>{1, 2});
    Session other(2);
    other.restore(session.save());
    CHECK(tokens_of(other) == tokens_of(session));
    CHECK(other.n_decoded() == session.n_decoded());
    CHECK(other.records().size() == session.records().size());
    CHECK(other.stats().predicted_n == 0);
}

TEST_CASE("damaged states are refused and change nothing") {
    const auto bytes = sample_session().save();
    for (std::size_t n = 0; n < bytes.size(); ++n) {
        Session other(2);
        CHECK_THROWS_AS(other.restore(std::span{bytes}.first(n)), Error);
        CHECK(other.n_tokens() == 0);
    }
    Session other(2);
    auto longer = bytes;
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS(other.restore(longer), Error);
    auto wrong = bytes;
    wrong.at(4) = std::byte{99};
    CHECK_THROWS_WITH_AS(other.restore(wrong),
                         "the saved state has version 99, this build reads version 2; save it again with this build",
                         Error);
}
