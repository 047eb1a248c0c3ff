// Text that came from a file or a user, made safe to print in a message.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace dflash {

/// Valid UTF-8 without control characters: those and invalid bytes become \xNN; cut after max_bytes with "...".
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_bytes = 200);

/// A path as UTF-8, printable, whole.
[[nodiscard]] std::string printable_path(const std::filesystem::path & path);

}  // namespace dflash
