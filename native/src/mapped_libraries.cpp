// Asks the platform's loader for the mapped files of libllama.
#include "dflash/mapped_libraries.h"

#if defined(_WIN32)
#include <windows.h>

#include <psapi.h>
#elif defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <fstream>
#include <set>
#include <sstream>
#endif

#include <algorithm>
#include <string_view>

#include "dflash/error.h"

namespace dflash {

namespace {

/// libllama.so, libllama.so.0, libllama.0.dylib, llama.dll, but not libllama-common.so.
bool is_libllama(std::string_view path) {
    const std::size_t slash = path.find_last_of("/\\");
    std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (name.starts_with("lib")) {
        name.remove_prefix(3);
    }
    return name.starts_with("llama.");
}

}  // namespace

#if defined(_WIN32)

std::vector<std::string> mapped_libraries() {
    std::vector<HMODULE> modules(256);
    DWORD needed = 0;
    for (;;) {
        const auto capacity = static_cast<DWORD>(modules.size() * sizeof(HMODULE));
        if (EnumProcessModules(GetCurrentProcess(), modules.data(), capacity, &needed) == 0) {
            throw Error(ErrorCode::unsupported, "mapped_libraries: the modules of this process cannot be listed");
        }
        if (needed <= capacity) {
            break;
        }
        modules.resize(needed / sizeof(HMODULE));
    }
    modules.resize(needed / sizeof(HMODULE));
    std::vector<std::string> paths;
    for (const HMODULE module : modules) {
        std::string path(32768, '\0');
        path.resize(GetModuleFileNameA(module, path.data(), static_cast<DWORD>(path.size())));
        if (is_libllama(path)) {
            paths.push_back(path);
        }
    }
    return paths;
}

#elif defined(__APPLE__)

std::vector<std::string> mapped_libraries() {
    std::vector<std::string> paths;
    for (std::uint32_t i = 0; i < _dyld_image_count(); ++i) {
        const char * const path = _dyld_get_image_name(i);  // null if the image went away meanwhile
        if (path != nullptr && is_libllama(path) && std::find(paths.begin(), paths.end(), path) == paths.end()) {
            paths.emplace_back(path);
        }
    }
    return paths;
}

#else

std::vector<std::string> mapped_libraries() {
    std::ifstream maps("/proc/self/maps");
    if (!maps) {
        throw Error(ErrorCode::unsupported, "mapped_libraries: /proc/self/maps cannot be read");
    }
    std::vector<std::string> paths;
    std::set<std::string> seen;  // device and inode: one file may be mapped through several names
    for (std::string line; std::getline(maps, line);) {
        std::istringstream fields(line);
        std::string addresses;
        std::string permissions;
        std::string offset;
        std::string device;
        std::string inode;
        std::string path;
        fields >> addresses >> permissions >> offset >> device >> inode >> std::ws;
        std::getline(fields, path);
        if (is_libllama(path) && seen.insert(device + ' ' + inode).second) {
            paths.push_back(path);
        }
    }
    return paths;
}

#endif

}  // namespace dflash
