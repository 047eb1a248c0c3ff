// The Engine that Python holds: it can be closed, belongs to one thread at a time, and its long calls notice Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>

#include <llama.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "dflash/engine.h"
#include "dflash/error.h"

namespace dflash::bind {

inline TapMode tap_mode_of(const std::string & name) {
    if (name == "auto") {
        return TapMode::automatic;
    }
    if (name == "callback") {
        return TapMode::callback;
    }
    if (name == "layer_input") {
        return TapMode::layer_input;
    }
    throw Error(ErrorCode::invalid_argument, "tap_mode is auto, callback or layer_input, not \"" + name + "\"",
                "tap_mode");
}

/// Engine behind a handle that can be closed.
class EngineHandle {
  public:
    EngineHandle(std::uintptr_t model, std::uintptr_t params, std::shared_ptr<Drafter> drafter,
                 const std::string & tap_mode, bool copies) {
        if (model == 0 || params == 0) {
            throw Error(ErrorCode::invalid_argument, "model and context_params must be addresses of llama.cpp objects");
        }
        // NOLINTNEXTLINE(performance-no-int-to-ptr): addresses cross from ctypes
        auto * llama = reinterpret_cast<llama_model *>(model);
        // NOLINTNEXTLINE(performance-no-int-to-ptr)
        const auto & context_params = *reinterpret_cast<const llama_context_params *>(params);
        const TapMode mode = tap_mode_of(tap_mode);
        const nanobind::gil_scoped_release release;
        engine_ = std::make_unique<Engine>(llama, context_params, std::move(drafter), mode, copies);
        engine_->target().set_interrupt_poll([this] {
            const nanobind::gil_scoped_acquire acquire;
            if (PyErr_CheckSignals() == 0) {
                return false;
            }
            // Taken out of the thread state: llama.cpp still runs, and may call Python to log.
            interrupt_ = std::make_exception_ptr(nanobind::python_error());
            return true;
        });
    }
    EngineHandle(const EngineHandle &) = delete;
    EngineHandle & operator=(const EngineHandle &) = delete;
    EngineHandle(EngineHandle &&) = delete;
    EngineHandle & operator=(EngineHandle &&) = delete;
    ~EngineHandle() = default;

    Engine & get() const {
        if (!engine_) {
            throw Error(ErrorCode::invalid_argument, "the engine is closed");
        }
        return *engine_;
    }
    void close() {
        exclusive([&] { engine_.reset(); });
    }
    void refuse_if_busy() {
        exclusive([] {});
    }
    [[nodiscard]] bool closed() const { return engine_ == nullptr; }

    /// Runs `work` with this engine to itself. A second thread gets an error, not half of the first one's batch.
    template <typename Work>
    auto exclusive(Work && work) -> decltype(work()) {
        if (busy_.exchange(true)) {
            throw Error(ErrorCode::unsupported,
                        "this model is in use, by another thread or by the call that this one came from; give each "
                        "thread its own, or let them take turns");
        }
        const std::unique_ptr<std::atomic<bool>, void (*)(std::atomic<bool> *)> release(
            &busy_, [](std::atomic<bool> * busy) { busy->store(false); });
        return work();
    }

    /// Runs `work` exclusively and without the GIL; a KeyboardInterrupt that the engine's poll saw comes out in the
    /// place of Cancelled.
    template <typename Work>
    auto without_gil(Work && work) {
        try {
            return exclusive([&] {
                interrupt_ = nullptr;
                const nanobind::gil_scoped_release release;
                return work();
            });
        } catch (const Error & error) {
            if (error.code() == ErrorCode::cancelled && interrupt_ != nullptr) {
                std::rethrow_exception(std::exchange(interrupt_, nullptr));
            }
            throw;
        }
    }

  private:
    std::unique_ptr<Engine> engine_;
    std::atomic<bool> busy_{false};
    std::exception_ptr interrupt_;  // a python_error, between the poll and the end of the call
};

}  // namespace dflash::bind
