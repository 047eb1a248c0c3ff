// One tile of attention against the sums written out in doubles.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "../kernels/kernels.h"

using namespace dflash::cpu;

namespace {

struct Case {
    ggml_type type = GGML_TYPE_F16;
    std::int32_t n_rows = 3;
    std::int32_t head = 64;
    std::int32_t value = 64;
    std::int32_t n_cells = 256;
    float softcap = 0.0F;
    bool masked = false;
};

struct Result {
    std::vector<float> out;  // divided by the sums
    std::vector<float> sums;
};

class Data {
  public:
    explicit Data(const Case & c) : case_(c) {
        std::uint64_t state = 7;
        const auto fill = [&](std::vector<float> & into, std::int64_t n) {
            into.resize(static_cast<std::size_t>(n));
            for (float & x : into) {
                state = state * 6364136223846793005ULL + 1442695040888963407ULL;
                x = static_cast<float>(static_cast<std::int32_t>(state >> 32U)) * 0x1p-31F;
            }
        };
        fill(queries_, std::int64_t{c.n_rows} * c.head);
        fill(keys_, std::int64_t{c.n_cells} * c.head);
        fill(values_, std::int64_t{c.n_cells} * c.value);
        packed_keys_ = pack(keys_, c.head);
        packed_values_ = pack(values_, c.value);
        for (std::int32_t r = 0; r < c.n_rows; ++r) {
            for (std::int32_t cell = 0; cell < c.n_cells; ++cell) {
                const bool hidden = cell % 7 == r % 7 || cell >= 70 + 60 * r;
                mask_.push_back(ggml_fp32_to_fp16(hidden ? -std::numeric_limits<float>::infinity()
                                                         : -0.25F * static_cast<float>(cell % 3)));
            }
        }
    }

    [[nodiscard]] Result run(std::int32_t first, std::int32_t n) const {
        const std::int32_t columns = pad16(case_.value);
        std::vector<float> scratch(
            static_cast<std::size_t>(attention_scratch(n, case_.n_cells, case_.head, case_.value)));
        Result result;
        std::vector<float> out(static_cast<std::size_t>(n * columns));
        result.sums.resize(static_cast<std::size_t>(2 * n));
        const float slope = 1.0F;
        AttentionTile tile;
        tile.queries = queries_.data() + std::int64_t{first} * case_.head;
        tile.n_rows = n;
        tile.head_size = case_.head;
        tile.value_size = case_.value;
        tile.k_type = tile.v_type = case_.type;
        tile.keys = packed_keys_.data();
        tile.key_stride = static_cast<std::int64_t>(ggml_row_size(case_.type, case_.head));
        tile.values = packed_values_.data();
        tile.value_stride = static_cast<std::int64_t>(ggml_row_size(case_.type, case_.value));
        tile.n_cells = case_.n_cells;
        const auto mask = std::as_bytes(std::span(mask_).subspan(static_cast<std::size_t>(first * case_.n_cells)));
        tile.mask = case_.masked ? mask.data() : nullptr;
        tile.mask_row_stride = std::int64_t{case_.n_cells} * 2;
        tile.slopes = &slope;
        tile.softcap = case_.softcap;
        tile.scratch = scratch.data();
        tile.sums = result.sums.data();
        tile.out = out.data();
        kernels().attend(tile);
        for (std::int32_t r = 0; r < n; ++r) {
            for (std::int32_t d = 0; d < case_.value; ++d) {
                result.out.push_back(out[static_cast<std::size_t>(r * columns + d)] /
                                     result.sums[static_cast<std::size_t>(2 * r + 1)]);
            }
        }
        return result;
    }

    [[nodiscard]] std::vector<double> exact(std::int32_t row) const {
        std::vector<double> out(static_cast<std::size_t>(case_.value), 0.0);
        double total = 0.0;
        for (std::int32_t cell = 0; cell < case_.n_cells; ++cell) {
            double score = 0.0;
            for (std::int32_t d = 0; d < case_.head; ++d) {
                score += static_cast<double>(queries_[static_cast<std::size_t>(row * case_.head + d)]) *
                         keys_[static_cast<std::size_t>(cell * case_.head + d)];
            }
            score = case_.softcap != 0.0F ? case_.softcap * std::tanh(score) : score;
            score +=
                case_.masked ? ggml_fp16_to_fp32(mask_[static_cast<std::size_t>(row * case_.n_cells + cell)]) : 0.0F;
            const double weight = std::exp(score);
            total += weight;
            for (std::int32_t d = 0; d < case_.value; ++d) {
                out[static_cast<std::size_t>(d)] += weight * values_[static_cast<std::size_t>(cell * case_.value + d)];
            }
        }
        for (double & x : out) {
            x /= total;
        }
        return out;
    }

  private:
    Case case_;
    std::vector<float> queries_;
    std::vector<float> keys_;
    std::vector<float> values_;
    std::vector<std::byte> packed_keys_;
    std::vector<std::byte> packed_values_;
    std::vector<ggml_fp16_t> mask_;  // [row][cell]

    /// In the cache's type; `floats` becomes what it holds.
    std::vector<std::byte> pack(std::vector<float> & floats, std::int32_t width) const {
        const std::size_t row = ggml_row_size(case_.type, width);
        std::vector<std::byte> out(row * (floats.size() / static_cast<std::size_t>(width)));
        if (case_.type == GGML_TYPE_F32) {
            std::memcpy(out.data(), floats.data(), out.size());
            return out;
        }
        const auto n = static_cast<std::int64_t>(floats.size());
        ggml_quantize_chunk(case_.type, floats.data(), out.data(), 0, n / width, width, nullptr);
        ggml_get_type_traits(case_.type)->to_float(out.data(), floats.data(), n);
        return out;
    }
};

constexpr std::array cases{
    Case{},
    Case{.type = GGML_TYPE_F32, .n_rows = 1, .n_cells = 1},
    Case{.type = GGML_TYPE_BF16, .n_rows = 7, .head = 80, .value = 80, .n_cells = 100},
    Case{.type = GGML_TYPE_Q8_0, .n_rows = 5, .head = 96, .value = 128, .n_cells = 65},
    Case{.n_rows = 13, .head = 128, .value = 128, .n_cells = 200, .softcap = 2.0F},
    Case{.n_rows = 4, .head = 256, .value = 192, .n_cells = 33, .masked = true},
    Case{.n_rows = 9, .head = 72, .value = 40, .n_cells = 250, .masked = true},
};

}  // namespace

TEST_CASE("a tile of attention is that of the doubles within 1e-4") {
    for (const Case & c : cases) {
        const Data data(c);
        const Result got = data.run(0, c.n_rows);
        for (std::int32_t r = 0; r < c.n_rows; ++r) {
            const std::vector<double> want = data.exact(r);
            for (std::int32_t d = 0; d < c.value; ++d) {
                CAPTURE(c.head);
                CAPTURE(r);
                REQUIRE(std::abs(got.out[static_cast<std::size_t>(r * c.value + d)] -
                                 want[static_cast<std::size_t>(d)]) < 1e-4);
            }
        }
    }
}

TEST_CASE("a row of attention is the same bits alone and in a tile") {
    for (const Case & c : cases) {
        const Data data(c);
        const Result all = data.run(0, c.n_rows);
        for (std::int32_t r = 0; r < c.n_rows; ++r) {
            const Result one = data.run(r, 1);
            CHECK(std::memcmp(one.out.data(), all.out.data() + std::int64_t{r} * c.value,
                              one.out.size() * sizeof(float)) == 0);
            CHECK(one.sums[0] == all.sums[static_cast<std::size_t>(2 * r)]);
            CHECK(one.sums[1] == all.sums[static_cast<std::size_t>(2 * r + 1)]);
        }
    }
}
