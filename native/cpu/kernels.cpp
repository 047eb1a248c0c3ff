// Chooses the kernels for this CPU once; DFLASH_CPU_ISA names others for tests.
#include "kernels/kernels.h"

#include <cstdlib>
#include <string_view>

#if defined(DFLASH_HAS_X86)
#include <cpuid.h>
#elif defined(DFLASH_HAS_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(DFLASH_HAS_ARM) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace dflash::cpu {

namespace generic {
extern const Kernels table;
}
#if defined(DFLASH_HAS_X86)
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#if defined(DFLASH_HAS_AVXVNNI)
namespace avxvnni {
extern const Kernels table;
}
#endif
#endif
#if defined(DFLASH_HAS_ARM)
namespace dotprod {
extern const Kernels table;
}
namespace i8mm {
extern const Kernels table;
}
#endif

namespace {

#if defined(DFLASH_HAS_AVXVNNI)
// Not every compiler's __builtin_cpu_supports knows it: leaf 7, subleaf 1, EAX bit 4. Its state is that of AVX2.
bool has_avxvnni() {
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4U & 1U) != 0;
}
#endif

#if defined(DFLASH_HAS_ARM)
struct ArmFeatures {
    bool dotprod = false;
    bool i8mm = false;
};

#if defined(__APPLE__)
bool has(const char * feature) {
    int value = 0;
    std::size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
ArmFeatures arm_features() { return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")}; }
#elif defined(__linux__)
ArmFeatures arm_features() {
    // HWCAP_ASIMDDP and HWCAP2_I8MM, which older headers lack.
    return {(getauxval(AT_HWCAP) >> 20U & 1U) != 0, (getauxval(AT_HWCAP2) >> 13U & 1U) != 0};
}
#else
ArmFeatures arm_features() { return {}; }
#endif
#endif

std::string_view wanted() {
    const char * const named = std::getenv("DFLASH_CPU_ISA");
    return named != nullptr ? named : "";
}

/// Is it the one that is asked for, or nobody asks for one?
bool may_be(std::string_view name) { return wanted().empty() || wanted() == "best" || wanted() == name; }

const Kernels & best() {
#if defined(DFLASH_HAS_X86)
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512vnni");
    if (has_avx512 && may_be("avx512")) {
        return avx512::table;
    }
#if defined(DFLASH_HAS_AVXVNNI)
    if (has_avx2 && has_avxvnni() && may_be("avxvnni")) {
        return avxvnni::table;
    }
#endif
    if (has_avx2 && may_be("avx2")) {
        return avx2::table;
    }
#elif defined(DFLASH_HAS_ARM)
    const ArmFeatures has = arm_features();
    if (has.dotprod && has.i8mm && may_be("i8mm")) {
        return i8mm::table;
    }
    if (has.dotprod && may_be("dotprod")) {
        return dotprod::table;
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
