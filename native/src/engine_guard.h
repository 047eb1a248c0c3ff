// Makes rounds transactions: what an exception leaves behind is put back.
#pragma once

#include <chrono>
#include <cstdint>

#include "dflash/engine.h"

namespace dflash {

inline double ms_since(RoundClock::time_point start) {
    return std::chrono::duration<double, std::milli>(RoundClock::now() - start).count();
}

/// Unless released, puts memories and tokens back to what the session says it holds.
class Engine::RollbackGuard {
  public:
    explicit RollbackGuard(Engine & engine) : engine_(engine), n_tokens_(engine.session_.n_tokens()) {}
    RollbackGuard(const RollbackGuard &) = delete;
    RollbackGuard & operator=(const RollbackGuard &) = delete;
    ~RollbackGuard() {
        engine_.walked_rows_ = 0;
        if (released_) {
            return;
        }
        engine_.output_rows_.clear();
        engine_.session_.drop_walked(n_tokens_);
        if (engine_.session_.draft_context) {
            engine_.session_.draft_context->rewind(engine_.session_.n_decoded());
        }
        engine_.rewind_memories(engine_.session_.n_decoded());
    }
    void release() noexcept { released_ = true; }

  private:
    Engine & engine_;
    std::int32_t n_tokens_;
    bool released_ = false;
};

}  // namespace dflash
