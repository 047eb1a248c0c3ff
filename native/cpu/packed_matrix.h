// Weight matrices in the layout of the narrow-batch kernels, and their products with activation rows. Pure: no backend.
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
/// A multiple of 64.
[[nodiscard]] std::size_t group_bytes(const MatrixShape & shape);
/// `rows`: the group's rows in ggml's layout, back to back (fewer than 16 in the last group).
void pack_group(const MatrixShape & shape, std::span<const std::byte> rows, std::span<std::byte> group);
/// Back to ggml's layout, byte for byte.
void unpack_group(const MatrixShape & shape, std::span<const std::byte> group, std::span<std::byte> rows);
/// One row of a group (0 to 15) in ggml's layout.
void unpack_row(const MatrixShape & shape, std::span<const std::byte> group, std::int32_t row,
                std::span<std::byte> out);

/// An activation row in the form that products with weights of `type` take: int8 blocks of 32 with their scales for
/// quantized weights, floats for the others. A multiple of 64.
[[nodiscard]] std::size_t activation_bytes(ggml_type type, std::int64_t n_cols);
/// Weights of types for which this is equal share their activations.
[[nodiscard]] std::int32_t activation_form(ggml_type type);
/// `row`: n_cols values.
void prepare_activation(ggml_type type, std::span<const float> row, std::byte * out);

/// dst[r][g * 16 + i] = weight row (g * 16 + i) . activation row r, for groups first_group <= g < last_group. Rows
/// beyond n_rows are not written. Every output is summed in one order, whatever the number of activation rows: the
/// results of one row and of many are the same bits.
void multiply(const MatrixShape & shape, const std::byte * groups, std::int64_t first_group, std::int64_t last_group,
              std::span<const std::byte * const> activations, std::span<float * const> dst);

}  // namespace dflash::cpu
