// Binds parts of the planner for tests and benchmarks: calibration, trees, the time of decisions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dflash/acceptance.h"
#include "dflash/draft_tree.h"
#include "dflash/error.h"
#include "dflash/planner_timing.h"
#include "engine_handle.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dflash::bind {

namespace {

using Ids = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

DraftCandidates candidates_of(const Ids & ids, const Floats & log_probs) {
    if (ids.shape(0) != log_probs.shape(0) || ids.shape(1) != log_probs.shape(1) || ids.shape(1) < 1) {
        throw Error(ErrorCode::invalid_argument, "ids and numbers of candidates differ in shape", "ids");
    }
    return {static_cast<std::int32_t>(ids.shape(0)),
            static_cast<std::int32_t>(ids.shape(1)),
            {ids.data(), ids.data() + ids.size()},
            {log_probs.data(), log_probs.data() + log_probs.size()}};
}

std::vector<float> probs_of(const DraftAcceptance & self, const Ids & ids, const Floats & log_probs) {
    std::vector<float> out;
    self.probs(candidates_of(ids, log_probs), out);
    return out;
}

void observe(DraftAcceptance & self, const Ids & ids, const Floats & log_probs, std::int32_t slot, llama_token token) {
    const DraftCandidates candidates = candidates_of(ids, log_probs);
    if (slot < 0 || slot >= candidates.n_slots) {
        throw Error(ErrorCode::invalid_argument, "there is no slot " + std::to_string(slot), "slot");
    }
    self.observe(candidates, slot, token);
}

std::pair<std::vector<llama_token>, std::vector<std::int32_t>> grow_tree(const Ids & ids, const Floats & probs,
                                                                         std::int32_t max_nodes,
                                                                         std::int32_t max_leaves) {
    if (max_nodes < 0 || max_leaves < 1) {
        throw Error(ErrorCode::invalid_argument, "expected max_nodes >= 0 and max_leaves >= 1");
    }
    const DraftCandidates candidates = candidates_of(ids, probs);
    TreeInputs inputs;
    inputs.candidates = &candidates;
    inputs.probs = candidates.log_probs;
    const DraftTree tree = DraftTree::grow(inputs, {max_nodes, std::min(max_leaves, max_tree_leaves), 0});
    std::pair<std::vector<llama_token>, std::vector<std::int32_t>> out;
    for (const DraftNode & node : tree.nodes()) {
        out.first.push_back(node.token);
        out.second.push_back(node.parent);
    }
    return out;
}

nb::dict planning_times(std::int32_t n_slots, std::int32_t top_k, std::int32_t max_leaves, std::int32_t chain,
                        std::int32_t n_rounds) {
    PlanningTimes times;
    {
        const nb::gil_scoped_release release;
        times = time_planning({n_slots, top_k, max_leaves, chain, n_rounds});
    }
    nb::dict out;
    out["choose_us"] = times.choose;
    out["plan_us"] = times.plan;
    out["observe_us"] = times.observe;
    return out;
}

}  // namespace

void init_planner(nb::module_ & m) {
    nb::class_<DraftAcceptance>(m, "DraftAcceptance")
        .def(nb::init<>())
        .def(
            "set_priors", [](DraftAcceptance & self, const std::vector<float> & values) { self.set_priors(values); },
            "values"_a)
        .def("priors", &DraftAcceptance::priors)
        .def("probs", &probs_of, "ids"_a, "log_probs"_a)
        .def("observe", &observe, "ids"_a, "log_probs"_a, "slot"_a, "token"_a);
    m.def("grow_tree", &grow_tree, "ids"_a, "probs"_a, nb::kw_only(), "max_nodes"_a, "max_leaves"_a = 1);
    m.def("time_planning", &planning_times, nb::kw_only(), "n_slots"_a = 7, "top_k"_a = 8, "max_leaves"_a = 1,
          "chain"_a = 0, "n_rounds"_a = 1000);
    nb::borrow<nb::class_<EngineHandle>>(nb::type<EngineHandle>()).def("acceptance", [](const EngineHandle & self) {
        return self.get().planner().acceptance().priors();
    });
}

}  // namespace dflash::bind
