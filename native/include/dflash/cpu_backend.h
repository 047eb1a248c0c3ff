// The library of kernels for narrow batches on CPUs (native/cpu), as a device in libllama's registry.
#pragma once

#include <ggml-backend.h>

#include <string>

namespace dflash {

/// Name of its device.
constexpr const char * cpu_backend_name = "DFlash";

/// The device, null while the library is not loaded.
[[nodiscard]] ggml_backend_dev_t cpu_backend_device();

/// Loads the library once; false where it cannot be opened or has no kernels for this CPU.
bool load_cpu_backend(const std::string & path);

/// Hidden, it serves only models that were loaded onto it by name; else every model that this process loads puts its
/// CPU weights there. Returns what held before. Throws Error(unsupported) where a library of another version is loaded.
bool hide_cpu_backend(bool hidden);

}  // namespace dflash
