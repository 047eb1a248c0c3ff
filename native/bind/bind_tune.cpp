// Binds what is asked about this process and this machine: timings of single operations, mapped libraries, devices.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <ggml-backend.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dflash/attention_timing.h"
#include "dflash/cpu_backend.h"
#include "dflash/mapped_libraries.h"
#include "dflash/matmul_timing.h"
#include "dflash/text.h"

namespace nb = nanobind;

namespace dflash::bind {

namespace {

// In libllama's own registry: llama_cpp opens libggml by path, which can be another copy with a registry of its own.
std::string gpu_device() {
    for (const auto type : {GGML_BACKEND_DEVICE_TYPE_GPU, GGML_BACKEND_DEVICE_TYPE_IGPU}) {
        if (ggml_backend_dev_t device = ggml_backend_dev_by_type(type)) {
            return ggml_backend_dev_name(device);
        }
    }
    return {};
}

nb::tuple time_matmul_of(const std::string & type, std::int64_t n_in, std::int64_t n_out, std::int32_t n_rows,
                         std::int32_t n_threads, double budget_ms, bool ours) {
    MatmulShape shape{.type = GGML_TYPE_COUNT, .n_in = n_in, .n_out = n_out, .n_rows = n_rows, .ours = ours};
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * const name = ggml_type_name(static_cast<ggml_type>(i));
        if (name != nullptr && type == name) {
            shape.type = static_cast<ggml_type>(i);
        }
    }
    MatmulTime time;
    {
        const nb::gil_scoped_release release;
        time = time_matmul(shape, n_threads, budget_ms);
    }
    return nb::make_tuple(time.ms, time.repacked);
}

const char * type_name(ggml_backend_dev_t device) {
    switch (ggml_backend_dev_type(device)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return "cpu";
        case GGML_BACKEND_DEVICE_TYPE_GPU: return "gpu";
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return "igpu";
        default: return "accelerator";
    }
}

nb::list devices() {
    nb::list out;
    for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const ggml_backend_dev_t device = ggml_backend_dev_get(i);
        std::size_t free = 0;
        std::size_t total = 0;
        ggml_backend_dev_memory(device, &free, &total);
        nb::dict entry;
        entry["name"] = ggml_backend_dev_name(device);
        entry["description"] = printable(ggml_backend_dev_description(device));
        entry["type"] = type_name(device);
        entry["memory"] = total;
        out.append(entry);
    }
    return out;
}

}  // namespace

void init_tune(nb::module_ & m) {
    m.def(
        "time_attention",
        [](std::int32_t n_head, std::int32_t n_head_kv, std::int32_t head_dim, std::int32_t n_kv, std::int32_t n_rows,
           bool flash, std::int32_t n_threads, double budget_ms, bool ours) {
            const AttentionShape shape = {n_head, n_head_kv, head_dim, n_kv, n_rows, flash};
            return time_attention(shape, n_threads, budget_ms, ours ? cpu_backend_device() : nullptr);
        },
        nb::arg("n_head"), nb::arg("n_head_kv"), nb::arg("head_dim"), nb::arg("n_kv"), nb::arg("n_rows"),
        nb::arg("flash"), nb::arg("n_threads"), nb::arg("budget_ms"), nb::arg("ours") = false,
        nb::call_guard<nb::gil_scoped_release>());
    m.def("time_matmul", &time_matmul_of, nb::arg("type"), nb::arg("n_in"), nb::arg("n_out"), nb::arg("n_rows"),
          nb::arg("n_threads"), nb::arg("budget_ms"), nb::arg("ours") = false);
    m.def("mapped_libraries", &mapped_libraries);
    m.def("gpu_device", &gpu_device);
    m.def("load_cpu_backend", &load_cpu_backend, nb::arg("path"));
    m.def("hide_cpu_backend", &hide_cpu_backend, nb::arg("hidden"));
    m.def("cpu_backend_device", [] { return reinterpret_cast<std::uintptr_t>(cpu_backend_device()); });
    m.def("devices", &devices);
}

}  // namespace dflash::bind
