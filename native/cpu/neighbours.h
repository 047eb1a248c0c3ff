// The operations of a decode around its products: norms, sums, gates, rotations, cache writes, attention.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ggml.h"
#include "thread_team.h"

namespace dflash::cpu {

/// What a backend keeps between nodes.
struct Scratch {
    std::vector<std::byte> activations;
    std::vector<float> attention;
    std::vector<float> slopes;
    std::vector<float> rotations;         // cosine and sine pairs, [position][n_dims / 2][2]
    std::vector<std::int32_t> rotated;    // the positions that `rotations` is of
    std::vector<float> rotation_factors;  // and the frequency factors
    std::vector<std::int32_t> rotation_params;
};

[[nodiscard]] bool is_neighbour(const ggml_tensor & node);
void run_neighbour(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

[[nodiscard]] bool is_attention(const ggml_tensor & node);
void run_attention(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team);

}  // namespace dflash::cpu
