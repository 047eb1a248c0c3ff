// Builds the attention graph of one layer in llama.cpp's two layouts and runs it on the CPU backend.
#include "dflash/attention_timing.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <cmath>
#include <string>

#include "cpu_timing.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr const char * who = "time_attention";
constexpr std::size_t max_graph_nodes = 32;

[[noreturn]] void refuse(const std::string & name, const std::string & got, const std::string & expected) {
    throw Error(ErrorCode::invalid_argument, "time_attention: " + name + " is " + got + ", expected " + expected, name);
}

void check_positive(const char * name, std::int32_t value) {
    if (value <= 0) {
        refuse(name, std::to_string(value), "a positive number");
    }
}

/// Upper bound of the tensors' bytes, in double so that it cannot overflow.
double tensor_bytes(const AttentionShape & s) {
    const double kv = 2.0 * s.head_dim * s.n_head_kv * s.n_kv * sizeof(ggml_fp16_t);
    const double query_and_result = 3.0 * s.head_dim * s.n_head * s.n_rows * sizeof(float);
    const double mask = static_cast<double>(s.n_kv) * s.n_rows * sizeof(float);
    const double scores = s.flash ? 0.0 : 2.0 * mask * s.n_head;
    return kv + query_and_result + mask + scores;
}

void check(const AttentionShape & shape, std::int32_t n_threads, double budget_ms) {
    check_positive("n_head", shape.n_head);
    check_positive("n_head_kv", shape.n_head_kv);
    check_positive("head_dim", shape.head_dim);
    check_positive("n_kv", shape.n_kv);
    check_positive("n_rows", shape.n_rows);
    cpu_timing::check(who, n_threads, budget_ms);
    if (shape.n_head % shape.n_head_kv != 0) {
        refuse("n_head", std::to_string(shape.n_head), "a multiple of n_head_kv " + std::to_string(shape.n_head_kv));
    }
    if (tensor_bytes(shape) > static_cast<double>(max_attention_bytes)) {
        refuse("n_kv x n_rows", std::to_string(shape.n_kv) + " x " + std::to_string(shape.n_rows),
               "shapes that take at most " + std::to_string(max_attention_bytes >> 20) + " MiB");
    }
}

/// K/V cache rows [head_dim x n_head_kv] per cell, seen as [head_dim, n_kv, n_head_kv].
ggml_tensor * cache_view(ggml_context * ctx, const AttentionShape & s) {
    ggml_tensor * cache = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, s.head_dim, s.n_head_kv, s.n_kv);
    return ggml_permute(ctx, cache, 0, 2, 1, 3);
}

/// [n_rows x (head_dim x n_head)], the layout before the output projection.
ggml_tensor * build(ggml_context * ctx, const AttentionShape & s) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(s.head_dim));
    const std::int64_t n_embd = std::int64_t{s.head_dim} * s.n_head;
    ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, s.head_dim, s.n_head, s.n_rows);
    q = ggml_permute(ctx, q, 0, 2, 1, 3);
    ggml_tensor * k = cache_view(ctx, s);
    if (s.flash) {
        ggml_tensor * v = cache_view(ctx, s);
        ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, s.n_kv, s.n_rows);
        ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, mask, scale, 0.0F, 0.0F);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        return ggml_reshape_2d(ctx, out, n_embd, s.n_rows);
    }
    // Without flash attention the V cache is kept transposed: [n_kv, head_dim, n_head_kv].
    ggml_tensor * v = ggml_new_tensor_3d(ctx, GGML_TYPE_F16, s.n_kv, s.head_dim, s.n_head_kv);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, s.n_kv, s.n_rows);
    ggml_tensor * scores = ggml_mul_mat(ctx, k, q);
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    scores = ggml_soft_max_ext(ctx, scores, mask, scale, 0.0F);
    ggml_tensor * out = ggml_permute(ctx, ggml_mul_mat(ctx, v, scores), 0, 2, 1, 3);
    return ggml_cont_2d(ctx, out, n_embd, s.n_rows);
}

}  // namespace

double time_attention(const AttentionShape & shape, std::int32_t n_threads, double budget_ms,
                      ggml_backend_dev_t device) {
    check(shape, n_threads, budget_ms);
    const ggml_backend_ptr backend = cpu_timing::start_backend(who, n_threads, device);
    const ggml_init_params params = {
        .mem_size = ggml_tensor_overhead() * max_graph_nodes + ggml_graph_overhead_custom(max_graph_nodes, false),
        .mem_buffer = nullptr,
        .no_alloc = true,
    };
    const ggml_context_ptr ctx(ggml_init(params));
    if (ctx == nullptr) {
        throw Error(ErrorCode::out_of_memory, "time_attention: no memory for the graph");
    }
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), max_graph_nodes, false);
    ggml_build_forward_expand(graph, build(ctx.get(), shape));
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors(ctx.get(), backend.get()));
    if (buffer == nullptr) {
        throw Error(ErrorCode::out_of_memory, "time_attention: no memory for the tensors");
    }
    ggml_backend_buffer_clear(buffer.get(), 0);

    return cpu_timing::median_ms(who, backend.get(), graph, budget_ms);
}

}  // namespace dflash
