// Asks the ggml registry about one device: backend, buffer types, supported multiplications.
#include "dflash/draft_device.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "dflash/cpu_backend.h"
#include "dflash/error.h"

namespace dflash {

namespace {

ggml_backend_dev_t resolve(ggml_backend_dev_t device) {
    if (device != nullptr) {
        return device;
    }
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (cpu == nullptr) {
        throw Error(ErrorCode::unsupported,
                    "ggml has no CPU device: llama-cpp-python must be built with its CPU backend");
    }
    return cpu;
}

template <typename Function>
Function proc_address(ggml_backend_dev_t device, const char * name) {
    return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

ggml_backend_ptr start(ggml_backend_dev_t device) {
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (backend == nullptr) {
        throw Error(ErrorCode::unsupported,
                    std::string("no backend starts on device ") + ggml_backend_dev_name(device));
    }
    return backend;
}

void set_threads(ggml_backend_t backend, std::int32_t n_threads) {
    const auto setter =
        proc_address<ggml_backend_set_n_threads_t>(ggml_backend_get_device(backend), "ggml_backend_set_n_threads");
    if (setter != nullptr) {
        setter(backend, n_threads);
    }
}

std::vector<ggml_backend_buffer_type_t> candidate_types(ggml_backend_dev_t device) {
    std::vector<ggml_backend_buffer_type_t> types;
    const auto extra = proc_address<ggml_backend_dev_get_extra_bufts_t>(device, "ggml_backend_dev_get_extra_bufts");
    if (extra != nullptr) {
        for (ggml_backend_buffer_type_t * type = extra(device); type != nullptr && *type != nullptr; ++type) {
            types.push_back(*type);
        }
    }
    types.push_back(ggml_backend_dev_buffer_type(device));
    return types;
}

bool supports_mul_mat(ggml_backend_dev_t device, ggml_tensor * weight) {
    const ggml_context_ptr ctx(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * const input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, weight->ne[0], 8);
    return ggml_backend_dev_supports_op(device, ggml_mul_mat(ctx.get(), weight, input));
}

}  // namespace

bool is_weight_type(ggml_type type) {
    const bool is_float = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
    return is_float || (ggml_is_quantized(type) && ggml_get_type_traits(type)->to_float != nullptr);
}

DraftDevice::DraftDevice(ggml_backend_dev_t device) : device_(resolve(device)), backend_(start(device_)) {
    if (device_ == cpu_backend_device()) {
        cpu_ = start(resolve(nullptr));
    }
}

bool DraftDevice::is_cpu() const {
    return cpu_ != nullptr || ggml_backend_dev_type(device_) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

std::vector<ggml_backend_dev_t> DraftDevice::devices() const {
    return cpu_ == nullptr ? std::vector{device_} : std::vector{device_, ggml_backend_get_device(cpu_.get())};
}

bool DraftDevice::supports(const ggml_tensor * node) const {
    const std::vector<ggml_backend_dev_t> all = devices();
    return std::ranges::any_of(all,
                               [&](ggml_backend_dev_t device) { return ggml_backend_dev_supports_op(device, node); });
}

GraphRuns DraftDevice::split(ggml_cgraph * graph) const {
    if (cpu_ == nullptr) {
        return {nullptr, {{backend_.get(), graph}}};
    }
    struct Stretch {
        ggml_backend_t backend;
        int first;
        int last;
    };
    std::vector<Stretch> stretches;
    const int n_nodes = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n_nodes; ++i) {
        const bool on_device = ggml_backend_dev_supports_op(device_, ggml_graph_node(graph, i));
        ggml_backend_t const backend = on_device ? backend_.get() : cpu_.get();
        if (stretches.empty() || stretches.back().backend != backend) {
            stretches.push_back({backend, i, i});
        }
        stretches.back().last = i + 1;
    }
    std::size_t bytes = 0;
    for (const Stretch & stretch : stretches) {
        bytes += ggml_graph_overhead_custom(static_cast<std::size_t>(stretch.last - stretch.first), false);
    }
    GraphRuns out{ggml_context_ptr(ggml_init({bytes, nullptr, true})), {}};
    for (const Stretch & stretch : stretches) {
        ggml_cgraph * const part =
            ggml_new_graph_custom(out.ctx.get(), static_cast<std::size_t>(stretch.last - stretch.first), false);
        for (int i = stretch.first; i < stretch.last; ++i) {
            ggml_graph_add_node(part, ggml_graph_node(graph, i));
        }
        out.runs.push_back({stretch.backend, part});
    }
    return out;
}

ggml_status DraftDevice::compute(const GraphRuns & runs) {
    for (const GraphRuns::Run & run : runs.runs) {
        const ggml_status status = ggml_backend_graph_compute(run.backend, run.graph);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
    }
    return GGML_STATUS_SUCCESS;
}

void DraftDevice::require(ggml_cgraph * graph) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * const node = ggml_graph_node(graph, i);
        if (!supports(node)) {
            throw Error(ErrorCode::unsupported,
                        std::string(ggml_backend_dev_name(device_)) + " does not support the operation " +
                            ggml_op_desc(node) + " of the draft graph: run the drafter on the CPU",
                        "device");
        }
    }
}

bool DraftDevice::keeps_graphs() const {
    const std::string_view name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(device_));
    return name != "SYCL" && name != "OpenCL";
}

ggml_backend_buffer_type_t DraftDevice::buffer_type() const { return ggml_backend_dev_buffer_type(device_); }

void DraftDevice::set_n_threads(std::int32_t n_threads) {
    set_threads(backend_.get(), n_threads);
    if (cpu_ != nullptr) {
        set_threads(cpu_.get(), n_threads);
    }
}

ggml_backend_buffer_type_t DraftDevice::weight_buffer_type(ggml_type type, std::int64_t ne0, std::int64_t ne1) const {
    if (!is_weight_type(type)) {
        return nullptr;
    }
    const ggml_context_ptr ctx(ggml_init({ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * const weight = ggml_new_tensor_2d(ctx.get(), type, ne0, ne1);
    ggml_set_name(weight, "probe.weight");  // our CPU kernels tell weights by their names
    for (ggml_backend_dev_t device : devices()) {
        for (ggml_backend_buffer_type_t candidate : candidate_types(device)) {
            const ggml_backend_buffer_ptr empty(ggml_backend_buft_alloc_buffer(candidate, 0));
            weight->buffer = empty.get();
            if (supports_mul_mat(device, weight)) {
                return candidate;
            }
        }
    }
    return nullptr;
}

bool DraftDevice::can_multiply(const ggml_tensor * weight) const {
    const std::vector<ggml_backend_dev_t> all = devices();
    return weight->buffer != nullptr && is_weight_type(weight->type) &&
           std::ranges::any_of(all, [&](ggml_backend_dev_t device) {
               return ggml_backend_dev_supports_buft(device, ggml_backend_buffer_get_type(weight->buffer)) &&
                      supports_mul_mat(device, const_cast<ggml_tensor *>(weight));
           });
}

}  // namespace dflash
