// Packs ggml's rows into groups of 16 and back, and hands groups and activation rows to the kernels.
#include "packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "block_codes.h"
#include "kernels/kernels.h"
#include "packed_layout.h"

namespace dflash::cpu {

namespace {

bool is_float(const Layout & layout) { return layout.codes == Codes::halves || layout.codes == Codes::bfloats; }

void put_half(std::byte * p, std::uint16_t bits) { std::memcpy(p, &bits, 2); }
std::uint16_t get_half(const std::byte * p) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, p, 2);
    return bits;
}

/// The 32 columns' codes of row i in the packed block at p.
void put_codes(Codes kind, const std::uint8_t * codes, std::size_t i, std::byte * p) {
    for (std::size_t c = 0; c < 32; ++c) {
        const std::size_t q = c / 4;
        const std::size_t at = 4 * i + c % 4;
        const unsigned code = codes[c];
        if (kind == Codes::bytes) {
            p[64 * q + at] = static_cast<std::byte>(code);
            continue;
        }
        p[64 * (q % 4) + at] |= static_cast<std::byte>((code & 15U) << (q < 4 ? 0U : 4U));
        if (kind == Codes::fives) {
            p[256 + 8 * q + at / 8] |= static_cast<std::byte>((code >> 4U & 1U) << (at % 8));
        } else if (kind == Codes::sixes) {
            p[256 + 64 * (q % 2) + at] |= static_cast<std::byte>(code >> 4U << (2 * (q / 2)));
        }
    }
}

void get_codes(Codes kind, const std::byte * p, std::size_t i, std::uint8_t * codes) {
    for (std::size_t c = 0; c < 32; ++c) {
        const std::size_t q = c / 4;
        const std::size_t at = 4 * i + c % 4;
        unsigned code = static_cast<unsigned>(p[64 * (kind == Codes::bytes ? q : q % 4) + at]);
        if (kind != Codes::bytes) {
            code = q < 4 ? code & 15U : code >> 4U;
        }
        if (kind == Codes::fives) {
            code |= (static_cast<unsigned>(p[256 + 8 * q + at / 8]) >> (at % 8) & 1U) << 4U;
        } else if (kind == Codes::sixes) {
            code |= (static_cast<unsigned>(p[256 + 64 * (q % 2) + at]) >> (2 * (q / 2)) & 3U) << 4U;
        }
        codes[c] = static_cast<std::uint8_t>(code);
    }
}

/// `p`: the scales of one type's block (32 or 256 columns) of the group.
void put_scales(Scales kind, const BlockCodes & block, std::size_t i, std::byte * p) {
    if (kind == Scales::exponent) {
        p[i] = static_cast<std::byte>(block.scales[0]);
        return;
    }
    put_half(p + 2 * i, block.scale);
    if (kind == Scales::half_pair || kind == Scales::super_pair) {
        put_half(p + 32 + 2 * i, block.offset);
    }
    for (std::size_t j = 0; j < 8 && kind == Scales::super_pair; ++j) {
        p[64 + 16 * j + i] = static_cast<std::byte>(block.scales[j]);
        p[192 + 16 * j + i] = static_cast<std::byte>(block.offsets[j]);
    }
    const std::size_t signed_scales = kind == Scales::super_16 ? 16 : kind == Scales::super_32 ? 8 : 0;
    for (std::size_t j = 0; j < signed_scales; ++j) {
        p[32 + 16 * j + i] = static_cast<std::byte>(block.scales[j]);
    }
}

void get_scales(Scales kind, const std::byte * p, std::size_t i, BlockCodes & block) {
    if (kind == Scales::exponent) {
        block.scales[0] = static_cast<std::uint8_t>(p[i]);
        return;
    }
    block.scale = get_half(p + 2 * i);
    if (kind == Scales::half_pair || kind == Scales::super_pair) {
        block.offset = get_half(p + 32 + 2 * i);
    }
    for (std::size_t j = 0; j < 8 && kind == Scales::super_pair; ++j) {
        block.scales[j] = static_cast<std::uint8_t>(p[64 + 16 * j + i]);
        block.offsets[j] = static_cast<std::uint8_t>(p[192 + 16 * j + i]);
    }
    const std::size_t signed_scales = kind == Scales::super_16 ? 16 : kind == Scales::super_32 ? 8 : 0;
    for (std::size_t j = 0; j < signed_scales; ++j) {
        block.scales[j] = static_cast<std::uint8_t>(p[32 + 16 * j + i]);
    }
}

void pack_row(const MatrixShape & shape, const Layout & layout, const std::byte * row, std::size_t i,
              std::byte * group) {
    if (is_float(layout)) {
        for (std::int64_t c = 0; c < shape.n_cols; ++c) {
            std::memcpy(group + 32 * c + 2 * static_cast<std::int64_t>(i), row + 2 * c, 2);
        }
        return;
    }
    const std::size_t size = ggml_type_size(shape.type);
    std::byte * scales = group + scales_offset(layout, shape.n_cols);
    for (std::int64_t c = 0; c < shape.n_cols; c += layout.block_cols) {
        const BlockCodes block = read_block(shape.type, row);
        for (std::int64_t part = 0; part < layout.block_cols; part += 32) {
            put_codes(layout.codes, block.codes.data() + part, i, group + (c + part) / 32 * layout.code_bytes);
        }
        put_scales(layout.scales, block, i, scales);
        row += size;
        scales += layout.scale_bytes;
    }
}

}  // namespace

bool can_pack(const MatrixShape & shape) {
    const Layout * const layout = layout_of(shape.type);
    return layout != nullptr && shape.n_rows > 0 && shape.n_cols > 0 && shape.n_cols % layout->block_cols == 0;
}

std::size_t group_bytes(const MatrixShape & shape) {
    const Layout & layout = *layout_of(shape.type);
    return static_cast<std::size_t>(scales_offset(layout, shape.n_cols) +
                                    pad64(shape.n_cols / layout.scale_cols * layout.scale_bytes));
}

void pack_group(const MatrixShape & shape, std::span<const std::byte> rows, std::span<std::byte> group) {
    const std::size_t row_bytes = ggml_row_size(shape.type, shape.n_cols);
    std::memset(group.data(), 0, group.size());
    for (std::size_t i = 0; i < rows.size() / row_bytes; ++i) {
        pack_row(shape, *layout_of(shape.type), rows.data() + i * row_bytes, i, group.data());
    }
}

void unpack_row(const MatrixShape & shape, std::span<const std::byte> group, std::int32_t row,
                std::span<std::byte> out) {
    const Layout & layout = *layout_of(shape.type);
    const auto i = static_cast<std::size_t>(row);
    if (is_float(layout)) {
        for (std::int64_t c = 0; c < shape.n_cols; ++c) {
            std::memcpy(out.data() + 2 * c, group.data() + 32 * c + 2 * row, 2);
        }
        return;
    }
    const std::byte * scales = group.data() + scales_offset(layout, shape.n_cols);
    std::byte * to = out.data();
    for (std::int64_t c = 0; c < shape.n_cols; c += layout.block_cols) {
        BlockCodes block;
        for (std::int64_t part = 0; part < layout.block_cols; part += 32) {
            get_codes(layout.codes, group.data() + (c + part) / 32 * layout.code_bytes, i, block.codes.data() + part);
        }
        get_scales(layout.scales, scales, i, block);
        write_block(shape.type, block, to);
        to += ggml_type_size(shape.type);
        scales += layout.scale_bytes;
    }
}

void unpack_group(const MatrixShape & shape, std::span<const std::byte> group, std::span<std::byte> rows) {
    const std::size_t row_bytes = ggml_row_size(shape.type, shape.n_cols);
    for (std::size_t i = 0; i < rows.size() / row_bytes; ++i) {
        unpack_row(shape, group, static_cast<std::int32_t>(i), rows.subspan(i * row_bytes, row_bytes));
    }
}

std::size_t activation_bytes(ggml_type type, std::int64_t n_cols) {
    const std::int64_t bytes = is_float(*layout_of(type))
                                   ? 4 * n_cols
                                   : heads_offset(n_cols) + n_cols / 32 * std::int64_t{sizeof(ActivationHead)};
    return static_cast<std::size_t>(pad64(bytes));
}

std::int32_t activation_form(ggml_type type) {
    const Layout & layout = *layout_of(type);
    return is_float(layout) ? -1 : 2 * layout.zero + (layout.scales == Scales::super_16 ? 1 : 0);
}

void prepare_activation(ggml_type type, std::span<const float> row, std::byte * out) {
    const Layout & layout = *layout_of(type);
    if (is_float(layout)) {
        std::memcpy(out, row.data(), row.size_bytes());
    } else {
        kernels().quantize(row.data(), static_cast<std::int64_t>(row.size()), layout.zero,
                           layout.scales == Scales::super_16, out);
    }
}

void multiply(const MatrixShape & shape, const std::byte * groups, std::int64_t first_group, std::int64_t last_group,
              std::span<const std::byte * const> activations, std::span<float * const> dst) {
    constexpr std::size_t most = 32;         // activation rows at once, which stay in the second cache
    constexpr std::int64_t group_panel = 4;  // groups at once, which stay in the first
    const Layout & layout = *layout_of(shape.type);
    const std::size_t bytes = group_bytes(shape);
    std::array<float *, most> out{};
    for (std::int64_t panel = first_group; panel < last_group; panel += group_panel) {
        const std::int64_t panel_end = std::min(panel + group_panel, last_group);
        for (std::size_t first = 0; first < activations.size(); first += most) {
            const std::size_t n = std::min(most, activations.size() - first);
            for (std::int64_t g = panel; g < panel_end; ++g) {
                for (std::size_t r = 0; r < n; ++r) {
                    out[r] = dst[first + r] + g * group_rows;
                }
                const std::int64_t valid = std::min(group_rows, shape.n_rows - g * group_rows);
                kernels().multiply(layout, shape.n_cols, groups + static_cast<std::size_t>(g) * bytes,
                                   activations.data() + first, out.data(), static_cast<std::int32_t>(n),
                                   static_cast<std::int32_t>(valid));
            }
        }
    }
}

}  // namespace dflash::cpu
