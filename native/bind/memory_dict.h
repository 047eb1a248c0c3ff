// DraftMemory as a Python dict.
#pragma once

#include <nanobind/nanobind.h>

#include "dflash/drafter.h"

namespace dflash::bind {

inline nanobind::dict memory_dict(const DraftMemory & memory) {
    nanobind::dict dict;
    dict["weights"] = memory.weights;
    dict["context"] = memory.context;
    dict["compute"] = memory.compute;
    dict["taps"] = memory.taps;
    dict["total"] = memory.total();
    return dict;
}

}  // namespace dflash::bind
