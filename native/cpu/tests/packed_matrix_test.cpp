// Packed matrices against ggml's own rows: round trips, products, and rows that do not depend on their number.
#include "../packed_matrix.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "../kernels/kernels.h"
#include "../packed_layout.h"

using namespace dflash::cpu;

namespace {

constexpr std::array types{GGML_TYPE_Q4_0,  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,   GGML_TYPE_Q8_0,
                           GGML_TYPE_Q4_K,  GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                           GGML_TYPE_MXFP4, GGML_TYPE_F16,  GGML_TYPE_BF16};

/// The same on every platform, uniform in [-1, 1).
class Noise {
  public:
    float next() {
        state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<float>(static_cast<std::int32_t>(state_ >> 32U)) * 0x1p-31F;
    }
    std::vector<float> take(std::size_t n) {
        std::vector<float> out(n);
        for (float & value : out) {
            value = next();
        }
        return out;
    }

  private:
    std::uint64_t state_ = 42;
};

struct Packed {
    MatrixShape shape;
    std::vector<std::byte> rows;  // in ggml's layout
    std::vector<std::byte> groups;
    std::vector<float> values;

    Packed(ggml_type type, std::int64_t n_cols, std::int64_t n_rows) : shape{type, n_cols, n_rows} {
        Noise noise;
        const std::vector<float> source = noise.take(static_cast<std::size_t>(n_cols * n_rows));
        const std::size_t row_bytes = ggml_row_size(type, n_cols);
        rows.resize(row_bytes * static_cast<std::size_t>(n_rows));
        ggml_quantize_chunk(type, source.data(), rows.data(), 0, n_rows, n_cols, nullptr);
        values.resize(source.size());
        for (std::int64_t r = 0; r < n_rows; ++r) {
            ggml_get_type_traits(type)->to_float(rows.data() + static_cast<std::size_t>(r) * row_bytes,
                                                 values.data() + r * n_cols, n_cols);
        }
        const std::size_t bytes = group_bytes(shape);
        groups.resize(bytes * static_cast<std::size_t>(n_groups(shape)));
        for (std::int64_t g = 0; g < n_groups(shape); ++g) {
            pack_group(shape, rows_of(g), group(g));
        }
    }
    [[nodiscard]] std::span<const std::byte> rows_of(std::int64_t g) const {
        const std::size_t row_bytes = ggml_row_size(shape.type, shape.n_cols);
        const auto n = static_cast<std::size_t>(std::min(group_rows, shape.n_rows - g * group_rows));
        return std::span(rows).subspan(static_cast<std::size_t>(g * group_rows) * row_bytes, n * row_bytes);
    }
    std::span<std::byte> group(std::int64_t g) {
        const std::size_t bytes = group_bytes(shape);
        return std::span(groups).subspan(static_cast<std::size_t>(g) * bytes, bytes);
    }

    [[nodiscard]] std::vector<float> times(const std::vector<float> & x, std::size_t n) const {
        const std::size_t bytes = activation_bytes(shape.type, shape.n_cols);
        const auto cols = static_cast<std::size_t>(shape.n_cols);
        const auto width = static_cast<std::size_t>(shape.n_rows);
        std::vector<std::byte> activations(bytes * n);
        std::vector<float> out(width * n, -1.0F);
        std::vector<const std::byte *> from;
        std::vector<float *> to;
        for (std::size_t r = 0; r < n; ++r) {
            prepare_activation(shape.type, std::span(x).subspan(r * cols, cols), activations.data() + r * bytes);
            from.push_back(activations.data() + r * bytes);
            to.push_back(out.data() + r * width);
        }
        multiply(shape, groups.data(), 0, n_groups(shape), from, to);
        return out;
    }
};

bool is_float(ggml_type type) { return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16; }

}  // namespace

TEST_CASE("a packed group gives back ggml's bytes") {
    for (const ggml_type type : types) {
        for (const std::int64_t n_rows : {1, 15, 16, 17, 40}) {
            CAPTURE(ggml_type_name(type));
            Packed packed(type, 512, n_rows);
            REQUIRE(can_pack(packed.shape));
            for (std::int64_t g = 0; g < n_groups(packed.shape); ++g) {
                const std::span<const std::byte> rows = packed.rows_of(g);
                std::vector<std::byte> back(rows.size());
                unpack_group(packed.shape, packed.group(g), back);
                CHECK(std::memcmp(back.data(), rows.data(), back.size()) == 0);
            }
        }
    }
}

TEST_CASE("packing takes at most three percent more than ggml's rows, for sixteen of them") {
    for (const ggml_type type : types) {
        CAPTURE(ggml_type_name(type));
        const MatrixShape shape{type, 2048, 16};
        CHECK(static_cast<double>(group_bytes(shape)) <= 1.03 * static_cast<double>(16 * ggml_row_size(type, 2048)));
    }
}

TEST_CASE("types without a layout and columns that fill no block are not packed") {
    CHECK_FALSE(can_pack({GGML_TYPE_Q2_K, 256, 16}));
    CHECK_FALSE(can_pack({GGML_TYPE_F32, 256, 16}));
    CHECK_FALSE(can_pack({GGML_TYPE_Q4_0, 48, 16}));
    CHECK_FALSE(can_pack({GGML_TYPE_Q4_K, 576, 16}));
    CHECK_FALSE(can_pack({GGML_TYPE_Q4_0, 0, 16}));
    CHECK(can_pack({GGML_TYPE_Q4_0, 576, 1}));
}

TEST_CASE("products are those of the dequantized weights, within the rounding of the activations") {
    Noise noise;
    for (const ggml_type type : types) {
        for (const std::int64_t n_cols : {256, 768}) {
            const Packed packed(type, n_cols, 37);
            const std::vector<float> x = noise.take(static_cast<std::size_t>(n_cols) * 3);
            const std::vector<float> got = packed.times(x, 3);
            for (std::size_t r = 0; r < 3; ++r) {
                for (std::size_t i = 0; i < 37; ++i) {
                    double exact = 0.0;
                    double bound = 1e-4;
                    for (std::size_t c = 0; c < static_cast<std::size_t>(n_cols); ++c) {
                        const double w = packed.values[i * static_cast<std::size_t>(n_cols) + c];
                        exact += w * x[r * static_cast<std::size_t>(n_cols) + c];
                        // Half a step of a block whose largest value is 1: errors of random sign, five deviations.
                        bound += w * w;
                    }
                    bound = is_float(type) ? 1e-3 : 1e-3 + 5.0 * std::sqrt(bound / 12.0) / 127.0;
                    CAPTURE(ggml_type_name(type));
                    CAPTURE(i);
                    REQUIRE(std::abs(got[r * 37 + i] - exact) < bound);
                }
            }
        }
    }
}

TEST_CASE("a row's product is the same bits alone and among others") {
    Noise noise;
    for (const ggml_type type : types) {
        const Packed packed(type, 512, 50);
        const std::vector<float> x = noise.take(512 * 33);
        std::vector<float> alone;
        for (std::size_t r = 0; r < 33; ++r) {
            const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(512 * r),
                                         x.begin() + static_cast<std::ptrdiff_t>(512 * (r + 1)));
            const std::vector<float> one = packed.times(row, 1);
            alone.insert(alone.end(), one.begin(), one.end());
        }
        for (std::size_t n = 1; n <= 33; ++n) {
            CAPTURE(ggml_type_name(type));
            CAPTURE(n);
            const std::vector<float> got = packed.times(x, n);
            REQUIRE(std::memcmp(got.data(), alone.data(), got.size() * sizeof(float)) == 0);
        }
    }
}

TEST_CASE("activations that are nothing, tiny, huge or not numbers end in what they must") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const ggml_type type : types) {
        const Packed packed(type, 256, 16);
        CAPTURE(ggml_type_name(type));
        std::vector<float> x(256, 0.0F);
        CHECK(packed.times(x, 1)[3] == 0.0F);
        x[7] = 1e-42F;
        CHECK(std::abs(packed.times(x, 1)[3]) < 1e-30F);
        for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
            x[7] = bad;
            CHECK_FALSE(std::isfinite(packed.times(x, 1)[3]));
        }
    }
}
