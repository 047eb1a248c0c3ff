// Finds the library's device and its switch through ggml's registry.
#include "dflash/cpu_backend.h"

#include <ggml.h>

#include <mutex>

#include "dflash/error.h"

namespace dflash {

ggml_backend_dev_t cpu_backend_device() { return ggml_backend_dev_by_name(cpu_backend_name); }

bool load_cpu_backend(const std::string & path) {
    static std::mutex mutex;
    const std::scoped_lock lock(mutex);
    return cpu_backend_device() != nullptr || ggml_backend_load(path.c_str()) != nullptr;
}

bool hide_cpu_backend(bool hidden) {
    ggml_backend_dev_t const device = cpu_backend_device();
    if (device == nullptr) {
        return true;
    }
    void * const hide = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "dflash_cpu_hide");
    if (hide == nullptr) {
        throw Error(ErrorCode::unsupported,
                    "the loaded library of CPU kernels is of another version: restart the process");
    }
    return reinterpret_cast<bool (*)(bool)>(hide)(hidden);
}

}  // namespace dflash
