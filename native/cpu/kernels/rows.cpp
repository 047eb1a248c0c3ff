// Work on single rows: norms, gates, conversion to halves. Sums run in one fixed order.
#include <cmath>

#include "simd.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

template <typename Function>
void each(std::int64_t n, Function && function) {
    std::int64_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        function(i, lanes);
    }
    if (i < n) {
        function(i, n - i);
    }
}

Floats take(const float * p, std::int64_t n) { return n == lanes ? load(p) : load_part(p, n); }
void put(float * p, Floats v, std::int64_t n) {
    if (n == lanes) {
        store(p, v);
    } else {
        store_part(p, v, n);
    }
}

template <typename Gate>
void gated(const float * gate, const float * up, float * y, std::int64_t n, Gate && function) {
    each(n, [&](std::int64_t i, std::int64_t k) {
        const Floats g = function(take(gate + i, k));
        put(y + i, up != nullptr ? g * take(up + i, k) : g, k);
    });
}

}  // namespace

void rms_norm(const float * x, const float * weight, float * y, std::int64_t n, float eps) {
    Floats squares{};
    each(n, [&](std::int64_t i, std::int64_t k) {
        const Floats v = take(x + i, k);
        squares = fma(v, v, squares);
    });
    const float scale = 1.0F / std::sqrt(sum_of(squares) / static_cast<float>(n) + eps);
    each(n, [&](std::int64_t i, std::int64_t k) {
        const Floats v = take(x + i, k) * scale;
        put(y + i, weight != nullptr ? v * take(weight + i, k) : v, k);
    });
}

void silu_mul(const float * gate, const float * up, float * y, std::int64_t n) {
    gated(gate, up, y, n, [](Floats g) { return g / (1.0F + exp(-g)); });
}

void gelu_mul(const float * gate, const float * up, float * y, std::int64_t n) {
    gated(gate, up, y, n, [](Floats g) {
        const Floats inner = 0.797884561F * g * (1.0F + 0.044715F * g * g);
        return 0.5F * g * (1.0F + tanh(inner));
    });
}

void to_half(const float * x, ggml_fp16_t * y, std::int64_t n) {
    std::int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + lanes <= n; i += lanes) {
        const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(y + i), half);
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128(reinterpret_cast<__m128i *>(y + i), half);
    }
#elif defined(__aarch64__)
    for (; i + 4 <= n; i += 4) {
        vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    }
#endif
    for (; i < n; ++i) {
        y[i] = float_to_half(x[i]);
    }
}

}  // namespace dflash::cpu::DFLASH_ISA
