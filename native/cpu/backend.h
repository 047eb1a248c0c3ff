// The ggml backend, for whoever registers it.
#pragma once

#include "ggml_abi.h"

namespace dflash::cpu {

/// One device of type ACCEL. Lives as long as the process.
[[nodiscard]] ggml_backend_reg_t registration();

}  // namespace dflash::cpu
