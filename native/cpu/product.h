// Products with packed weights, and rows looked up in them.
#pragma once

#include "scratch.h"
#include "thread_team.h"

namespace dflash::cpu {

/// MUL_MAT or MUL_MAT_ID of a packed weight.
[[nodiscard]] bool is_product(const ggml_tensor & node);
void run_product(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

/// GET_ROWS of a packed weight.
[[nodiscard]] bool is_lookup(const ggml_tensor & node);
void run_lookup(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

}  // namespace dflash::cpu
