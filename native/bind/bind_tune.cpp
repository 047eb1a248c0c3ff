// Binds what start-up asks about this process and this machine: attention timing, mapped libraries, GPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <ggml-backend.h>

#include <cstdint>
#include <string>

#include "dflash/attention_timing.h"
#include "dflash/mapped_libraries.h"

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

}  // namespace

void init_tune(nb::module_ & m) {
    m.def(
        "time_attention",
        [](std::int32_t n_head, std::int32_t n_head_kv, std::int32_t head_dim, std::int32_t n_kv, std::int32_t n_rows,
           bool flash, std::int32_t n_threads, double budget_ms) {
            const AttentionShape shape = {n_head, n_head_kv, head_dim, n_kv, n_rows, flash};
            return time_attention(shape, n_threads, budget_ms);
        },
        nb::arg("n_head"), nb::arg("n_head_kv"), nb::arg("head_dim"), nb::arg("n_kv"), nb::arg("n_rows"),
        nb::arg("flash"), nb::arg("n_threads"), nb::arg("budget_ms"), nb::call_guard<nb::gil_scoped_release>());
    m.def("mapped_libraries", &mapped_libraries);
    m.def("gpu_device", &gpu_device);
}

}  // namespace dflash::bind
