// Every chunk once, by any number of threads, through sleep, resizing and more chunks than one epoch counts.
#include "../thread_team.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

using dflash::cpu::ThreadTeam;

// Plain, not atomic: each is touched by the thread that holds its chunk, and read after run() returned.
using Counts = std::vector<std::int32_t>;

void count(void * work, std::int32_t chunk) { ++(*static_cast<Counts *>(work))[static_cast<std::size_t>(chunk)]; }

bool ran_once(ThreadTeam & team, std::int32_t n_chunks) {
    Counts counts(static_cast<std::size_t>(n_chunks), 0);
    team.run(n_chunks, count, &counts);
    return counts == Counts(static_cast<std::size_t>(n_chunks), 1);
}

}  // namespace

TEST_CASE("every chunk runs once") {
    for (const std::int32_t n_threads : {1, 2, 3, 5}) {
        ThreadTeam team(n_threads);
        CHECK(team.n_threads() == n_threads);
        bool right = true;
        for (std::int32_t round = 0; round < 2000; ++round) {
            right = right && ran_once(team, round % 9);
        }
        CHECK(right);
    }
}

TEST_CASE("more chunks than one epoch holds") {
    ThreadTeam team(3);
    CHECK(ran_once(team, 200'000));
}

TEST_CASE("threads that fell asleep are called") {
    ThreadTeam team(3);
    for (int round = 0; round < 20; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        CHECK(ran_once(team, 7));
    }
}

TEST_CASE("a slow thread is waited for") {
    ThreadTeam team(2);
    const auto slow = [](void * work, std::int32_t chunk) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        count(work, chunk);
    };
    Counts counts(8, 0);
    team.run(8, slow, &counts);
    CHECK(counts == Counts(8, 1));
}

TEST_CASE("a team is resized between runs") {
    ThreadTeam team(1);
    for (const std::int32_t n_threads : {4, 2, 1, 3}) {
        team.resize(n_threads);
        CHECK(team.n_threads() == n_threads);
        CHECK(ran_once(team, 100));
    }
}
