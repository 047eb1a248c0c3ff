// Binds what proposes tokens without a drafter, copies and grammars looked ahead, for tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "dflash/copy_index.h"
#include "dflash/error.h"
#include "dflash/grammar_ahead.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace dflash::bind {

namespace {

using Tokens = std::vector<llama_token>;

std::tuple<Tokens, std::int32_t, std::int32_t, std::int32_t> propose(CopyIndex & self, std::int32_t n) {
    CopyProposal proposal = self.propose(n);
    return {std::move(proposal.tokens), proposal.match_length, proposal.n_sources, proposal.n_agreeing};
}

void open_grammar(GrammarAhead * self, std::uintptr_t sampler, std::uintptr_t vocab, double patience_ms) {
    // NOLINTBEGIN(performance-no-int-to-ptr): addresses cross from ctypes
    const auto * chain = reinterpret_cast<const llama_sampler *>(sampler);
    const auto * words = reinterpret_cast<const llama_vocab *>(vocab);
    // NOLINTEND(performance-no-int-to-ptr)
    std::shared_ptr<const VocabBytes> bytes;
    auto grammar = GrammarAhead::of(chain, words, bytes);
    if (!grammar) {
        throw Error(ErrorCode::invalid_argument, "the sampler holds no grammar", "sampler");
    }
    grammar->set_patience(std::chrono::microseconds(static_cast<std::int64_t>(patience_ms * 1000.0)));
    new (self) GrammarAhead(std::move(*grammar));
}

std::vector<bool> allowed(const GrammarAhead & self, const Tokens & tokens) {
    const auto out = std::make_unique<bool[]>(tokens.size());
    self.allowed(tokens, {out.get(), tokens.size()});
    return std::vector<bool>(out.get(), out.get() + tokens.size());
}

}  // namespace

void init_ahead(nb::module_ & m) {
    nb::class_<CopyIndex>(m, "CopyIndex")
        .def(nb::init<>())
        .def(
            "sync", [](CopyIndex & self, const Tokens & tokens) { self.sync(tokens); }, "tokens"_a)
        .def(
            "add_past", [](CopyIndex & self, const Tokens & tokens) { self.add_past(tokens); }, "tokens"_a)
        .def("propose", &propose, "n"_a);
    nb::class_<GrammarAhead>(m, "GrammarAhead")
        .def("__init__", &open_grammar, "sampler"_a, "vocab"_a, nb::kw_only(), "patience_ms"_a = 3.0)
        .def("allowed", &allowed, "tokens"_a)
        .def("accept", &GrammarAhead::accept, "token"_a)
        .def("rewind", &GrammarAhead::rewind)
        .def(
            "forced",
            [](GrammarAhead & self, std::int32_t n, const Tokens & written) { return self.forced(n, written); }, "n"_a,
            "written"_a = Tokens());
}

}  // namespace dflash::bind
