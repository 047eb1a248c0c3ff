// The ggml backend: one device that runs what it supports of a graph, node by node; the rest is left to ggml's CPU
// backend.
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string_view>

#include "backend.h"
#include "neighbours.h"
#include "product.h"
#include "thread_team.h"
#include "weight_buffer.h"

namespace dflash::cpu {

namespace {

struct Backend {
    ThreadTeam team{1};
    std::int32_t n_threads = 1;
    Scratch scratch;
    ggml_abort_callback abort = nullptr;  // asked between nodes
    void * abort_data = nullptr;
};

bool is_view(ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_VIEW || op == GGML_OP_RESHAPE || op == GGML_OP_PERMUTE ||
           op == GGML_OP_TRANSPOSE;
}

bool supports(const ggml_tensor & node) {
    if (is_product(node) || is_lookup(node)) {
        return true;
    }
    // Others read no packed bytes: the scheduler hands them a copy.
    const auto is_readable = [](const ggml_tensor * src) {
        return src == nullptr || (!is_packed(*src) && !is_view_of_packed(*src));
    };
    return std::ranges::all_of(node.src, is_readable) && (is_attention(node) || is_neighbour(node));
}

bool overlap(const ggml_tensor & a, const ggml_tensor & b) {
    const auto * const a_data = static_cast<const std::byte *>(a.data);
    const auto * const b_data = static_cast<const std::byte *>(b.data);
    return a_data < b_data + ggml_nbytes(&b) && b_data < a_data + ggml_nbytes(&a);
}

void run_node(const ggml_tensor & node, Backend & state) {
    if (is_product(node)) {
        run_product(node, state.scratch, state.team);
    } else if (is_lookup(node)) {
        run_lookup(node, state.scratch, state.team);
    } else if (is_attention(node)) {
        run_attention(node, state.scratch, state.team);
    } else if (is_neighbour(node)) {
        run_neighbour(node, state.scratch, state.team);
    } else {
        throw BadGraph();
    }
    const ggml_tensor *& prepared = state.scratch.prepared;
    if (prepared != nullptr && overlap(node, *prepared)) {
        prepared = nullptr;
    }
}

ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    Backend & state = *static_cast<Backend *>(backend->context);
    try {
        if (state.team.n_threads() != state.n_threads) {
            state.team.resize(state.n_threads);
        }
        state.scratch.prepared = nullptr;
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            if (state.abort != nullptr && state.abort(state.abort_data)) {
                return GGML_STATUS_ABORTED;
            }
            const ggml_tensor & node = *ggml_graph_node(graph, i);
            if (!is_view(node.op) && !ggml_is_empty(&node)) {
                run_node(node, state);
            }
        }
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::exception &) {
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

const char * backend_name(ggml_backend_t /*backend*/) { return "DFlash"; }
void backend_free(ggml_backend_t backend) {
    delete static_cast<Backend *>(backend->context);
    delete backend;
}

// The team follows at the next graph: llama.cpp makes backends that it never runs.
void set_n_threads(ggml_backend_t backend, int n_threads) {
    static_cast<Backend *>(backend->context)->n_threads = std::max(n_threads, 1);
}

void set_abort_callback(ggml_backend_t backend, ggml_abort_callback abort, void * data) {
    Backend & state = *static_cast<Backend *>(backend->context);
    state.abort = abort;
    state.abort_data = data;
}

const char * device_name(ggml_backend_dev_t /*device*/) { return "DFlash"; }
const char * device_description(ggml_backend_dev_t /*device*/) { return "narrow batches on the CPU"; }
void device_memory(ggml_backend_dev_t /*device*/, std::size_t * free, std::size_t * total) { *free = *total = 0; }

// llama.cpp gives weights and a part in its contexts to accelerators that nobody named, not to a second CPU.
std::atomic<bool> hidden = false;
bool hide(bool is_hidden) { return hidden.exchange(is_hidden); }

enum ggml_backend_dev_type device_type(ggml_backend_dev_t /*device*/) {
    return hidden.load() ? GGML_BACKEND_DEVICE_TYPE_CPU : GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = device_name(device);
    props->description = device_description(device);
    props->type = device_type(device);
}

ggml_backend_t device_init(ggml_backend_dev_t device, const char * /*params*/) {
    static ggml_guid guid{0xd7, 0x1a, 0x5f, 0x02, 0x9e, 0x44, 0x4b, 0x1c,
                          0x8d, 0x33, 0x60, 0x7e, 0xaa, 0x05, 0xc1, 0x29};
    ggml_backend_i iface{};
    iface.get_name = backend_name;
    iface.free = backend_free;
    iface.graph_compute = graph_compute;
    try {
        auto backend = std::make_unique<ggml_backend>(ggml_backend{&guid, iface, device, nullptr});
        backend->context = new Backend;
        return backend.release();
    } catch (const std::exception &) {
        return nullptr;
    }
}

bool device_supports_op(ggml_backend_dev_t /*device*/, const ggml_tensor * op) {
    return is_view(op->op) || supports(*op);
}
bool device_supports_buft(ggml_backend_dev_t /*device*/, ggml_backend_buffer_type_t type) {
    return is_ours(type) || ggml_backend_buft_is_host(type);
}

ggml_backend_device & the_device();

const char * reg_name(ggml_backend_reg_t /*reg*/) { return "DFlash"; }
std::size_t reg_count(ggml_backend_reg_t /*reg*/) { return 1; }
ggml_backend_dev_t reg_device(ggml_backend_reg_t /*reg*/, std::size_t /*index*/) { return &the_device(); }
void * reg_proc(ggml_backend_reg_t /*reg*/, const char * name) {
    const std::string_view wanted = name;
    return wanted == "ggml_backend_set_n_threads"        ? reinterpret_cast<void *>(set_n_threads)
           : wanted == "ggml_backend_set_abort_callback" ? reinterpret_cast<void *>(set_abort_callback)
           : wanted == "dflash_cpu_hide"                 ? reinterpret_cast<void *>(hide)
                                                         : nullptr;
}

ggml_backend_reg & the_reg() {
    static ggml_backend_reg reg{backend_api_version, {reg_name, reg_count, reg_device, reg_proc}, nullptr};
    return reg;
}

ggml_backend_device & the_device() {
    static ggml_backend_device device{
        {device_name, device_description, device_memory, device_type, device_props, device_init, buffer_type, nullptr,
         nullptr, device_supports_op, device_supports_buft, nullptr, nullptr, nullptr, nullptr},
        &the_reg(),
        nullptr};
    return device;
}

}  // namespace

ggml_backend_reg_t registration() { return &the_reg(); }

}  // namespace dflash::cpu
