// Refuses to start the module in a process that holds a libllama other than the one of llama_cpp.
#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "dflash/mapped_libraries.h"

namespace nb = nanobind;

namespace dflash::bind {

void require_one_libllama() {
    const auto modules = nb::cast<nb::dict>(nb::module_::import_("sys").attr("modules"));
    if (!modules.contains("llama_cpp")) {
        throw nb::import_error(
            "dflash_local._native was loaded before llama_cpp, which would then map a second libllama: in a fresh "
            "process import llama_cpp first (importing through the package dflash_local does so)");
    }
    const std::vector<std::string> paths = mapped_libraries();
    if (paths.size() <= 1) {
        return;
    }
    std::string message = "this process has mapped " + std::to_string(paths.size()) + " copies of libllama:";
    for (const std::string & path : paths) {
        message += ' ' + path + ',';
    }
    message += " expected one: in a fresh process import llama_cpp first, and no other package that brings a libllama";
    throw nb::import_error(message.c_str());
}

}  // namespace dflash::bind
