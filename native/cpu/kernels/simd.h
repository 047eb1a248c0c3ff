// As many floats as one register holds, whatever the instruction set: compilers keep wider vectors in memory.
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

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX2__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int n_registers = 32;
#else
constexpr int n_registers = 16;
#endif

using Floats = float __attribute__((vector_size(4 * lanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * lanes)));

inline Floats load(const float * p) {
    Floats out;
    std::memcpy(&out, p, sizeof out);
    return out;
}
inline void store(float * p, Floats v) { std::memcpy(p, &v, sizeof v); }
inline Floats all(float value) { return Floats{} + value; }

/// The first n, the others 0.
inline Floats load_part(const float * p, std::int64_t n) {
    Floats out{};
    std::memcpy(&out, p, static_cast<std::size_t>(n) * sizeof(float));
    return out;
}
inline void store_part(float * p, Floats v, std::int64_t n) {
    std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
}

/// Rounded once where the instruction set can.
inline Floats fma(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
    return reinterpret_cast<Floats>(
        _mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
    return reinterpret_cast<Floats>(vfmaq_f32(reinterpret_cast<float32x4_t>(c), reinterpret_cast<float32x4_t>(a),
                                              reinterpret_cast<float32x4_t>(b)));
#else
    return a * b + c;
#endif
}

inline Floats max(Floats a, Floats b) { return a > b ? a : b; }

/// In one fixed order.
inline float sum_of(Floats v) {
    float part[lanes];
    std::memcpy(part, &v, sizeof v);
    for (int width = lanes / 2; width > 0; width /= 2) {
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

/// Halves as floats, exact.
inline Floats load_halves(const std::byte * p) {
#if defined(__AVX512F__)
    return reinterpret_cast<Floats>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))));
#elif defined(__F16C__)
    return reinterpret_cast<Floats>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
#elif defined(__aarch64__)
    const uint16x4_t bits = vld1_u16(reinterpret_cast<const std::uint16_t *>(p));
    return reinterpret_cast<Floats>(vcvt_f32_f16(vreinterpret_f16_u16(bits)));
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
