// The operations of a decode around its products: norms, sums, gates, rotations, cache writes, attention.
#pragma once

#include "scratch.h"
#include "thread_team.h"

namespace dflash::cpu {

[[nodiscard]] bool is_neighbour(const ggml_tensor & node);
void run_neighbour(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

[[nodiscard]] bool is_attention(const ggml_tensor & node);
void run_attention(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

}  // namespace dflash::cpu
