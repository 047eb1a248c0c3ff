// Escapes what a terminal or a Python string would choke on.
#include "dflash/text.h"

#include <cstdint>

namespace dflash {

namespace {

/// Length of the well-formed UTF-8 sequence at the start of `text`, 0 if there is none.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
    const std::uint8_t lead = byte(0);
    if (lead < 0x80) {
        return 1;
    }
    const std::size_t n = lead >= 0xC2 && lead <= 0xDF   ? 2
                          : lead >= 0xE0 && lead <= 0xEF ? 3
                          : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                         : 0;
    if (n == 0 || text.size() < n) {
        return 0;
    }
    for (std::size_t i = 1; i < n; ++i) {
        if ((byte(i) & 0xC0) != 0x80) {
            return 0;
        }
    }
    const std::uint8_t second = byte(1);
    const bool overlong = (lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90);
    const bool surrogate = lead == 0xED && second > 0x9F;
    const bool too_large = lead == 0xF4 && second > 0x8F;
    return overlong || surrogate || too_large ? 0 : n;
}

/// C0, DEL, C1, line separators and marks that reverse the direction of text: terminals act upon them.
bool is_control(std::string_view sequence) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(sequence[i]); };
    switch (sequence.size()) {
        case 1: return byte(0) < 0x20 || byte(0) == 0x7F;
        case 2: return byte(0) == 0xC2 && byte(1) < 0xA0;
        case 3: {
            if (byte(0) != 0xE2) {
                return false;
            }
            const bool mark =
                byte(1) == 0x80 && (byte(2) == 0x8E || byte(2) == 0x8F || (byte(2) >= 0xA8 && byte(2) <= 0xAE));
            return mark || (byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9);
        }
        default: return false;
    }
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
    constexpr const char * digits = "0123456789abcdef";
    std::string out;
    while (!text.empty()) {
        if (out.size() >= max_bytes) {
            return out + "...";
        }
        const std::size_t n = utf8_length(text);
        if (n > 0 && !is_control(text.substr(0, n))) {
            out += text.substr(0, n);
        } else {
            for (const char c : text.substr(0, n > 0 ? n : 1)) {
                const auto byte = static_cast<std::uint8_t>(c);
                out += {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
            }
        }
        text.remove_prefix(n > 0 ? n : 1);
    }
    return out;
}

std::string printable_path(const std::filesystem::path & path) {
    const std::u8string text = path.u8string();
    return printable(std::string_view(reinterpret_cast<const char *>(text.data()), text.size()),
                     static_cast<std::size_t>(-1));
}

}  // namespace dflash
