// Builds one MUL_MAT with weights in the CPU's preferred buffer type and runs it.
#include "dflash/matmul_timing.h"

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <string>
#include <utility>
#include <vector>

#include "cpu_timing.h"
#include "dflash/cpu_backend.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr const char * who = "time_matmul";
constexpr std::size_t max_graph_nodes = 8;

[[noreturn]] void refuse(const std::string & name, const std::string & got, const std::string & expected) {
    throw Error(ErrorCode::invalid_argument, std::string(who) + ": " + name + " is " + got + ", expected " + expected,
                name);
}

void check(const MatmulShape & shape, std::int32_t n_threads, double budget_ms) {
    cpu_timing::check(who, n_threads, budget_ms);
    if (static_cast<unsigned>(shape.type) >= GGML_TYPE_COUNT || ggml_blck_size(shape.type) < 1) {
        refuse("type", std::to_string(shape.type), "a tensor type");
    }
    const std::int64_t block = ggml_blck_size(shape.type);
    if (shape.n_in < 1 || shape.n_in % block != 0) {
        refuse("n_in", std::to_string(shape.n_in), "a positive multiple of " + std::to_string(block));
    }
    for (const auto & [name, value] : {std::pair{"n_out", shape.n_out}, {"n_rows", std::int64_t{shape.n_rows}}}) {
        if (value < 1) {
            refuse(name, std::to_string(value), "a positive number");
        }
    }
    const double weights = static_cast<double>(shape.n_in) * static_cast<double>(shape.n_out) * sizeof(float);
    const double batch = static_cast<double>(shape.n_in + shape.n_out) * shape.n_rows * sizeof(float);
    if (weights + batch > static_cast<double>(max_matmul_bytes)) {
        refuse("n_in x n_out", std::to_string(shape.n_in) + " x " + std::to_string(shape.n_out),
               "shapes that take at most " + std::to_string(max_matmul_bytes >> 20) + " MiB as F32");
    }
}

/// The first extra buffer type with a kernel for `op`, as llama.cpp's loader chooses it; null where there is none.
ggml_backend_buffer_type_t repacking(ggml_backend_dev_t device, ggml_tensor * op) {
    void * const getter =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    if (getter == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_type_t * types = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(getter)(device);
    for (; types != nullptr && *types != nullptr; ++types) {
        const ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(*types, 0));
        op->src[0]->buffer = probe.get();
        const bool supported = ggml_backend_dev_supports_op(device, op);
        op->src[0]->buffer = nullptr;
        if (supported) {
            return *types;
        }
    }
    return nullptr;
}

ggml_context_ptr new_context() {
    ggml_context_ptr ctx(ggml_init({
        .mem_size = ggml_tensor_overhead() * max_graph_nodes + ggml_graph_overhead_custom(max_graph_nodes, false),
        .mem_buffer = nullptr,
        .no_alloc = true,
    }));
    if (ctx == nullptr) {
        throw Error(ErrorCode::out_of_memory, std::string(who) + ": no memory for the graph");
    }
    return ctx;
}

ggml_backend_buffer_ptr allocate(ggml_context * ctx, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx, type));
    if (buffer == nullptr) {
        throw Error(ErrorCode::out_of_memory, std::string(who) + ": no memory for the tensors");
    }
    return buffer;
}

}  // namespace

MatmulTime time_matmul(const MatmulShape & shape, std::int32_t n_threads, double budget_ms) {
    check(shape, n_threads, budget_ms);
    const ggml_backend_dev_t device = shape.ours ? cpu_backend_device() : cpu_timing::cpu_device(who);
    if (device == nullptr) {
        throw Error(ErrorCode::unsupported, std::string(who) + ": our CPU kernels are not loaded", "ours");
    }
    const ggml_backend_ptr backend = cpu_timing::start_backend(who, n_threads, device);
    const ggml_context_ptr weight_ctx = new_context();
    const ggml_context_ptr ctx = new_context();
    ggml_tensor * weights = ggml_new_tensor_2d(weight_ctx.get(), shape.type, shape.n_in, shape.n_out);
    ggml_set_name(weights, "timed.weight");  // our kernels tell weights by their names
    ggml_tensor * batch = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, shape.n_in, shape.n_rows);
    ggml_tensor * result = ggml_mul_mat(ctx.get(), weights, batch);
    ggml_backend_buffer_type_t type = repacking(device, result);
    const bool repacked = type != nullptr;
    if (!repacked) {
        type = ggml_backend_dev_buffer_type(device);
        const ggml_backend_buffer_ptr probe(ggml_backend_buft_alloc_buffer(type, 0));
        weights->buffer = probe.get();
        const bool supported = ggml_backend_dev_supports_op(device, result);
        weights->buffer = nullptr;
        if (!supported) {
            throw Error(ErrorCode::unsupported,
                        std::string(who) + ": " + ggml_backend_dev_name(device) + " cannot multiply by " +
                            ggml_type_name(shape.type),
                        "type");
        }
    }
    const ggml_backend_buffer_ptr weight_buffer = allocate(weight_ctx.get(), type);
    // Through set_tensor, which repacks: zeros are numbers of every type, and integer kernels do not care.
    const std::vector<std::uint8_t> zeros(ggml_nbytes(weights));
    ggml_backend_tensor_set(weights, zeros.data(), 0, zeros.size());
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), max_graph_nodes, false);
    ggml_build_forward_expand(graph, result);
    const ggml_backend_buffer_ptr buffer = allocate(ctx.get(), ggml_backend_dev_buffer_type(device));
    ggml_backend_buffer_clear(buffer.get(), 0);
    return {cpu_timing::median_ms(who, backend.get(), graph, budget_ms), repacked};
}

}  // namespace dflash
