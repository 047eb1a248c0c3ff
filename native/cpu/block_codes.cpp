// Bit layouts of ggml's quantized blocks (ggml-common.h).
#include "block_codes.h"

#include <cstring>

namespace dflash::cpu {

namespace {

unsigned at(const std::byte * p, std::size_t i) { return static_cast<unsigned>(p[i]); }

std::uint16_t word(const std::byte * p) {
    std::uint16_t out = 0;
    std::memcpy(&out, p, 2);
    return out;
}
void put_word(std::byte * p, std::uint16_t value) { std::memcpy(p, &value, 2); }

/// Where the parts of a block of 32 columns begin; -1: it has none.
struct SmallParts {
    int scale;
    int offset;
    int fifths;
    int nibbles;
};

SmallParts small_parts(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_1: return {0, 2, -1, 4};
        case GGML_TYPE_Q5_0: return {0, -1, 2, 6};
        case GGML_TYPE_Q5_1: return {0, 2, 4, 8};
        case GGML_TYPE_MXFP4: return {-1, -1, -1, 1};
        default:  // Q4_0, IQ4_NL
            return {0, -1, -1, 2};
    }
}

void read_small(ggml_type type, const std::byte * p, BlockCodes & out) {
    const SmallParts parts = small_parts(type);
    if (parts.scale >= 0) {
        out.scale = word(p + parts.scale);
    } else {
        out.scales[0] = static_cast<std::uint8_t>(p[0]);
    }
    out.offset = parts.offset >= 0 ? word(p + parts.offset) : std::uint16_t{0};
    for (std::size_t c = 0; c < 32; ++c) {
        const unsigned both = at(p + parts.nibbles, c % 16);
        unsigned code = c < 16 ? both & 15U : both >> 4U;
        if (parts.fifths >= 0) {
            code |= (at(p + parts.fifths, c / 8) >> (c % 8) & 1U) << 4U;
        }
        out.codes[c] = static_cast<std::uint8_t>(code);
    }
}

void write_small(ggml_type type, const BlockCodes & in, std::byte * p) {
    const SmallParts parts = small_parts(type);
    std::memset(p, 0, ggml_type_size(type));
    if (parts.scale >= 0) {
        put_word(p + parts.scale, in.scale);
    } else {
        p[0] = static_cast<std::byte>(in.scales[0]);
    }
    if (parts.offset >= 0) {
        put_word(p + parts.offset, in.offset);
    }
    for (std::size_t c = 0; c < 32; ++c) {
        p[static_cast<std::size_t>(parts.nibbles) + c % 16] |=
            static_cast<std::byte>((in.codes[c] & 15U) << (c < 16 ? 0U : 4U));
        if (parts.fifths >= 0) {
            p[static_cast<std::size_t>(parts.fifths) + c / 8] |=
                static_cast<std::byte>((in.codes[c] >> 4U & 1U) << (c % 8));
        }
    }
}

// Q4_K and Q5_K: two halves, 12 bytes of six-bit pairs, (32 bytes of fifth bits,) 128 bytes of nibbles.

void read_k_scales(const std::byte * s, BlockCodes & out) {
    for (std::size_t j = 0; j < 8; ++j) {
        if (j < 4) {
            out.scales[j] = static_cast<std::uint8_t>(at(s, j) & 63U);
            out.offsets[j] = static_cast<std::uint8_t>(at(s, j + 4) & 63U);
        } else {
            out.scales[j] = static_cast<std::uint8_t>((at(s, j + 4) & 15U) | (at(s, j - 4) >> 6U) << 4U);
            out.offsets[j] = static_cast<std::uint8_t>(at(s, j + 4) >> 4U | (at(s, j) >> 6U) << 4U);
        }
    }
}

void write_k_scales(const BlockCodes & in, std::byte * s) {
    for (std::size_t j = 0; j < 4; ++j) {
        s[j] = static_cast<std::byte>(in.scales[j] | (in.scales[j + 4] >> 4U) << 6U);
        s[j + 4] = static_cast<std::byte>(in.offsets[j] | (in.offsets[j + 4] >> 4U) << 6U);
        s[j + 8] = static_cast<std::byte>((in.scales[j + 4] & 15U) | (in.offsets[j + 4] & 15U) << 4U);
    }
}

void read_k(bool fives, const std::byte * p, BlockCodes & out) {
    out.scale = word(p);
    out.offset = word(p + 2);
    read_k_scales(p + 4, out);
    const std::byte * const nibbles = p + (fives ? 48 : 16);
    for (std::size_t c = 0; c < 256; ++c) {
        const std::size_t part = c / 32;
        const unsigned both = at(nibbles, part / 2 * 32 + c % 32);
        unsigned code = part % 2 == 0 ? both & 15U : both >> 4U;
        if (fives) {
            code |= (at(p + 16, c % 32) >> part & 1U) << 4U;
        }
        out.codes[c] = static_cast<std::uint8_t>(code);
    }
}

void write_k(bool fives, const BlockCodes & in, std::byte * p) {
    std::memset(p, 0, fives ? 176 : 144);
    put_word(p, in.scale);
    put_word(p + 2, in.offset);
    write_k_scales(in, p + 4);
    std::byte * const nibbles = p + (fives ? 48 : 16);
    for (std::size_t c = 0; c < 256; ++c) {
        const std::size_t part = c / 32;
        nibbles[part / 2 * 32 + c % 32] |= static_cast<std::byte>((in.codes[c] & 15U) << (part % 2 * 4));
        if (fives) {
            p[16 + c % 32] |= static_cast<std::byte>((in.codes[c] >> 4U & 1U) << part);
        }
    }
}

/// Q6_K: 128 bytes of nibbles, 64 of upper pairs, 16 scales, a half. Where column c lies.
struct SixAt {
    std::size_t nibble;
    unsigned nibble_shift;
    std::size_t pair;
    unsigned pair_shift;
};

SixAt six_at(std::size_t c) {
    const std::size_t half = c / 128;
    const std::size_t part = c % 128 / 32;
    const std::size_t l = c % 32;
    return {64 * half + part % 2 * 32 + l, part < 2 ? 0U : 4U, 128 + 32 * half + l, static_cast<unsigned>(2 * part)};
}

void read_six(const std::byte * p, BlockCodes & out) {
    for (std::size_t c = 0; c < 256; ++c) {
        const SixAt where = six_at(c);
        out.codes[c] = static_cast<std::uint8_t>((at(p, where.nibble) >> where.nibble_shift & 15U) |
                                                 (at(p, where.pair) >> where.pair_shift & 3U) << 4U);
    }
    std::memcpy(out.scales.data(), p + 192, 16);
    out.scale = word(p + 208);
}

void write_six(const BlockCodes & in, std::byte * p) {
    std::memset(p, 0, 192);
    for (std::size_t c = 0; c < 256; ++c) {
        const SixAt where = six_at(c);
        p[where.nibble] |= static_cast<std::byte>((in.codes[c] & 15U) << where.nibble_shift);
        p[where.pair] |= static_cast<std::byte>(in.codes[c] >> 4U << where.pair_shift);
    }
    std::memcpy(p + 192, in.scales.data(), 16);
    put_word(p + 208, in.scale);
}

/// IQ4_XS: a half, a word of upper pairs of the eight scales, 4 bytes of their nibbles, 128 bytes of codes.
void read_xs(const std::byte * p, BlockCodes & out) {
    out.scale = word(p);
    const unsigned upper = word(p + 2);
    for (std::size_t j = 0; j < 8; ++j) {
        const unsigned low = at(p + 4, j / 2) >> (j % 2 * 4) & 15U;
        out.scales[j] = static_cast<std::uint8_t>((low | (upper >> (2 * j) & 3U) << 4U) - 32U);
    }
    for (std::size_t c = 0; c < 256; ++c) {
        const unsigned both = at(p + 8, c / 32 * 16 + c % 16);
        out.codes[c] = static_cast<std::uint8_t>(c % 32 < 16 ? both & 15U : both >> 4U);
    }
}

void write_xs(const BlockCodes & in, std::byte * p) {
    std::memset(p, 0, 136);
    put_word(p, in.scale);
    unsigned upper = 0;
    for (std::size_t j = 0; j < 8; ++j) {
        const unsigned six = (in.scales[j] + 32U) & 63U;
        p[4 + j / 2] |= static_cast<std::byte>((six & 15U) << (j % 2 * 4));
        upper |= (six >> 4U) << (2 * j);
    }
    put_word(p + 2, static_cast<std::uint16_t>(upper));
    for (std::size_t c = 0; c < 256; ++c) {
        p[8 + c / 32 * 16 + c % 16] |= static_cast<std::byte>(in.codes[c] << (c % 32 < 16 ? 0U : 4U));
    }
}

}  // namespace

BlockCodes read_block(ggml_type type, const std::byte * block) {
    BlockCodes out;
    switch (type) {
        case GGML_TYPE_Q8_0:
            out.scale = word(block);
            for (std::size_t c = 0; c < 32; ++c) {
                out.codes[c] = static_cast<std::uint8_t>(at(block + 2, c) ^ 128U);
            }
            break;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: read_k(type == GGML_TYPE_Q5_K, block, out); break;
        case GGML_TYPE_Q6_K: read_six(block, out); break;
        case GGML_TYPE_IQ4_XS: read_xs(block, out); break;
        default: read_small(type, block, out);
    }
    return out;
}

void write_block(ggml_type type, const BlockCodes & block, std::byte * out) {
    switch (type) {
        case GGML_TYPE_Q8_0:
            put_word(out, block.scale);
            for (std::size_t c = 0; c < 32; ++c) {
                out[2 + c] = static_cast<std::byte>(block.codes[c] ^ 128U);
            }
            break;
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K: write_k(type == GGML_TYPE_Q5_K, block, out); break;
        case GGML_TYPE_Q6_K: write_six(block, out); break;
        case GGML_TYPE_IQ4_XS: write_xs(block, out); break;
        default: write_small(type, block, out);
    }
}

}  // namespace dflash::cpu
