// The team: chunks are claimed from one word that holds epoch, count and next index, so a late thread claims nothing.
#include "thread_team.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>
#include <vector>

namespace dflash::cpu {

namespace {

constexpr std::chrono::microseconds spin_time{50};
constexpr std::int32_t max_chunks = 0xFFFF;  // of one epoch

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// Polls `ready` for spin_time at most; false: it did not come true.
template <typename Ready>
bool spin_until(const Ready & ready) {
    if (ready()) {
        return true;
    }
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
        for (int i = 0; i < 32; ++i) {
            pause();
            if (ready()) {
                return true;
            }
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

std::uint64_t next_index(std::uint64_t word) { return word & 0xFFFFU; }
std::uint64_t count_of(std::uint64_t word) { return word >> 16U & 0xFFFFU; }
bool has_chunk(std::uint64_t word) { return next_index(word) < count_of(word); }

/// Signals are for the threads of the program, not for ours.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    BlockedSignals(const BlockedSignals &) = delete;
    BlockedSignals & operator=(const BlockedSignals &) = delete;

  private:
    sigset_t before_{};
};

}  // namespace

struct ThreadTeam::State {
    // Epoch in the upper 32 bits, then the number of chunks, then the next one, of 16 bits each.
    alignas(64) std::atomic<std::uint64_t> word{0};
    alignas(64) std::atomic<std::uint32_t> pending{0};  // chunks not done
    alignas(64) std::atomic<std::uint32_t> signal{0};   // what idle threads sleep on
    std::atomic<std::int32_t> sleepers{0};
    std::atomic<bool> stopping{false};
    // Written before an epoch starts, read by those that hold one of its chunks.
    Chunk chunk = nullptr;
    void * work = nullptr;
    std::int32_t first = 0;
    std::vector<std::thread> threads;

    void work_on();
    void idle();
    void start(std::int32_t n_threads);
    void stop();
    void run(std::int32_t n_chunks);
};

void ThreadTeam::State::work_on() {
    std::uint32_t done = 0;
    std::uint64_t seen = word.load(std::memory_order_acquire);
    while (has_chunk(seen)) {
        // An epoch cannot end while a chunk of it is held: what belongs to it stands until `pending` is lowered.
        if (word.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            chunk(work, first + static_cast<std::int32_t>(next_index(seen)));
            ++done;
            seen = word.load(std::memory_order_acquire);
        }
    }
    if (done > 0 && pending.fetch_sub(done, std::memory_order_acq_rel) == done) {
        pending.notify_one();
    }
}

void ThreadTeam::State::idle() {
    while (!stopping.load(std::memory_order_acquire)) {
        const auto called = [this] {
            return has_chunk(word.load(std::memory_order_acquire)) || stopping.load(std::memory_order_acquire);
        };
        if (!spin_until(called)) {
            const std::uint32_t before = signal.load();
            sleepers.fetch_add(1);
            if (!has_chunk(word.load()) && !stopping.load()) {
                signal.wait(before);
            }
            sleepers.fetch_sub(1);
        }
        work_on();
    }
}

void ThreadTeam::State::start(std::int32_t n_threads) {
    const BlockedSignals blocked;
    try {
        while (static_cast<std::int32_t>(threads.size()) + 1 < n_threads) {
            threads.emplace_back([this] { idle(); });
        }
    } catch (const std::system_error &) {
        return;  // no more threads to be had: the others do the work
    }
}

void ThreadTeam::State::stop() {
    stopping.store(true);
    signal.fetch_add(1);
    signal.notify_all();
    for (std::thread & thread : threads) {
        thread.join();
    }
    threads.clear();
    stopping.store(false);
}

void ThreadTeam::State::run(std::int32_t n_chunks) {
    const auto count = static_cast<std::uint32_t>(n_chunks);
    pending.store(count, std::memory_order_relaxed);
    const std::uint64_t epoch = (word.load(std::memory_order_relaxed) >> 32U) + 1;
    word.store(epoch << 32U | static_cast<std::uint64_t>(count) << 16U);
    if (sleepers.load() > 0) {
        signal.fetch_add(1);
        signal.notify_all();
    }
    work_on();
    const auto all_done = [this] { return pending.load(std::memory_order_acquire) == 0; };
    if (!spin_until(all_done)) {
        // The thread that holds the last chunk has lost its core: leave it ours.
        for (std::uint32_t left = pending.load(std::memory_order_acquire); left != 0;
             left = pending.load(std::memory_order_acquire)) {
            pending.wait(left, std::memory_order_acquire);
        }
    }
}

ThreadTeam::ThreadTeam(std::int32_t n_threads) : state_(std::make_unique<State>()) { resize(n_threads); }

ThreadTeam::~ThreadTeam() { state_->stop(); }

std::int32_t ThreadTeam::n_threads() const noexcept { return static_cast<std::int32_t>(state_->threads.size()) + 1; }

void ThreadTeam::resize(std::int32_t n_threads) {
    if (n_threads != this->n_threads()) {
        state_->stop();
        state_->start(n_threads);
    }
}

void ThreadTeam::run(std::int32_t n_chunks, Chunk chunk, void * work) {
    if (n_chunks <= 1 || state_->threads.empty()) {
        for (std::int32_t i = 0; i < n_chunks; ++i) {
            chunk(work, i);
        }
        return;
    }
    state_->chunk = chunk;
    state_->work = work;
    for (std::int32_t first = 0; first < n_chunks; first += max_chunks) {
        state_->first = first;
        state_->run(std::min(max_chunks, n_chunks - first));
    }
}

}  // namespace dflash::cpu
