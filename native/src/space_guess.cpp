// Looks back for white space between the same two characters, or else after the same one. Brackets of both shapes count
// as the same, and a closing one follows what stood after an opening one.
#include "dflash/space_guess.h"

#include <optional>

namespace dflash {

namespace {

bool is_opening(char c) { return c == '{' || c == '['; }

bool is_closing(char c) { return c == '}' || c == ']'; }

bool alike(char a, char b) { return a == b || (is_opening(a) && is_opening(b)); }

}  // namespace

bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

std::size_t visible_size(std::string_view text) noexcept {
    while (!text.empty() && is_space(text.back())) {
        text.remove_suffix(1);
    }
    return text.size();
}

std::string expected_space(std::string_view written, char next) {
    const std::size_t end = visible_size(written);
    if (end == 0) {
        return {};
    }
    const char before = written[end - 1];
    const bool closes = is_closing(next);
    std::optional<std::string_view> similar;
    std::size_t right = end - 1;
    while (right > 0) {
        const std::size_t left = visible_size(written.substr(0, right));
        if (left == 0) {
            break;
        }
        const std::string_view space = written.substr(left, right - left);
        const bool same_left = alike(written[left - 1], before);
        if (closes ? is_closing(written[right]) : same_left && written[right] == next) {
            return std::string(space);
        }
        if (!similar && (closes ? is_opening(written[left - 1]) : same_left)) {
            similar = space;
        }
        right = left - 1;
    }
    return std::string(similar.value_or(before == ',' || before == ':' ? " " : ""));
}

}  // namespace dflash
