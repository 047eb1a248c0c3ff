// The chosen instruction set against plain C++, bit for bit: quantized activations, products with any codes.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "../kernels/kernels.h"
#include "../packed_matrix.h"

namespace dflash::cpu::generic {
extern const Kernels table;
}

using namespace dflash::cpu;

namespace {

constexpr std::array types{GGML_TYPE_Q4_0,  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,   GGML_TYPE_Q8_0,
                           GGML_TYPE_Q4_K,  GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                           GGML_TYPE_MXFP4, GGML_TYPE_F16,  GGML_TYPE_BF16};
constexpr std::int64_t n_cols = 512;
constexpr std::size_t n_x = 11;

std::vector<float> ramp(std::size_t n) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) {
        out[i] = static_cast<float>(i * 7919 % 1009) / 500.0F - 1.0F;
    }
    return out;
}

/// Rows in the form of the kernels; the first three are as far from 0 as codes get, up, down and by turns.
std::vector<std::vector<std::byte>> quantized(const Kernels & by, const Layout & layout) {
    std::vector<std::vector<std::byte>> out;
    const std::vector<float> values = ramp(n_x * n_cols);
    for (std::size_t r = 0; r < n_x; ++r) {
        std::vector<float> row(values.begin() + static_cast<std::ptrdiff_t>(r * n_cols),
                               values.begin() + static_cast<std::ptrdiff_t>((r + 1) * n_cols));
        for (std::size_t c = 0; c < n_cols && r < 3; ++c) {
            row[c] = r == 0 || (r == 2 && c % 2 == 0) ? 0.7F : -0.7F;
        }
        out.emplace_back(heads_offset(n_cols) + n_cols / 32 * static_cast<std::int64_t>(sizeof(ActivationHead)));
        by.quantize(row.data(), n_cols, layout.zero, layout.scales == Scales::super_16, out.back().data());
    }
    return out;
}

std::vector<float> product(const Kernels & by, const Layout & layout, std::span<const std::byte> group,
                           const std::vector<const std::byte *> & x, std::int32_t n_valid) {
    std::vector<float> out(16 * x.size(), 7.0F);
    std::vector<float *> y;
    for (std::size_t r = 0; r < x.size(); ++r) {
        y.push_back(out.data() + 16 * r);
    }
    by.multiply(layout, n_cols, group.data(), x.data(), y.data(), static_cast<std::int32_t>(x.size()), n_valid);
    return out;
}

bool are_equal(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("every instruction set quantizes and multiplies to the bits of plain C++") {
    for (const ggml_type type : types) {
        CAPTURE(ggml_type_name(type));
        const Layout & layout = *layout_of(type);
        const MatrixShape shape{type, n_cols, 16};
        const std::vector<float> source = ramp(16 * n_cols);
        std::vector<std::byte> rows(ggml_row_size(type, n_cols) * 16);
        ggml_quantize_chunk(type, source.data(), rows.data(), 0, 16, n_cols, nullptr);
        std::vector<std::byte> group(group_bytes(shape));
        pack_group(shape, rows, group);

        std::vector<std::vector<std::byte>> x;
        if (layout.scales == Scales::none) {
            for (std::size_t r = 0; r < n_x; ++r) {
                const std::span bytes = std::as_bytes(std::span(source).subspan(r * n_cols, n_cols));
                x.emplace_back(bytes.begin(), bytes.end());
            }
        } else {
            x = quantized(generic::table, layout);
            REQUIRE(x == quantized(kernels(), layout));
        }
        std::vector<const std::byte *> from;
        for (const std::vector<std::byte> & row : x) {
            from.push_back(row.data());
        }
        // As quantized, then codes all lowest and all highest, which 16 bit would not hold summed up carelessly.
        for (const int codes : {-1, 0, 0xFF}) {
            if (codes >= 0 && layout.scales == Scales::none) {
                continue;
            }
            if (codes >= 0) {
                std::fill_n(group.begin(), scales_offset(layout, n_cols), static_cast<std::byte>(codes));
            }
            for (std::size_t n = 1; n <= n_x; ++n) {
                CAPTURE(codes);
                CAPTURE(n);
                const std::vector some(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(n));
                for (const std::int32_t n_valid : {16, 5}) {
                    const std::vector<float> got = product(kernels(), layout, group, some, n_valid);
                    REQUIRE(are_equal(got, product(generic::table, layout, group, some, n_valid)));
                }
            }
        }
    }
}
