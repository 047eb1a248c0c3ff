// One pass over each row of logits: maximum, sum of exponentials and best k, in parts that threads share.
#include "dflash/draft_topk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace dflash {

namespace {

// Built twice, for any CPU and for AVX2; all that the parts call must be inlined to take part in that.
#if defined(__x86_64__) && defined(__GNUC__)
#define DFLASH_INLINE [[gnu::always_inline]] inline
#define DFLASH_AVX2 [[gnu::target("avx2,fma")]]
#else
#define DFLASH_INLINE inline
#endif

constexpr std::size_t block_size = 256;  // plain loops over blocks vectorize; results do not depend on the width taken
using Block = std::array<float, block_size>;
constexpr std::int32_t part_columns = 4096;
constexpr std::int32_t max_parts = 64;
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// exp(x) for x in [-88, 0], relative error below 2e-7; a polynomial over [-ln2/2, ln2/2] and an exponent shift.
DFLASH_INLINE float exp_below_zero(float x) {
    constexpr float log2e = 1.44269504F;
    constexpr float ln2_high = 0.693359375F;
    constexpr float ln2_low = -2.12194440e-4F;
    constexpr float round_magic = 12582912.0F;  // 1.5 * 2^23
    const float shifted = x * log2e + round_magic;
    const float n = shifted - round_magic;
    const float r = x - n * ln2_high - n * ln2_low;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    const std::uint32_t exponent = std::bit_cast<std::uint32_t>(shifted) << 23U;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

// Halves a block again and again: block[0] is then combine over all of it.
template <typename Combine>
DFLASH_INLINE float reduce(Block & block, Combine combine) {
    for (std::size_t half = block_size / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) {
            block[i] = combine(block[i], block[i + half]);
        }
    }
    return block[0];
}

DFLASH_INLINE float maximum(std::span<const float> x) {
    const auto greater = [](float a, float b) { return a > b ? a : b; };
    Block best;
    best.fill(minus_infinity);
    std::size_t first = 0;
    for (; first + block_size <= x.size(); first += block_size) {
        for (std::size_t i = 0; i < block_size; ++i) {
            best[i] = greater(best[i], x[first + i]);
        }
    }
    for (std::size_t i = 0; first + i < x.size(); ++i) {
        best[i] = greater(best[i], x[first + i]);
    }
    return reduce(best, greater);
}

DFLASH_INLINE float sum_exp(std::span<const float> x, float max) {
    // Below it exp is as good as zero. A bound known only at run time: else the compiler branches instead of
    // vectorizing.
    const float lowest = max - 87.0F;
    const auto term = [&](float value) { return exp_below_zero((value < lowest ? lowest : value) - max); };
    Block sum{};
    std::size_t first = 0;
    for (; first + block_size <= x.size(); first += block_size) {
        for (std::size_t i = 0; i < block_size; ++i) {
            sum[i] += term(x[first + i]);
        }
    }
    for (std::size_t i = 0; first + i < x.size(); ++i) {
        sum[i] += term(x[first + i]);
    }
    return reduce(sum, [](float a, float b) { return a + b; });
}

// Best values so far, sorted; equal values keep the order of their ids.
class Best {
  public:
    Best(float * ids, float * values, std::int32_t top_k) : ids_(ids), values_(values), top_k_(top_k) {
        std::fill_n(ids_, top_k_, std::bit_cast<float>(std::int32_t{-1}));
        std::fill_n(values_, top_k_, minus_infinity);
    }

    [[nodiscard]] float threshold() const { return values_[top_k_ - 1]; }

    void offer(float value, std::int32_t id) {
        if (!(value > threshold())) {
            return;
        }
        std::int32_t at = top_k_ - 1;
        for (; at > 0 && value > values_[at - 1]; --at) {
            values_[at] = values_[at - 1];
            ids_[at] = ids_[at - 1];
        }
        values_[at] = value;
        ids_[at] = std::bit_cast<float>(id);
    }

  private:
    float * ids_;
    float * values_;
    std::int32_t top_k_;
};

DFLASH_INLINE void select_best(std::span<const float> x, std::int32_t first_id, Best & best) {
    constexpr std::size_t stride = 64;
    for (std::size_t first = 0; first < x.size(); first += stride) {
        const std::span some = x.subspan(first, std::min(stride, x.size() - first));
        const float threshold = best.threshold();
        std::int32_t above = 0;
        for (const float value : some) {
            above |= static_cast<std::int32_t>(value > threshold);
        }
        if (above != 0) {
            for (std::size_t i = 0; i < some.size(); ++i) {
                best.offer(some[i], first_id + static_cast<std::int32_t>(first + i));
            }
        }
    }
}

// Parts ith, ith + nth, ... of all rows.
DFLASH_INLINE void run_parts(const TopkPlan & plan, const ggml_tensor * logits, float * dst, int ith, int nth) {
    const std::int32_t n_items = plan.n_rows * plan.n_parts;
    for (std::int32_t item = ith; item < n_items; item += nth) {
        const std::int32_t row = item / plan.n_parts;
        const std::int32_t part = item % plan.n_parts;
        const auto begin = static_cast<std::int32_t>(static_cast<std::int64_t>(plan.n_vocab) * part / plan.n_parts);
        const auto end = static_cast<std::int32_t>(static_cast<std::int64_t>(plan.n_vocab) * (part + 1) / plan.n_parts);
        const auto * const base =
            static_cast<const char *>(logits->data) + static_cast<std::size_t>(plan.first_row + row) * logits->nb[1];
        const std::span x(reinterpret_cast<const float *>(base) + begin, static_cast<std::size_t>(end - begin));
        float * const out = dst + static_cast<std::ptrdiff_t>(item) * plan.part_size();
        out[0] = maximum(x);
        out[1] = sum_exp(x, out[0]);
        Best best(out + 2, out + 2 + plan.top_k, plan.top_k);
        select_best(x, begin, best);
    }
}

void run_parts_any(const TopkPlan & plan, const ggml_tensor * logits, float * dst, int ith, int nth) {
    run_parts(plan, logits, dst, ith, nth);
}

#ifdef DFLASH_AVX2
DFLASH_AVX2 void run_parts_avx2(const TopkPlan & plan, const ggml_tensor * logits, float * dst, int ith, int nth) {
    run_parts(plan, logits, dst, ith, nth);
}
#endif

using RunParts = void (*)(const TopkPlan &, const ggml_tensor *, float *, int, int);

RunParts choose_run_parts() {
#ifdef DFLASH_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return run_parts_avx2;
    }
#endif
    return run_parts_any;
}

void topk_parts_op(ggml_tensor * dst, int ith, int nth, void * userdata) {
    static const RunParts run = choose_run_parts();
    run(*static_cast<const TopkPlan *>(userdata), dst->src[0], static_cast<float *>(dst->data), ith, nth);
}

struct Candidate {
    float value;
    std::int32_t id;
};

bool better(const Candidate & a, const Candidate & b) { return a.value != b.value ? a.value > b.value : a.id < b.id; }

}  // namespace

TopkPlan TopkPlan::make(std::int32_t top_k, std::int32_t n_vocab, std::int32_t first_row, std::int32_t n_rows) {
    return {top_k, n_vocab, std::clamp(n_vocab / part_columns, 1, max_parts), first_row, n_rows};
}

ggml_tensor * build_topk_parts(ggml_context * ctx, ggml_tensor * logits, TopkPlan & plan) {
    return ggml_custom_4d(ctx, GGML_TYPE_F32, plan.part_size(), plan.n_parts, plan.n_rows, 1, &logits, 1, topk_parts_op,
                          GGML_N_TASKS_MAX, &plan);
}

bool merge_topk_parts(const TopkPlan & plan, std::span<const float> parts, std::span<std::int32_t> ids,
                      std::span<float> log_probs) {
    const auto k = static_cast<std::size_t>(plan.top_k);
    const auto part_size = static_cast<std::size_t>(plan.part_size());
    const auto n_parts = static_cast<std::size_t>(plan.n_parts);
    std::vector<Candidate> candidates;
    for (std::size_t row = 0; row < static_cast<std::size_t>(plan.n_rows); ++row) {
        const std::span row_parts = parts.subspan(row * n_parts * part_size, n_parts * part_size);
        candidates.clear();
        float max = minus_infinity;
        for (std::size_t part = 0; part < n_parts; ++part) {
            max = std::max(max, row_parts[part * part_size]);
        }
        double sum = 0.0;
        for (std::size_t part = 0; part < n_parts; ++part) {
            const std::span one = row_parts.subspan(part * part_size, part_size);
            sum += static_cast<double>(one[1]) * std::exp(static_cast<double>(one[0]) - max);
            for (std::size_t i = 0; i < k; ++i) {
                candidates.push_back({one[2 + k + i], std::bit_cast<std::int32_t>(one[2 + i])});
            }
        }
        const double log_sum = max + std::log(sum);
        std::ranges::partial_sort(candidates, candidates.begin() + plan.top_k, better);
        if (!std::isfinite(log_sum) || candidates[k - 1].id < 0) {
            return false;
        }
        for (std::size_t i = 0; i < k; ++i) {
            ids[row * k + i] = candidates[i].id;
            log_probs[row * k + i] = static_cast<float>(candidates[i].value - log_sum);
        }
    }
    return true;
}

void sort_candidates(std::span<std::int32_t> ids, std::span<float> log_probs) {
    std::vector<Candidate> candidates;
    candidates.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
        candidates.push_back({log_probs[i], ids[i]});
    }
    std::ranges::sort(candidates, better);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = candidates[i].id;
        log_probs[i] = candidates[i].value;
    }
}

}  // namespace dflash
