// Operations on values one by one, copies between layouts, and soft maxima.
#pragma once

#include "scratch.h"

namespace dflash::cpu {

/// SCALE, UNARY, CONT, CPY, DUP, SOFT_MAX of the types that have a kernel here.
[[nodiscard]] bool is_elementwise(const ggml_tensor & node);
[[nodiscard]] RowFunction elementwise_row(const ggml_tensor & node);

}  // namespace dflash::cpu
