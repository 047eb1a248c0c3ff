// Chooses the kernels for this CPU once; DFLASH_CPU_ISA names others for tests.
#include "kernels/kernels.h"

#include <cstdlib>
#include <string_view>

namespace dflash::cpu {

namespace generic {
extern const Kernels table;
}
#if defined(DFLASH_HAS_AVX512)
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

std::string_view wanted() {
    const char * const named = std::getenv("DFLASH_CPU_ISA");
    return named != nullptr ? named : "";
}

const Kernels & best() {
#if defined(DFLASH_HAS_AVX512)
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    if (has_avx512 && wanted() != "generic") {
        return avx512::table;
    }
#endif
    return generic::table;
}

}  // namespace

const Kernels & kernels() {
    static const Kernels & chosen = best();
    return chosen;
}

bool are_worth_loading() { return &kernels() != &generic::table || wanted() == "generic"; }

}  // namespace dflash::cpu
