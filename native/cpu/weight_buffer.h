// The backend's memory: activations as ggml lays them out, weight matrices packed for the kernels.
#pragma once

#include "ggml_abi.h"
#include "packed_matrix.h"

namespace dflash::cpu {

/// Of activations, and what llama.cpp is offered for weights; host memory. A buffer in which a packed weight is placed
/// turns into one of `packed_buffer_type`, which is not: nobody may read or write its bytes as ggml's layout.
[[nodiscard]] ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device);
[[nodiscard]] bool is_ours(ggml_backend_buffer_type_t type);

/// Is this tensor a weight matrix that is packed when it lies in our memory?
[[nodiscard]] bool is_packed_weight(const ggml_tensor & tensor);
/// And does it lie there?
[[nodiscard]] bool is_packed(const ggml_tensor & tensor);
/// A view of one that does: no kernel reads it.
[[nodiscard]] bool is_view_of_packed(const ggml_tensor & tensor);

[[nodiscard]] MatrixShape shape_of(const ggml_tensor & weight);
/// Packed groups of the matrix `index` of a weight of several (experts).
[[nodiscard]] const std::byte * groups_of(const ggml_tensor & weight, std::int64_t index);

}  // namespace dflash::cpu
