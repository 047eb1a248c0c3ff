// Guesses white space that a grammar makes optional: as it was written before, else as JSON usually has it. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dflash {

/// The white space expected between the last character of `written` that is none and `next`. `written` may end with a
/// part of it.
[[nodiscard]] std::string expected_space(std::string_view written, char next);

/// Space, tab, line feed and carriage return.
[[nodiscard]] bool is_space(char c) noexcept;

/// Size without the white space at the end.
[[nodiscard]] std::size_t visible_size(std::string_view text) noexcept;

}  // namespace dflash
