// Sixteen floats at a time, whatever the instruction set; the compiler splits them where registers are narrower.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernel_parts.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace dflash::cpu::DFLASH_ISA {

constexpr std::int64_t lanes = 16;
using Floats = float __attribute__((vector_size(64)));
using Ints = std::int32_t __attribute__((vector_size(64)));

inline Floats load(const float * p) {
    Floats out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
inline void store(float * p, Floats v) { std::memcpy(p, &v, sizeof v); }
inline Floats all(float value) { return Floats{} + value; }

/// The first n of sixteen, the others 0.
inline Floats load_part(const float * p, std::int64_t n) {
    Floats out{};
    std::memcpy(&out, p, static_cast<std::size_t>(n) * sizeof(float));
    return out;
}
inline void store_part(float * p, Floats v, std::int64_t n) {
    std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

#if defined(__AVX2__) && !defined(__AVX512F__)
using Half = float __attribute__((vector_size(32)));
template <int first>
[[gnu::always_inline]] inline __m256 half_of(Floats v) {
    return reinterpret_cast<__m256>(__builtin_shufflevector(v, v, first, first + 1, first + 2, first + 3, first + 4,
                                                            first + 5, first + 6, first + 7));
}
[[gnu::always_inline]] inline Floats joined(__m256 low, __m256 high) {
    return __builtin_shufflevector(reinterpret_cast<Half>(low), reinterpret_cast<Half>(high), 0, 1, 2, 3, 4, 5, 6, 7, 8,
                                   9, 10, 11, 12, 13, 14, 15);
}
#elif defined(__aarch64__)
/// Sixteen lanes as four registers.
struct Quarters {
    float32x4_t at[4];
};
#endif

/// Rounded once where the instruction set can.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
    const __m256 low = _mm256_fmadd_ps(half_of<0>(a), half_of<0>(b), half_of<0>(c));
    const __m256 high = _mm256_fmadd_ps(half_of<8>(a), half_of<8>(b), half_of<8>(c));
    return joined(low, high);
#elif defined(__aarch64__)
    const auto x = std::bit_cast<Quarters>(a);
    const auto y = std::bit_cast<Quarters>(b);
    auto z = std::bit_cast<Quarters>(c);
    for (std::size_t i = 0; i < 4; ++i) {
        z.at[i] = vfmaq_f32(z.at[i], x.at[i], y.at[i]);
    }
    return std::bit_cast<Floats>(z);
#else
    return a * b + c;
#endif
}

/// What one register holds, for loops whose sums must stay in registers: compilers keep wider vectors in memory.
#if defined(__AVX2__) && !defined(__AVX512F__)
using Wide = __m256;
constexpr std::int64_t wide_lanes = 8;
inline Wide load_wide(const float * p) { return _mm256_loadu_ps(p); }
inline void store_wide(float * p, Wide v) { _mm256_storeu_ps(p, v); }
inline Wide all_wide(float value) { return _mm256_set1_ps(value); }
inline Wide fma_wide(Wide a, Wide b, Wide c) { return _mm256_fmadd_ps(a, b, c); }
#elif defined(__aarch64__)
using Wide = float32x4_t;
constexpr std::int64_t wide_lanes = 4;
inline Wide load_wide(const float * p) { return vld1q_f32(p); }
inline void store_wide(float * p, Wide v) { vst1q_f32(p, v); }
inline Wide all_wide(float value) { return vdupq_n_f32(value); }
inline Wide fma_wide(Wide a, Wide b, Wide c) { return vfmaq_f32(c, a, b); }
#else
using Wide = Floats;
constexpr std::int64_t wide_lanes = lanes;
inline Wide load_wide(const float * p) { return load(p); }
inline void store_wide(float * p, Wide v) { store(p, v); }
inline Wide all_wide(float value) { return all(value); }
inline Wide fma_wide(Wide a, Wide b, Wide c) { return fma(a, b, c); }
#endif

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

/// In one fixed order.
inline float sum_of(Floats v) {
    float part[lanes];
    std::memcpy(part, &v, sizeof v);
    for (int width = 8; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            part[i] += part[i + width];
        }
    }
    return part[0];
}

inline float max_of(Floats v) {
    float out = v[0];
    for (int i = 1; i < lanes; ++i) {
        out = v[i] > out ? v[i] : out;
    }
    return out;
}

/// e^x, 0 below -87, e^88 above 88.
inline Floats exp(Floats x) {
    const Floats t = x * 1.44269504F;
    const Floats bound = t > 127.0F ? all(127.0F) : t;
    const Floats safe = bound < -127.0F ? all(-127.0F) : bound;
    const Floats shifted = safe + 12582912.0F;
    const Floats n = shifted - 12582912.0F;
    // The rest of x after n ln 2, in two parts.
    Floats f = fma(n, all(-0.693145752F), (x > 88.0F ? all(88.0F) : x < -88.0F ? all(-88.0F) : x));
    f = fma(n, all(-1.42860677e-6F), f);
    Floats p = all(1.0F / 5040.0F);
    p = fma(p, f, all(1.0F / 720.0F));
    p = fma(p, f, all(1.0F / 120.0F));
    p = fma(p, f, all(1.0F / 24.0F));
    p = fma(p, f, all(1.0F / 6.0F));
    p = fma(p, f, all(0.5F));
    p = fma(p, f, all(1.0F));
    p = fma(p, f, all(1.0F));
    const Ints exponent = reinterpret_cast<Ints>(shifted) << 23;
    const Floats out = reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + exponent);
    return x < -87.0F ? all(0.0F) : out;
}

/// Within 1e-6.
inline Floats tanh(Floats x) {
    const Floats magnitude = x < 0.0F ? -x : x;
    const Floats e = exp(-2.0F * magnitude);
    const Floats out = (1.0F - e) / (1.0F + e);
    return x < 0.0F ? -out : out;
}

/// Sixteen halves as floats, exact.
inline Floats load_halves(const std::byte * p) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
#elif defined(__F16C__)
    return joined(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))),
                  _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p + 16))));
#elif defined(__aarch64__)
    Quarters out{};
    for (std::size_t i = 0; i < 4; ++i) {
        const uint16x4_t bits = vld1_u16(reinterpret_cast<const std::uint16_t *>(p + 8 * i));
        out.at[i] = vcvt_f32_f16(vreinterpret_f16_u16(bits));
    }
    return std::bit_cast<Floats>(out);
#else
    Floats out;
    for (int i = 0; i < lanes; ++i) {
        ggml_fp16_t half = 0;
        std::memcpy(&half, p + 2 * i, 2);
        out[i] = half_to_float(half);
    }
    return out;
#endif
}

}  // namespace dflash::cpu::DFLASH_ISA
