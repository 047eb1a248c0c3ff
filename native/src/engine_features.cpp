// The way of the target's hidden states from a batch to the drafter's context.
#include "dflash/engine.h"
#include "dflash/error.h"

namespace dflash {

bool Engine::wants_taps(std::int32_t last_pos) const {
    if (!drafter_ || !failure_.empty()) {
        return false;
    }
    // Only positions that the drafter will still see once the whole prompt is in.
    return last_pos >= session_.n_tokens() - session_.draft_context->capacity();
}

void Engine::keep_taps(std::int32_t pos0, std::int32_t n_rows) {
    const auto n_floats = static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(target_.feature_size());
    keep_features(pos0, target_.taps().first(n_floats));
}

void Engine::keep_taps(std::int32_t pos0, std::span<const std::int32_t> kept_rows) {
    const auto n = static_cast<std::int32_t>(kept_rows.size());
    if (kept_rows.back() == n - 1) {
        keep_taps(pos0, n);
        return;
    }
    const auto width = static_cast<std::size_t>(target_.feature_size());
    gathered_.clear();
    for (const std::int32_t row : kept_rows) {
        const std::span<const float> features = target_.taps().subspan(static_cast<std::size_t>(row) * width, width);
        gathered_.insert(gathered_.end(), features.begin(), features.end());
    }
    keep_features(pos0, gathered_);
}

void Engine::keep_features(std::int32_t pos0, std::span<const float> taps) {
    PendingTaps & pending = session_.pending();
    const std::size_t most =
        static_cast<std::size_t>(max_pending_rows) * static_cast<std::size_t>(target_.feature_size());
    if (taps.size() >= most) {
        inject(pending.pos0, pending.rows);
        inject(pos0, taps);
        return;
    }
    session_.push_taps(pos0, taps);
    if (pending.rows.size() >= most) {
        inject(pending.pos0, pending.rows);
    }
}

void Engine::inject(std::int32_t pos0, std::span<const float> taps) {
    if (!taps.empty() && failure_.empty()) {
        try {
            drafter_->inject(*session_.draft_context, pos0, taps);
        } catch (const Error & error) {
            drafter_failed(error.what());
        }
    }
    session_.pending().rows.clear();
    session_.pending().pos0 = session_.draft_context->end();
}

}  // namespace dflash
