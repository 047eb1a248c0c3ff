// The table of the instruction set that this file is compiled for.
#include "kernel_parts.h"

#define DFLASH_TEXT_OF(name) #name
#define DFLASH_TEXT(name) DFLASH_TEXT_OF(name)

namespace dflash::cpu::DFLASH_ISA {

extern const Kernels table;
const Kernels table{DFLASH_TEXT(DFLASH_ISA), quantize, multiply, attend, rms_norm, silu_mul, gelu_mul, to_half};

}  // namespace dflash::cpu::DFLASH_ISA
