// The ggml backend: one device of type ACCEL that multiplies with packed weights; all else is left to ggml's CPU
// backend.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "ggml_abi.h"
#include "kernels/kernels.h"
#include "neighbours.h"
#include "thread_team.h"
#include "weight_buffer.h"

namespace dflash::cpu {

namespace {

struct Backend {
    ThreadTeam team{1};
    std::int32_t n_threads = 1;
    Scratch scratch;
};

std::byte * at(const ggml_tensor & t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return static_cast<std::byte *>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] +
           static_cast<std::size_t>(i2) * t.nb[2] + static_cast<std::size_t>(i3) * t.nb[3];
}

struct Product {
    const ggml_tensor * node;
    std::span<std::byte> activations;
    std::size_t stride;
    std::int64_t n_rows;
    std::int64_t n_chunks;
};

/// Row r of the input, counted over its three outer dimensions.
struct RowAt {
    std::int64_t i1, i2, i3;
    RowAt(const ggml_tensor & t, std::int64_t r)
        : i1(r % t.ne[1]), i2(r / t.ne[1] % t.ne[2]), i3(r / t.ne[1] / t.ne[2]) {}
};

void prepare_chunk(void * work, std::int32_t chunk) {
    const Product & p = *static_cast<Product *>(work);
    const ggml_tensor & input = *p.node->src[1];
    for (std::int64_t r = chunk * p.n_rows / p.n_chunks; r < (chunk + 1) * p.n_rows / p.n_chunks; ++r) {
        const RowAt where(input, r);
        const auto * const row = reinterpret_cast<const float *>(at(input, where.i1, where.i2, where.i3));
        prepare_activation(p.node->src[0]->type, {row, static_cast<std::size_t>(input.ne[0])},
                           p.activations.data() + static_cast<std::size_t>(r) * p.stride);
    }
}

void multiply_chunk(void * work, std::int32_t chunk) {
    const Product & p = *static_cast<Product *>(work);
    const ggml_tensor & weight = *p.node->src[0];
    const std::int64_t groups = n_groups(shape_of(weight));
    const std::int64_t first = chunk * groups / p.n_chunks;
    const std::int64_t last = (chunk + 1) * groups / p.n_chunks;
    constexpr std::int64_t most = 32;
    for (std::int64_t r = 0; r < p.n_rows; r += most) {
        std::array<const std::byte *, most> from{};
        std::array<float *, most> to{};
        const auto n = static_cast<std::size_t>(std::min(most, p.n_rows - r));
        for (std::size_t i = 0; i < n; ++i) {
            const RowAt where(*p.node->src[1], r + static_cast<std::int64_t>(i));
            from[i] = p.activations.data() + static_cast<std::size_t>(r + static_cast<std::int64_t>(i)) * p.stride;
            to[i] = reinterpret_cast<float *>(at(*p.node, where.i1, where.i2, where.i3));
        }
        multiply(shape_of(weight), groups_of(weight, 0), first, last, std::span(from).first(n), std::span(to).first(n));
    }
}

void mul_mat(Backend & backend, const ggml_tensor & node) {
    const ggml_tensor & input = *node.src[1];
    Product p{&node, {}, activation_bytes(node.src[0]->type, input.ne[0]), ggml_nrows(&input), 1};
    const std::size_t needed = p.stride * static_cast<std::size_t>(p.n_rows);
    if (backend.scratch.activations.size() < needed) {
        backend.scratch.activations.resize(needed);
    }
    p.activations = backend.scratch.activations;
    p.n_chunks = p.n_rows >= 8 ? std::min<std::int64_t>(p.n_rows, backend.n_threads) : 1;
    backend.team.run(static_cast<std::int32_t>(p.n_chunks), prepare_chunk, &p);
    p.n_chunks = std::min<std::int64_t>(n_groups(shape_of(*node.src[0])), 4 * backend.n_threads);
    backend.team.run(static_cast<std::int32_t>(p.n_chunks), multiply_chunk, &p);
}

void get_rows(const ggml_tensor & node) {
    const ggml_tensor & weight = *node.src[0];
    const ggml_tensor & ids = *node.src[1];
    const MatrixShape shape = shape_of(weight);
    const std::size_t bytes = group_bytes(shape);
    std::vector<std::byte> row(ggml_row_size(shape.type, shape.n_cols));
    for (std::int64_t i = 0; i < ids.ne[0]; ++i) {
        const std::int32_t id = static_cast<const std::int32_t *>(ids.data)[i];
        unpack_row(shape, {groups_of(weight, 0) + static_cast<std::size_t>(id / group_rows) * bytes, bytes},
                   id % group_rows, row);
        ggml_get_type_traits(shape.type)
            ->to_float(row.data(), reinterpret_cast<float *>(at(node, i, 0, 0)), shape.n_cols);
    }
}

bool supports(const ggml_tensor & node) {
    const ggml_tensor * const weight = node.src[0];
    const ggml_tensor * const input = node.src[1];
    if (node.op == GGML_OP_MUL_MAT) {
        return is_packed(*weight) && weight->ne[2] == 1 && weight->ne[3] == 1 && input->type == GGML_TYPE_F32 &&
               input->nb[0] == sizeof(float) && node.type == GGML_TYPE_F32;
    }
    for (const ggml_tensor * const src : node.src) {
        if (src != nullptr && is_packed(*src) && node.op != GGML_OP_GET_ROWS) {
            return false;
        }
    }
    if (is_attention(node) || (is_neighbour(node) && !is_packed(*node.src[0]))) {
        return true;
    }
    return node.op == GGML_OP_GET_ROWS && is_packed(*weight) && weight->ne[2] == 1 && weight->ne[3] == 1 &&
           input->ne[1] == 1 && input->ne[2] == 1 && input->ne[3] == 1 && ggml_is_contiguous(input);
}

bool is_view(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Backend & state = *static_cast<Backend *>(backend->context);
    try {
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor & node = *ggml_graph_node(graph, i);
            if (node.op == GGML_OP_MUL_MAT) {
                mul_mat(state, node);
            } else if (node.op == GGML_OP_GET_ROWS && is_packed(*node.src[0])) {
                get_rows(node);
            } else if (is_attention(node)) {
                run_attention(node, state.scratch, state.team);
            } else if (is_neighbour(node)) {
                run_neighbour(node, state.scratch, state.team);
            } else if (!is_view(node.op)) {
                return GGML_STATUS_FAILED;
            }
        }
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

const char * backend_name(ggml_backend_t /*backend*/) { return "DFlash"; }
void backend_free(ggml_backend_t backend) {
    delete static_cast<Backend *>(backend->context);
    delete backend;
}

void set_n_threads(ggml_backend_t backend, int n_threads) {
    Backend & state = *static_cast<Backend *>(backend->context);
    if (state.n_threads != n_threads) {
        state.n_threads = n_threads;
        state.team.resize(n_threads);
    }
}

const char * device_name(ggml_backend_dev_t /*device*/) { return "DFlash"; }
const char * device_description(ggml_backend_dev_t /*device*/) { return "narrow batches on the CPU"; }
void device_memory(ggml_backend_dev_t /*device*/, std::size_t * free, std::size_t * total) { *free = *total = 0; }

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_name(device);
    props->description = device_description(device);
    props->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char * /*params*/) {
    static ggml_guid guid{0xd7, 0x1a, 0x5f, 0x02, 0x9e, 0x44, 0x4b, 0x1c,
                          0x8d, 0x33, 0x60, 0x7e, 0xaa, 0x05, 0xc1, 0x29};
    ggml_backend_i iface{};
    iface.get_name = backend_name;
    iface.free = backend_free;
    iface.graph_compute = graph_compute;
    return new (std::nothrow) ggml_backend{&guid, iface, device, new (std::nothrow) Backend};
}

bool device_supports_op(ggml_backend_dev_t /*device*/, const ggml_tensor * op) {
    return is_view(op->op) || supports(*op);
}
bool device_supports_buft(ggml_backend_dev_t /*device*/, ggml_backend_buffer_type_t type) {
    return is_ours(type) || ggml_backend_buft_is_host(type);
}
enum ggml_backend_dev_type accel(ggml_backend_dev_t /*device*/) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }

ggml_backend_device & the_device();

const char * reg_name(ggml_backend_reg_t /*reg*/) { return "DFlash"; }
std::size_t reg_count(ggml_backend_reg_t /*reg*/) { return 1; }
ggml_backend_dev_t reg_device(ggml_backend_reg_t /*reg*/, std::size_t /*index*/) { return &the_device(); }
void * reg_proc(ggml_backend_reg_t /*reg*/, const char * name) {
    return std::string_view(name) == "ggml_backend_set_n_threads" ? reinterpret_cast<void *>(set_n_threads) : nullptr;
}

ggml_backend_reg & the_reg() {
    static ggml_backend_reg reg{backend_api_version, {reg_name, reg_count, reg_device, reg_proc}, nullptr};
    return reg;
}

ggml_backend_device & the_device() {
    static ggml_backend_device device{
        {device_name, device_description, device_memory, accel, device_props, device_init, buffer_type, nullptr,
         nullptr, device_supports_op, device_supports_buft, nullptr, nullptr, nullptr, nullptr},
        &the_reg(),
        nullptr};
    return device;
}

}  // namespace

ggml_backend_reg_t registration() { return &the_reg(); }

}  // namespace dflash::cpu
