// Row after row; rows are shared among threads where there are many.
#include "neighbours.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "elementwise.h"
#include "kernels/kernels.h"

namespace dflash::cpu {

namespace {

constexpr std::int64_t shared_values = 8192;  // work below this is not worth a second thread

float param(const ggml_tensor & node, std::size_t index) {
    float out = 0.0F;
    std::memcpy(&out, node.op_params + index, sizeof out);
    return out;
}

bool is_f32_rows(const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float); }

struct Rows {
    const ggml_tensor * node;
    const Scratch * scratch;
    RowFunction row;
    std::int64_t n_rows;
    std::int64_t n_chunks;
};

void run_rows(void * work, std::int32_t chunk) {
    const Rows & rows = *static_cast<Rows *>(work);
    for (std::int64_t r = chunk * rows.n_rows / rows.n_chunks; r < (chunk + 1) * rows.n_rows / rows.n_chunks; ++r) {
        rows.row(*rows.node, *rows.scratch, r);
    }
}

void norm_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    kernels().rms_norm(row_of(*node.src[0], r), nullptr, row_of(node, r), node.ne[0], param(node, 0));
}

template <bool multiply>
void join_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const ggml_tensor & b = *node.src[1];
    const auto [i1, i2, i3] = place_of(node, r);
    const float * const x = row_of(*node.src[0], i1, i2, i3);
    const float * const y = row_of(b, i1 % b.ne[1], i2 % b.ne[2], i3 % b.ne[3]);
    float * const out = row_of(node, i1, i2, i3);
    if (b.ne[0] == 1) {
        for (std::int64_t i = 0; i < node.ne[0]; ++i) {
            out[i] = multiply ? x[i] * *y : x[i] + *y;
        }
        return;
    }
    for (std::int64_t i = 0; i < node.ne[0]; ++i) {
        out[i] = multiply ? x[i] * y[i] : x[i] + y[i];
    }
}

void gate_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const ggml_tensor * const up = node.src[1];
    const bool swapped = node.op_params[1] != 0;
    const float * const a = row_of(*node.src[0], r);
    const float * const first = up != nullptr || !swapped ? a : a + node.ne[0];
    const float * const second = up != nullptr ? row_of(*up, r) : swapped ? a : a + node.ne[0];
    const bool silu = ggml_get_glu_op(&node) == GGML_GLU_OP_SWIGLU;
    (silu ? kernels().silu_mul : kernels().gelu_mul)(first, second, row_of(node, r), node.ne[0]);
}

std::int64_t id_at(const ggml_tensor & ids, std::int64_t i) {
    return ids.type == GGML_TYPE_I64 ? static_cast<const std::int64_t *>(ids.data)[i]
                                     : static_cast<const std::int32_t *>(ids.data)[i];
}

void set_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const float * const from = row_of(*node.src[0], r, 0, 0);
    auto * const to = row_of<std::byte>(node, id_at(*node.src[1], r), 0, 0);
    if (node.type == GGML_TYPE_F16) {
        kernels().to_half(from, reinterpret_cast<ggml_fp16_t *>(to), node.ne[0]);
    } else if (node.type == GGML_TYPE_F32) {
        std::memcpy(to, from, static_cast<std::size_t>(node.ne[0]) * sizeof(float));
    } else {
        ggml_get_type_traits(node.type)->from_float_ref(from, to, node.ne[0]);
    }
}

std::int64_t looked_up(const ggml_tensor & node, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return *(row_of<std::int32_t>(*node.src[1], i2, i3, 0) + i1);
}

void get_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const auto [i1, i2, i3] = place_of(node, r);
    std::memcpy(row_of(node, i1, i2, i3), row_of(*node.src[0], looked_up(node, i1, i2, i3), i2, i3),
                static_cast<std::size_t>(node.ne[0]) * sizeof(float));
}

/// Throws BadGraph where an id names no row.
void check_ids(const ggml_tensor & node) {
    const bool sets = node.op == GGML_OP_SET_ROWS;
    const std::int64_t n = sets ? node.src[0]->ne[1] : ggml_nrows(&node);
    const std::int64_t most = sets ? node.ne[1] : node.src[0]->ne[1];
    for (std::int64_t r = 0; r < n; ++r) {
        const auto [i1, i2, i3] = place_of(node, r);
        const std::int64_t id = sets ? id_at(*node.src[1], r) : looked_up(node, i1, i2, i3);
        if (id < 0 || id >= most) {
            throw BadGraph();
        }
    }
}

/// Cosines and sines of every position of the batch; kept while positions and parameters stay the same.
void fill_rotations(const ggml_tensor & node, Scratch & scratch) {
    const auto n_dims = static_cast<std::size_t>(node.op_params[1]);
    const std::span positions(static_cast<const std::int32_t *>(node.src[1]->data),
                              static_cast<std::size_t>(node.src[0]->ne[2]));
    const std::span params(node.op_params, 11);
    std::vector<float> factors;
    if (node.src[2] != nullptr) {
        const auto * const first = static_cast<const float *>(node.src[2]->data);
        factors.assign(first, first + n_dims / 2);
    }
    if (std::ranges::equal(scratch.rotated, positions) && std::ranges::equal(scratch.rotation_params, params) &&
        scratch.rotation_factors == factors) {
        return;
    }
    const float base = param(node, 5);
    const float step = std::pow(base, -2.0F / static_cast<float>(n_dims));
    const float freq_scale = param(node, 6);
    const float ext_factor = param(node, 7);
    // YaRN (arXiv 2309.00071, section 3): low frequencies are stretched, high ones are not, a ramp lies between.
    std::array<float, 2> ramp{};
    ggml_rope_yarn_corr_dims(static_cast<int>(n_dims), node.op_params[4], base, param(node, 9), param(node, 10),
                             ramp.data());
    const float magnitude = param(node, 8) * (ext_factor != 0.0F ? 1.0F + 0.1F * std::log(1.0F / freq_scale) : 1.0F);
    scratch.rotations.resize(positions.size() * n_dims);
    float * out = scratch.rotations.data();
    for (const std::int32_t position : positions) {
        auto theta = static_cast<float>(position);
        for (std::size_t d = 0; d < n_dims / 2; ++d) {
            const float straight = factors.empty() ? theta : theta / factors[d];
            const float along = (static_cast<float>(d) - ramp[0]) / std::max(0.001F, ramp[1] - ramp[0]);
            const float kept = (1.0F - std::clamp(along, 0.0F, 1.0F)) * ext_factor;
            const float angle = freq_scale * straight * (1.0F - kept) + straight * kept;
            *out++ = std::cos(angle) * magnitude;
            *out++ = std::sin(angle) * magnitude;
            theta *= step;
        }
    }
    scratch.rotated.assign(positions.begin(), positions.end());
    scratch.rotation_params.assign(params.begin(), params.end());
    scratch.rotation_factors = std::move(factors);
}

void rotate_row(const ggml_tensor & node, const Scratch & scratch, std::int64_t r) {
    const std::int64_t n_dims = node.op_params[1];
    const bool halves = node.op_params[2] == GGML_ROPE_TYPE_NEOX;
    const std::int64_t pair = halves ? n_dims / 2 : 1;
    const std::int64_t stride = halves ? 1 : 2;
    const float * const turn = scratch.rotations.data() + r / node.ne[1] % node.ne[2] * n_dims;
    const float * const x = row_of(*node.src[0], r);
    float * const y = row_of(node, r);
    for (std::int64_t d = 0; d < n_dims / 2; ++d) {
        const float a = x[d * stride];
        const float b = x[d * stride + pair];
        y[d * stride] = a * turn[2 * d] - b * turn[2 * d + 1];
        y[d * stride + pair] = a * turn[2 * d + 1] + b * turn[2 * d];
    }
    std::copy(x + n_dims, x + node.ne[0], y + n_dims);
}

bool is_rotation(const ggml_tensor & node) {
    const std::int32_t mode = node.op_params[2];
    return is_f32_rows(node.src[0]) && (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) &&
           node.op_params[15] == 0 &&  // a first dimension other than 0
           node.src[1]->type == GGML_TYPE_I32 && ggml_is_contiguous(node.src[1]) &&
           (node.src[2] == nullptr || node.src[2]->type == GGML_TYPE_F32);
}

bool can_join(const ggml_tensor & node) {
    return is_f32_rows(node.src[0]) && is_f32_rows(node.src[1]) && is_f32_rows(&node) &&
           (node.src[1]->ne[0] == node.ne[0] || node.src[1]->ne[0] == 1);
}

bool is_gate(const ggml_tensor & node) {
    const ggml_glu_op op = ggml_get_glu_op(&node);
    return is_f32_rows(node.src[0]) && (node.src[1] == nullptr || is_f32_rows(node.src[1])) &&
           (op == GGML_GLU_OP_SWIGLU || op == GGML_GLU_OP_GEGLU);
}

bool can_set_rows(const ggml_tensor & node) {
    const ggml_tensor & from = *node.src[0];
    const ggml_tensor & ids = *node.src[1];
    return is_f32_rows(&from) && from.ne[2] == 1 && from.ne[3] == 1 && ggml_is_contiguous(&ids) && ids.ne[1] == 1 &&
           ids.ne[2] == 1 &&
           (node.type == GGML_TYPE_F16 || node.type == GGML_TYPE_F32 || node.type == GGML_TYPE_BF16 ||
            node.type == GGML_TYPE_Q8_0);
}

bool can_get_rows(const ggml_tensor & node) {
    return is_f32_rows(node.src[0]) && node.type == GGML_TYPE_F32 && node.src[1]->type == GGML_TYPE_I32 &&
           node.src[1]->nb[0] == sizeof(std::int32_t);
}

void each_row(const ggml_tensor & node, const Scratch & scratch, ThreadTeam & team, std::int64_t n_rows,
              RowFunction row) {
    const bool shared = n_rows * node.ne[0] >= shared_values;
    Rows rows{&node, &scratch, row, n_rows, shared ? std::min<std::int64_t>(n_rows, 4 * team.n_threads()) : 1};
    team.run(static_cast<std::int32_t>(rows.n_chunks), run_rows, &rows);
}

}  // namespace

bool is_neighbour(const ggml_tensor & node) {
    switch (node.op) {
        case GGML_OP_RMS_NORM: return is_f32_rows(node.src[0]);
        case GGML_OP_ADD:
        case GGML_OP_MUL: return can_join(node);
        case GGML_OP_GLU: return is_gate(node);
        case GGML_OP_ROPE: return is_rotation(node);
        case GGML_OP_SET_ROWS: return can_set_rows(node);
        case GGML_OP_GET_ROWS: return can_get_rows(node);
        default: return is_elementwise(node);
    }
}

void run_neighbour(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team) {
    const auto run = [&](RowFunction row) { each_row(node, scratch, team, ggml_nrows(&node), row); };
    switch (node.op) {
        case GGML_OP_RMS_NORM: return run(norm_row);
        case GGML_OP_ADD: return run(join_row<false>);
        case GGML_OP_MUL: return run(join_row<true>);
        case GGML_OP_GLU: return run(gate_row);
        case GGML_OP_ROPE: fill_rotations(node, scratch); return run(rotate_row);
        case GGML_OP_SET_ROWS: check_ids(node); return each_row(node, scratch, team, node.src[0]->ne[1], set_row);
        case GGML_OP_GET_ROWS: check_ids(node); return run(get_row);
        default: return run(elementwise_row(node));
    }
}

}  // namespace dflash::cpu
