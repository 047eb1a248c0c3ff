// CostTable as a Python dict, both ways.
#pragma once

#include <nanobind/nanobind.h>

#include "dflash/cost_model.h"

namespace dflash::bind {

[[nodiscard]] nanobind::dict cost_dict(const CostTable & table);
/// Throws Error(invalid_argument) naming the key that is missing or no number, and where CostModel refuses it.
[[nodiscard]] CostTable cost_table(const nanobind::dict & dict);

}  // namespace dflash::bind
