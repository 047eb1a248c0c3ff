// The tensors that a DFlash v1 drafter must, may and must not have.
#pragma once

#include "dflash/pair_spec.h"
#include "gguf_fields.h"

namespace dflash {

/// Checks presence, shape and type of every tensor and the values of d2t; fills what the spec takes from tensors.
void check_drafter_tensors(const GgufFile & file, const GgufFields & fields, DrafterSpec & spec);

}  // namespace dflash
