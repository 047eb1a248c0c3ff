// Memory that a backend keeps from node to node, and how rows of a tensor are addressed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include "ggml.h"

namespace dflash::cpu {

/// A graph whose data do not fit it: an id beyond the matrix.
class BadGraph : public std::exception {};

/// Grows only. One thread at a time runs nodes on it; the team's threads get disjoint parts.
struct Scratch {
    std::vector<std::byte> activations;
    const ggml_tensor * prepared = nullptr;  // the tensor whose rows `activations` holds, while it is unchanged
    std::int32_t prepared_form = 0;
    std::vector<std::byte> rows;      // one row in ggml's layout for each share of a lookup
    std::vector<std::int64_t> picks;  // rows of a product with experts, by expert
    std::vector<std::int64_t> picks_begin;
    std::vector<float> attention;
    std::vector<float> slopes;
    std::vector<float> rotations;         // cosine and sine pairs, [position][n_dims / 2][2]
    std::vector<std::int32_t> rotated;    // the positions that `rotations` is of
    std::vector<float> rotation_factors;  // and the frequency factors
    std::vector<std::int32_t> rotation_params;
};

template <typename T>
void grow(std::vector<T> & vector, std::size_t size) {
    if (vector.size() < size) {
        vector.resize(size);
    }
}

template <typename T = float>
T * row_of(const ggml_tensor & t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return reinterpret_cast<T *>(static_cast<std::byte *>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] +
                                 static_cast<std::size_t>(i2) * t.nb[2] + static_cast<std::size_t>(i3) * t.nb[3]);
}

/// Where row r lies, counted over the three outer dimensions.
inline std::array<std::int64_t, 3> place_of(const ggml_tensor & t, std::int64_t r) {
    return {r % t.ne[1], r / t.ne[1] % t.ne[2], r / t.ne[1] / t.ne[2]};
}

template <typename T = float>
T * row_of(const ggml_tensor & t, std::int64_t r) {
    const auto [i1, i2, i3] = place_of(t, r);
    return row_of<T>(t, i1, i2, i3);
}

/// Computes row r of a node.
using RowFunction = void (*)(const ggml_tensor & node, const Scratch & scratch, std::int64_t r);

}  // namespace dflash::cpu
