// Binds dflash::Engine; every long call runs without the GIL and still notices Ctrl-C.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dflash/engine.h"
#include "engine_handle.h"
#include "memory_dict.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dflash::bind {

namespace {

template <typename T, std::size_t N>
nb::ndarray<nb::numpy, T, nb::ndim<N>> copy_array(std::span<const T> values, const std::array<std::size_t, N> & shape) {
    auto owner = std::make_unique<T[]>(std::max<std::size_t>(1, values.size()));
    std::ranges::copy(values, owner.get());
    T * data = owner.release();
    const nb::capsule capsule(data, [](void * p) noexcept { delete[] static_cast<T *>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<N>>(data, N, shape.data(), capsule);
}

template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> copy_array(std::span<const T> values) {
    return copy_array<T, 1>(values, {values.size()});
}

llama_sampler * sampler_of(std::uintptr_t address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the sampler chain was made through ctypes
    return reinterpret_cast<llama_sampler *>(address);
}

std::vector<llama_token> run_round(EngineHandle & handle, std::uintptr_t sampler, std::int32_t draft_rows,
                                   std::int32_t draft_leaves, std::int64_t max_emit, bool all_logits,
                                   const std::optional<nb::callable> & on_sample) {
    RoundOptions options;
    options.draft_rows = draft_rows;
    options.draft_leaves = draft_leaves;
    options.max_emit = static_cast<std::int32_t>(std::clamp<std::int64_t>(max_emit, 0, INT32_MAX));
    options.all_logits = all_logits;
    if (on_sample) {
        options.on_sample = [&] {
            const nb::gil_scoped_acquire acquire;
            (*on_sample)();
        };
    }
    return handle.without_gil([&] { return handle.get().round(sampler_of(sampler), options); });
}

nb::dict stats_dict(const Engine & engine) {
    const RunStats stats = engine.session().stats();
    nb::dict out;
    out["prompt_n"] = stats.prompt_n;
    out["reused_n"] = stats.reused_n;
    out["prompt_ms"] = stats.prompt_ms;
    out["predicted_n"] = stats.predicted_n;
    out["predicted_ms"] = stats.predicted_ms;
    out["draft_rounds"] = stats.draft_rounds;
    out["plain_rounds"] = stats.plain_rounds;
    out["draft_n"] = stats.draft_n;
    out["draft_n_accepted"] = stats.draft_n_accepted;
    out["copy_rounds"] = stats.copy_rounds;
    out["copy_n_accepted"] = stats.copy_n_accepted;
    out["accepted_per_slot"] = stats.accepted_per_slot;
    const CostModel & costs = engine.planner().costs();
    out["plain_estimate_ms"] = costs.target_ms(1, engine.session().n_decoded()) + costs.rest_ms(1);
    out["plain_round_ms"] = stats.plain_round_ms;
    out["draft_round_ms"] = stats.draft_round_ms;
    out["target_ms"] = stats.sums.target;
    out["draft_ms"] = stats.sums.draft;
    out["sample_ms"] = stats.sums.sample;
    out["other_ms"] = stats.sums.total - stats.sums.target - stats.sums.draft - stats.sums.sample;
    const auto & context = engine.session().draft_context;
    out["draft_context"] = context ? context->end() - context->begin() : 0;
    out["declined"] = engine.declined();
    return out;
}

nb::list round_list(const Engine & engine) {
    nb::list out;
    for (const DecodeRecord & record : engine.session().records()) {
        if (record.current_run && record.n_emitted > 0) {
            out.append(nb::make_tuple(record.kind == RoundKind::draft ? record.n_rows : 1, record.n_emitted));
        }
    }
    return out;
}

nb::list drafted_list(const Engine & engine) {
    static constexpr std::array names{"plain", "copy", "grammar", "drafter"};
    nb::list out;
    for (const RoundReport & round : engine.session().rounds()) {
        out.append(nb::make_tuple(names.at(static_cast<std::size_t>(round.source)), round.nodes));
    }
    return out;
}

nb::dict replay_dict(EngineHandle & handle, std::uintptr_t sampler) {
    const ReplayResult result = handle.without_gil([&] { return handle.get().replay(sampler_of(sampler)); });
    nb::dict out;
    out["tokens"] = result.tokens;
    out["exact"] = result.exact;
    out["first_mismatch"] = result.first_mismatch;
    return out;
}

std::string tap_mode_name(const EngineHandle & handle) {
    if (!handle.get().has_drafter()) {
        return {};
    }
    return handle.get().target().tap_mode() == TapMode::layer_input ? "layer_input" : "callback";
}

}  // namespace

void init_engine(nb::module_ & m) {
    nb::class_<EngineHandle>(m, "Engine")
        .def(nb::init<std::uintptr_t, std::uintptr_t, std::shared_ptr<Drafter>, const std::string &, bool>(), "model"_a,
             "context_params"_a, "drafter"_a = nb::none(), nb::kw_only(), "tap_mode"_a = "auto", "copies"_a = true)
        .def_prop_ro("ctx",
                     [](const EngineHandle & self) {
                         return self.closed() ? std::uintptr_t{0}
                                              : reinterpret_cast<std::uintptr_t>(self.get().target().get());
                     })
        .def_prop_ro("n_ctx", [](const EngineHandle & self) { return self.get().target().n_ctx(); })
        .def_prop_ro("n_batch", [](const EngineHandle & self) { return self.get().target().n_chunk(); })
        .def_prop_ro("max_leaves", [](const EngineHandle & self) { return self.get().target().max_leaves(); })
        .def_prop_ro("tap_mode", &tap_mode_name)
        .def("close", &EngineHandle::close)
        .def("refuse_if_busy", &EngineHandle::refuse_if_busy)
        .def_prop_ro(
            "tokens", [](const EngineHandle & self) { return copy_array<llama_token>(self.get().session().tokens()); },
            nb::rv_policy::move)
        .def_prop_ro("n_tokens", [](const EngineHandle & self) { return self.get().session().n_tokens(); })
        .def_prop_ro("n_decoded", [](const EngineHandle & self) { return self.get().n_decoded(); })
        .def(
            "begin",
            [](EngineHandle & self, const std::vector<llama_token> & prompt, bool reuse) {
                return self.exclusive([&] { return self.get().begin(prompt, reuse); });
            },
            "prompt"_a, "reuse"_a = true)
        .def("prefill", [](EngineHandle & self) { return self.without_gil([&] { return self.get().prefill(); }); })
        .def("round", &run_round, "sampler"_a, nb::kw_only(), "draft_rows"_a = draft_auto, "draft_leaves"_a = 1,
             "max_emit"_a = 1 << 30, "all_logits"_a = false, "on_sample"_a = nb::none())
        .def(
            "truncate", [](EngineHandle & self, std::int32_t n) { self.exclusive([&] { self.get().truncate(n); }); },
            "n"_a)
        .def(
            "append",
            [](EngineHandle & self, const std::vector<llama_token> & tokens) {
                self.exclusive([&] { self.get().append(tokens); });
            },
            "tokens"_a)
        .def(
            "add_past",
            [](EngineHandle & self, const std::vector<llama_token> & tokens) {
                self.exclusive([&] { self.get().add_past(tokens); });
            },
            "tokens"_a)
        .def("reset", [](EngineHandle & self) { self.exclusive([&] { self.get().reset(); }); })
        .def("cancel", [](EngineHandle & self) { self.get().target().cancel(); })
        .def(
            "logits", [](EngineHandle & self, std::int32_t row) { return copy_array<float>(self.get().logits(row)); },
            "row"_a)
        .def(
            "sample",
            [](EngineHandle & self, std::uintptr_t sampler, std::int32_t row) {
                return self.without_gil([&] { return self.get().sample(sampler_of(sampler), row); });
            },
            "sampler"_a, "row"_a = -1)
        .def("taps",
             [](const EngineHandle & self) {
                 const TargetContext & target = self.get().target();
                 const auto columns = static_cast<std::size_t>(target.feature_size());
                 const std::size_t n_rows = columns > 0 ? target.taps().size() / columns : 0;
                 return copy_array<float, 2>(target.taps(), {n_rows, columns});
             })
        .def(
            "eval",
            [](EngineHandle & self, const std::vector<llama_token> & tokens, bool all_logits) {
                self.without_gil([&] { self.get().eval(tokens, all_logits); });
            },
            "tokens"_a, "all_logits"_a = false)
        .def("stats", [](const EngineHandle & self) { return stats_dict(self.get()); })
        .def("rounds", [](const EngineHandle & self) { return round_list(self.get()); })
        .def("drafted", [](const EngineHandle & self) { return drafted_list(self.get()); })
        .def("replay", &replay_dict, "sampler"_a)
        .def("save",
             [](EngineHandle & self) {
                 const std::vector<std::byte> state = self.exclusive([&] { return self.get().save(); });
                 return nb::bytes(reinterpret_cast<const char *>(state.data()), state.size());
             })
        .def(
            "restore",
            [](EngineHandle & self, const nb::bytes & state) {
                self.exclusive(
                    [&] { self.get().restore({reinterpret_cast<const std::byte *>(state.c_str()), state.size()}); });
            },
            "state"_a)
        .def("draft_memory", [](const EngineHandle & self) { return memory_dict(self.get().draft_memory()); });
}

}  // namespace dflash::bind
