// Row after row in plain loops; what decides about speed is elsewhere.
#include "elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/kernels.h"

namespace dflash::cpu {

namespace {

float param(const ggml_tensor & node, std::size_t index) {
    float out = 0.0F;
    std::memcpy(&out, node.op_params + index, sizeof out);
    return out;
}

bool is_f32_rows(const ggml_tensor & t) { return t.type == GGML_TYPE_F32 && t.nb[0] == sizeof(float); }

void scale_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const float scale = param(node, 0);
    const float bias = param(node, 1);
    const float * const x = row_of(*node.src[0], r);
    std::transform(x, x + node.ne[0], row_of(node, r), [=](float value) { return value * scale + bias; });
}

template <typename Function>
void map_row(const ggml_tensor & node, std::int64_t r, const Function & function) {
    const float * const x = row_of(*node.src[0], r);
    std::transform(x, x + node.ne[0], row_of(node, r), function);
}

void silu_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    kernels().silu_mul(row_of(*node.src[0], r), nullptr, row_of(node, r), node.ne[0]);
}
void gelu_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    kernels().gelu_mul(row_of(*node.src[0], r), nullptr, row_of(node, r), node.ne[0]);
}
void relu_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    map_row(node, r, [](float x) { return std::max(x, 0.0F); });
}
void tanh_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    map_row(node, r, [](float x) { return std::tanh(x); });
}
void sigmoid_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    map_row(node, r, [](float x) { return 1.0F / (1.0F + std::exp(-x)); });
}

float value_at(const std::byte * p, ggml_type type) {
    if (type == GGML_TYPE_F32) {
        float value = 0.0F;
        std::memcpy(&value, p, sizeof value);
        return value;
    }
    ggml_fp16_t half = 0;
    std::memcpy(&half, p, sizeof half);
    return ggml_fp16_to_fp32(half);
}

void put_at(std::byte * p, ggml_type type, float value) {
    if (type == GGML_TYPE_F32) {
        std::memcpy(p, &value, sizeof value);
        return;
    }
    const ggml_fp16_t half = ggml_fp32_to_fp16(value);
    std::memcpy(p, &half, sizeof half);
}

/// Shapes may differ; elements keep their order.
void copy_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const ggml_tensor & from = *node.src[0];
    std::byte * to = row_of<std::byte>(node, r);
    std::int64_t element = r * node.ne[0];
    for (std::int64_t left = node.ne[0]; left > 0;) {
        const std::int64_t i0 = element % from.ne[0];
        const std::byte * x = row_of<std::byte>(from, element / from.ne[0]) + static_cast<std::size_t>(i0) * from.nb[0];
        const std::int64_t n = std::min(left, from.ne[0] - i0);
        if (from.type == node.type && from.nb[0] == ggml_type_size(from.type) && node.nb[0] == from.nb[0]) {
            std::memcpy(to, x, static_cast<std::size_t>(n) * from.nb[0]);
            to += static_cast<std::size_t>(n) * node.nb[0];
        } else {
            for (std::int64_t i = 0; i < n; ++i, x += from.nb[0], to += node.nb[0]) {
                put_at(to, node.type, value_at(x, from.type));
            }
        }
        element += n;
        left -= n;
    }
}

bool can_copy(const ggml_tensor & node) {
    const auto is_known = [](ggml_type type) { return type == GGML_TYPE_F32 || type == GGML_TYPE_F16; };
    return is_known(node.type) && is_known(node.src[0]->type) && ggml_nelements(&node) == ggml_nelements(node.src[0]);
}

void soft_max_row(const ggml_tensor & node, const Scratch & /*scratch*/, std::int64_t r) {
    const ggml_tensor * const mask = node.src[1];
    const auto [i1, i2, i3] = place_of(node, r);
    const float scale = param(node, 0);
    const float * const x = row_of(*node.src[0], r);
    float * const y = row_of(node, r);
    const std::byte * const added =
        mask == nullptr ? nullptr : row_of<std::byte>(*mask, i1, i2 % mask->ne[2], i3 % mask->ne[3]);
    float highest = -INFINITY;
    for (std::int64_t i = 0; i < node.ne[0]; ++i) {
        y[i] = x[i] * scale;
        if (added != nullptr) {
            y[i] += value_at(added + static_cast<std::size_t>(i) * mask->nb[0], mask->type);
        }
        highest = std::max(highest, y[i]);
    }
    float sum = 0.0F;
    for (std::int64_t i = 0; i < node.ne[0]; ++i) {
        y[i] = std::exp(y[i] - highest);
        sum += y[i];
    }
    const float inverse = 1.0F / sum;
    for (std::int64_t i = 0; i < node.ne[0]; ++i) {
        y[i] *= inverse;
    }
}

bool can_soft_max(const ggml_tensor & node) {
    const ggml_tensor * const mask = node.src[1];
    const bool has_bias = param(node, 1) != 0.0F;  // ALiBi
    return is_f32_rows(*node.src[0]) && is_f32_rows(node) && !has_bias && node.src[2] == nullptr &&
           (mask == nullptr || mask->type == GGML_TYPE_F32 || mask->type == GGML_TYPE_F16);
}

RowFunction unary_row(const ggml_tensor & node) {
    switch (ggml_get_unary_op(&node)) {
        case GGML_UNARY_OP_SILU: return silu_row;
        case GGML_UNARY_OP_GELU: return gelu_row;
        case GGML_UNARY_OP_RELU: return relu_row;
        case GGML_UNARY_OP_TANH: return tanh_row;
        case GGML_UNARY_OP_SIGMOID: return sigmoid_row;
        default: return nullptr;
    }
}

}  // namespace

bool is_elementwise(const ggml_tensor & node) {
    switch (node.op) {
        case GGML_OP_SCALE: return is_f32_rows(*node.src[0]) && is_f32_rows(node);
        case GGML_OP_UNARY: return is_f32_rows(*node.src[0]) && is_f32_rows(node) && unary_row(node) != nullptr;
        case GGML_OP_CONT:
        case GGML_OP_CPY:
        case GGML_OP_DUP: return can_copy(node);
        case GGML_OP_SOFT_MAX: return can_soft_max(node);
        default: return false;
    }
}

RowFunction elementwise_row(const ggml_tensor & node) {
    switch (node.op) {
        case GGML_OP_SCALE: return scale_row;
        case GGML_OP_UNARY: return unary_row(node);
        case GGML_OP_SOFT_MAX: return soft_max_row;
        default: return copy_row;
    }
}

}  // namespace dflash::cpu
