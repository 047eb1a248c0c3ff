// Norms, gates and halves against the same in doubles.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../kernels/kernels.h"

using namespace dflash::cpu;

namespace {

std::vector<float> ramp(std::int64_t n, float from, float to) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < n; ++i) {
        out.push_back(from + (to - from) * static_cast<float>((i * 7919) % n) / static_cast<float>(n));
    }
    return out;
}

}  // namespace

TEST_CASE("RMS norm, with and without weights, whatever the length") {
    for (const std::int64_t n : {1, 15, 16, 17, 576, 1000}) {
        const std::vector<float> x = ramp(n, -3.0F, 5.0F);
        const std::vector<float> weight = ramp(n, 0.5F, 2.0F);
        std::vector<float> y(x.size());
        double squares = 0.0;
        for (const float v : x) {
            squares += static_cast<double>(v) * v;
        }
        const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
        for (const bool weighted : {false, true}) {
            kernels().rms_norm(x.data(), weighted ? weight.data() : nullptr, y.data(), n, 1e-5F);
            for (std::size_t i = 0; i < y.size(); ++i) {
                REQUIRE(y[i] == doctest::Approx(x[i] * scale * (weighted ? weight[i] : 1.0)).epsilon(1e-5));
            }
        }
    }
}

TEST_CASE("SiLU and GELU gates, alone and times another row") {
    const std::vector<float> gate = ramp(101, -30.0F, 30.0F);
    const std::vector<float> up = ramp(101, -2.0F, 2.0F);
    std::vector<float> y(gate.size());
    for (const bool with_up : {false, true}) {
        kernels().silu_mul(gate.data(), with_up ? up.data() : nullptr, y.data(), 101);
        for (std::size_t i = 0; i < y.size(); ++i) {
            const double want = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * (with_up ? up[i] : 1.0);
            REQUIRE(std::abs(y[i] - want) < 1e-5 * (1.0 + std::abs(want)));
        }
        kernels().gelu_mul(gate.data(), with_up ? up.data() : nullptr, y.data(), 101);
        for (std::size_t i = 0; i < y.size(); ++i) {
            const double g = gate[i];
            const double want =
                0.5 * g * (1.0 + std::tanh(0.7978845608 * (g + 0.044715 * g * g * g))) * (with_up ? up[i] : 1.0);
            REQUIRE(std::abs(y[i] - want) < 1e-5 * (1.0 + std::abs(want)));
        }
    }
}

TEST_CASE("halves are ggml's") {
    std::vector<float> x;
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
        const float value = ggml_fp16_to_fp32(static_cast<ggml_fp16_t>(bits));
        for (const float near : {value, std::nextafter(value, 1e9F), value * 1.0003F, value * 0.99974F}) {
            x.push_back(near);
        }
    }
    std::vector<ggml_fp16_t> y(x.size());
    kernels().to_half(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
        if (std::isnan(x[i])) {
            REQUIRE(std::isnan(ggml_fp16_to_fp32(y[i])));
        } else {
            REQUIRE(y[i] == ggml_fp32_to_fp16(x[i]));
        }
    }
}
