// Binds what start-up asks about this process and this machine: attention timing and mapped libraries.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>

#include "dflash/attention_timing.h"
#include "dflash/mapped_libraries.h"

namespace nb = nanobind;

namespace dflash::bind {

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
}

}  // namespace dflash::bind
