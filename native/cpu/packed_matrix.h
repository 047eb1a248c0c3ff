// Weight matrices in the layout of the narrow-batch kernels, and their products with quantized rows. Pure: no ggml backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ggml.h"

namespace dflash::cpu {

/// A matrix as ggml sees it: n_rows outputs, n_cols inputs. Packed in groups of 16 rows; the last may be padded.
struct MatrixShape {
    ggml_type type = GGML_TYPE_F32;
    std::int64_t n_cols = 0;
    std::int64_t n_rows = 0;
};

constexpr std::int64_t group_rows = 16;

[[nodiscard]] constexpr std::int64_t n_groups(const MatrixShape & shape) {
    return (shape.n_rows + group_rows - 1) / group_rows;
}

/// Is there a packed layout for this type, and do the columns fill whole blocks?
[[nodiscard]] bool can_pack(const MatrixShape & shape);
/// A multiple of 64; for exact multiples of 16 rows at most 3% more than ggml's own size.
[[nodiscard]] std::size_t group_bytes(const MatrixShape & shape);
/// `rows`: the group's rows in ggml's layout, back to back (fewer than 16 in the last group).
void pack_group(const MatrixShape & shape, std::span<const std::byte> rows, std::span<std::byte> group);
/// Back to ggml's layout, byte for byte.
void unpack_group(const MatrixShape & shape, std::span<const std::byte> group, std::span<std::byte> rows);
/// One row of a group (0 to 15) as floats, equal to ggml's to_float of it.
void dequantize_row(const MatrixShape & shape, std::span<const std::byte> group, std::int32_t row, std::span<float> out);

/// An activation row in the form that products with weights of `type` take: int8 blocks of 32 with scale and sum for
/// quantized weights, floats for the others. A multiple of 64.
[[nodiscard]] std::size_t activation_bytes(ggml_type type, std::int64_t n_cols);
/// Weights of types for which this is equal share their activations.
[[nodiscard]] std::int32_t activation_form(ggml_type type);
void prepare_activation(ggml_type type, std::span<const float> row, std::span<std::byte> out);

/// dst[r * dst_stride + g * 16 + i] = weight row (g * 16 + i) . activation row r, for groups first_group <= g <
/// last_group and any number of activation rows, `activation_bytes` apart. Rows beyond n_rows are not written.
/// Every output is summed in one order, whatever the number of rows: the results of one row and of many are the same
/// bits.
void multiply(const MatrixShape & shape, std::span<const std::byte> groups, std::int64_t first_group,
              std::int64_t last_group, std::span<const std::byte> activations, std::int64_t n_activations, float * dst,
              std::int64_t dst_stride);

}  // namespace dflash::cpu
