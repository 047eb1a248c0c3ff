// What ggml_backend_load looks for in the library.
#include "backend.h"
#include "kernels/kernels.h"

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    return dflash::cpu::registration();
}

// 0: not for this CPU.
extern "C" __attribute__((visibility("default"))) int ggml_backend_score() {
    return dflash::cpu::are_worth_loading() ? 1 : 0;
}
