// What GGUF files say of themselves, and whether two of them make a pair.
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dflash/error.h"
#include "dflash/gguf_reader.h"
#include "dflash/pair_spec.h"
#include "dflash/text.h"

namespace nb = nanobind;

namespace dflash::bind {

namespace {

/// Everything that inspect tells, gathered without the GIL.
struct Inspection {
    std::string path;
    std::uint64_t size = 0;
    std::string architecture;
    std::string name;
    std::size_t n_tensors = 0;
    std::map<std::string, std::uint64_t> tensor_types;
    std::map<std::string, std::uint64_t> tensor_bytes;
    std::string kind;
    std::string family;
    std::string problem;
    std::string problem_field;
    std::optional<TargetSpec> target;
    std::optional<DrafterSpec> drafter;
    std::optional<bool> thinks;
};

Inspection inspect_file(const std::filesystem::path & path) {
    const GgufFile file = GgufFile::open(path);
    Inspection out;
    out.path = printable_path(file.path());
    out.size = file.file_bytes();
    out.architecture = printable(file.architecture());
    out.n_tensors = file.tensors().size();
    for (const GgufTensor & tensor : file.tensors()) {
        ++out.tensor_types[ggml_type_name(tensor.type)];
        out.tensor_bytes[ggml_type_name(tensor.type)] += tensor.n_bytes;
    }
    out.kind = file.architecture().starts_with("dflash") ? "drafter" : "target";
    out.family = drafter_family(file);
    try {
        out.name = printable(file.find_string("general.name").value_or(""));
        if (out.kind == "drafter") {
            out.drafter = DrafterSpec::read(file);
            out.thinks = file.find_bool("dflash_local.thinking");
        } else {
            out.target = TargetSpec::read(file);
        }
    } catch (const Error & error) {
        if (error.field() == "general.architecture" && out.kind == "target") {
            out.kind = "other";
        }
        out.problem = error.what();
        out.problem_field = error.field();
    }
    return out;
}

nb::dict to_dict(const Inspection & in) {
    nb::dict out;
    out["path"] = in.path;
    out["size"] = in.size;
    out["kind"] = in.kind;
    out["architecture"] = in.architecture;
    out["name"] = in.name;
    out["n_tensors"] = in.n_tensors;
    out["tensor_types"] = in.tensor_types;
    out["tensor_bytes"] = in.tensor_bytes;
    out["problem"] = in.problem;
    out["problem_field"] = in.problem_field;
    const auto set = [&](const char * key, std::optional<std::int32_t> value) {
        out[key] = value ? nb::object(nb::int_(*value)) : nb::none();
    };
    const auto & drafter = in.drafter;
    const auto & target = in.target;
    const auto either = [&](auto of_drafter, auto of_target) -> std::optional<std::int32_t> {
        return drafter  ? std::optional(*drafter.*of_drafter)
               : target ? std::optional(*target.*of_target)
                        : std::nullopt;
    };
    set("n_layer", either(&DrafterSpec::n_layer, &TargetSpec::n_layer));
    set("n_embd", either(&DrafterSpec::n_embd, &TargetSpec::n_embd));
    set("n_vocab", either(&DrafterSpec::n_vocab, &TargetSpec::n_vocab));
    if (in.kind != "drafter") {
        set("n_ctx_train", target ? std::optional(target->n_ctx_train) : std::nullopt);
        return out;
    }
    out["family"] = in.family;
    set("block_size", drafter ? std::optional(drafter->block_size) : std::nullopt);
    set("mask_token_id", drafter ? std::optional(drafter->mask_token_id) : std::nullopt);
    set("sliding_window", drafter ? std::optional(drafter->sliding_window) : std::nullopt);
    nb::list layer_causal;
    if (drafter) {
        for (std::int32_t layer = 0; layer < drafter->n_layer; ++layer) {
            layer_causal.append(drafter->layer_causal(layer));
        }
    }
    out["tap_inputs"] = drafter ? drafter->tap_inputs : std::vector<std::int32_t>();
    out["layer_causal"] = layer_causal;
    out["layer_sliding"] = drafter ? drafter->layer_sliding : std::vector<bool>();
    out["thinks"] = in.thinks ? nb::object(nb::bool_(*in.thinks)) : nb::none();
    const bool has_priors = drafter && !drafter->acceptance.empty();
    set("acceptance_slots",
        has_priors ? std::optional(static_cast<std::int32_t>(drafter->acceptance[1])) : std::nullopt);
    out["acceptance_problem"] = drafter ? drafter->acceptance_problem : std::string();
    out["own_head"] = drafter && drafter->has_own_head;
    out["own_embeddings"] = drafter && drafter->has_own_embd;
    out["n_vocab_head"] = drafter ? drafter->n_vocab_head : 0;
    return out;
}

nb::dict inspect(const std::filesystem::path & path) {
    Inspection inspection;
    {
        const nb::gil_scoped_release release;
        inspection = inspect_file(path);
    }
    return to_dict(inspection);
}

nb::list check_pair_files(const std::filesystem::path & drafter_path, const std::filesystem::path & target_path) {
    std::vector<PairMismatch> mismatches;
    {
        const nb::gil_scoped_release release;
        const GgufFile drafter = GgufFile::open(drafter_path);
        const GgufFile target = GgufFile::open(target_path);
        const auto [drafter_spec, target_spec] = read_pair(drafter, target);
        mismatches = check_pair(drafter_spec, target_spec);
    }
    nb::list out;
    for (const PairMismatch & mismatch : mismatches) {
        nb::dict entry;
        entry["field"] = mismatch.field;
        entry["drafter_value"] = mismatch.drafter_value;
        entry["target_value"] = mismatch.target_value;
        entry["advice"] = mismatch.advice;
        out.append(entry);
    }
    return out;
}

}  // namespace

void init_gguf(nb::module_ & m) {
    m.def("inspect", &inspect, nb::arg("path"));
    m.def("check_pair", &check_pair_files, nb::arg("drafter_path"), nb::arg("target_path"));
}

}  // namespace dflash::bind
