// Binds the drafter: construction from files and a loaded target, memory, and one proposal for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <ggml-backend.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dflash/drafter.h"
#include "dflash/error.h"
#include "dflash/gguf_reader.h"
#include "dflash/llama_bridge.h"
#include "memory_dict.h"

namespace nb = nanobind;

namespace dflash::bind {

namespace {

using Taps = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

ggml_backend_dev_t find_device(const std::string & name) {
    if (name.empty()) {
        return nullptr;  // the CPU
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
    if (device == nullptr) {
        std::string known;
        for (std::size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            known += (i > 0 ? ", " : "") + std::string(ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        throw Error(ErrorCode::invalid_argument, "no ggml device \"" + name + "\"; there are: " + known, "device");
    }
    return device;
}

void construct(Drafter * self, const std::filesystem::path & drafter_path, const std::filesystem::path & target_path,
               std::uintptr_t model, std::int32_t n_ctx, std::int32_t n_threads, std::int32_t top_k,
               const std::string & device) {
    if (model == 0) {
        throw Error(ErrorCode::invalid_argument, "model is 0, expected the address of a loaded llama_model", "model");
    }
    const auto * const target = reinterpret_cast<const llama_model *>(model);
    const DrafterParams params{.n_ctx = n_ctx,
                               .n_threads = n_threads,
                               .top_k = top_k,
                               .device = device == "auto" ? head_device(target) : find_device(device)};
    const nb::gil_scoped_release release;
    const GgufFile drafter_file = GgufFile::open(drafter_path);
    const GgufFile target_file = GgufFile::open(target_path);
    new (self) Drafter(drafter_file, target_file, target, params);
}

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<2>> to_numpy(std::vector<T> && values, std::int32_t n_rows, std::int32_t n_columns) {
    auto owned = std::make_unique<std::vector<T>>(std::move(values));
    T * const data = owned->data();
    const nb::capsule owner(owned.release(), [](void * p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return {data, {static_cast<std::size_t>(n_rows), static_cast<std::size_t>(n_columns)}, owner};
}

nb::tuple propose(Drafter & drafter, std::int32_t pos0, const Taps & taps, llama_token anchor, std::int32_t n_slots) {
    DraftCandidates out;
    {
        const std::span rows(taps.data(), taps.size());
        const nb::gil_scoped_release release;
        const std::unique_ptr<DraftContext> ctx = drafter.new_context();
        drafter.draft(*ctx, pos0, rows, anchor, out, n_slots);
    }
    return nb::make_tuple(to_numpy(std::move(out.ids), out.n_slots, out.top_k),
                          to_numpy(std::move(out.log_probs), out.n_slots, out.top_k));
}

nb::dict estimate_memory(const std::filesystem::path & drafter_path, const std::filesystem::path & target_path,
                         std::int32_t n_ctx, std::int32_t n_batch, const std::string & device, bool layers_on_device) {
    const DrafterParams params{.n_ctx = n_ctx, .device = find_device(device)};
    DraftMemory memory;
    {
        const nb::gil_scoped_release release;
        memory = Drafter::estimate(GgufFile::open(drafter_path), GgufFile::open(target_path), params, n_batch,
                                   layers_on_device);
    }
    return memory_dict(memory);
}

}  // namespace

void init_drafter(nb::module_ & m) {
    m.def(
        "head_device",
        [](std::uintptr_t model) {
            ggml_backend_dev_t const device =
                model == 0 ? nullptr : head_device(reinterpret_cast<const llama_model *>(model));
            return std::string(device == nullptr ? "" : ggml_backend_dev_name(device));
        },
        nb::arg("model"));
    nb::class_<Drafter>(m, "Drafter")
        .def("__init__", &construct, nb::arg("drafter_path"), nb::arg("target_path"), nb::arg("model"), nb::kw_only(),
             nb::arg("n_ctx") = 0, nb::arg("n_threads") = 1, nb::arg("top_k") = 8, nb::arg("device") = "")
        .def_prop_ro("block_size", [](const Drafter & drafter) { return drafter.spec().block_size; })
        .def_prop_ro("feature_size", &Drafter::feature_size)
        .def_prop_ro("name", [](const Drafter & drafter) { return drafter.spec().name; })
        .def_prop_ro("device", [](const Drafter & drafter) { return ggml_backend_dev_name(drafter.device()); })
        .def_prop_ro("acceptance_problem", [](const Drafter & drafter) { return drafter.spec().acceptance_problem; })
        .def("memory", [](const Drafter & drafter) { return memory_dict(drafter.memory()); })
        .def("propose", &propose, nb::arg("pos0"), nb::arg("taps"), nb::arg("anchor"), nb::kw_only(),
             nb::arg("n_slots") = all_slots);
    m.def("estimate_memory", &estimate_memory, nb::arg("drafter_path"), nb::arg("target_path"), nb::kw_only(),
          nb::arg("n_ctx") = 0, nb::arg("n_batch") = 512, nb::arg("device") = "", nb::arg("layers_on_device") = false);
}

}  // namespace dflash::bind
