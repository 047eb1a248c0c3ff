// A team of threads that spins briefly, then sleeps, and never waits for a thread that has claimed no work.
#pragma once

#include <cstdint>
#include <memory>

namespace dflash::cpu {

class ThreadTeam {
  public:
    using Chunk = void (*)(void * work, std::int32_t chunk);

    /// The calling thread is one of them; 1: no other is started.
    explicit ThreadTeam(std::int32_t n_threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam &) = delete;
    ThreadTeam & operator=(const ThreadTeam &) = delete;

    [[nodiscard]] std::int32_t n_threads() const noexcept;
    void resize(std::int32_t n_threads);
    /// Runs chunk(work, i) for every i below n_chunks, each once, and returns when all are done. A single chunk is run
    /// at once, without a word to the others. One caller at a time.
    void run(std::int32_t n_chunks, Chunk chunk, void * work);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace dflash::cpu
