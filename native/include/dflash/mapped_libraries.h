// Which files of libllama this process has mapped: two of them would mean two sets of global state.
#pragma once

#include <string>
#include <vector>

namespace dflash {

/// Paths of the distinct libllama files in this process, in the order of loading or of addresses.
/// Throws Error(unsupported) where the platform does not tell.
[[nodiscard]] std::vector<std::string> mapped_libraries();

}  // namespace dflash
