// Attention of a tile of query rows over one chunk of cells: every key and value is read and converted once for all
// rows.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "simd.h"

namespace dflash::cpu::DFLASH_ISA {

namespace {

constexpr std::int32_t block_cells = 64;  // whose keys and values stay in the first cache
constexpr int tile_rows = 6;
constexpr int tile_vectors = n_registers == 32 ? 4 : 2;  // with tile_rows: as many sums as stay in registers
constexpr std::int64_t tile_columns = tile_vectors * lanes;
constexpr float none = -std::numeric_limits<float>::infinity();

void to_floats(ggml_type type, const std::byte * from, std::int32_t n, float * out) {
    if (type == GGML_TYPE_F32) {
        std::memcpy(out, from, static_cast<std::size_t>(n) * sizeof(float));
    } else if (type == GGML_TYPE_F16) {
        std::int32_t i = 0;
        for (; i + lanes <= n; i += lanes) {
            store(out + i, load_halves(from + 2 * i));
        }
        for (; i < n; ++i) {
            ggml_fp16_t half = 0;
            std::memcpy(&half, from + 2 * i, 2);
            out[i] = half_to_float(half);
        }
    } else if (type == GGML_TYPE_BF16) {
        for (std::int32_t i = 0; i < n; ++i) {
            std::uint16_t bits = 0;
            std::memcpy(&bits, from + 2 * i, 2);
            out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
        }
    } else {  // Q8_0: a half and 32 codes a block
        for (std::int32_t b = 0; b < n / 32; ++b) {
            ggml_fp16_t half = 0;
            std::memcpy(&half, from + 34 * b, 2);
            const float scale = half_to_float(half);
            for (std::int32_t i = 0; i < 32; ++i) {
                out[32 * b + i] = scale * static_cast<float>(static_cast<std::int8_t>(from[34 * b + 2 + i]));
            }
        }
    }
}

template <int w, int... I>
[[gnu::always_inline]] inline void exchange(Floats & a, Floats & b, std::integer_sequence<int, I...> /*lanes*/) {
    const Floats x = a;
    const Floats y = b;
    a = __builtin_shufflevector(x, y, ((I & w) == 0 ? I : lanes + I - w)...);
    b = __builtin_shufflevector(x, y, ((I & w) == 0 ? I + w : lanes + I)...);
}

/// Exchanges the bit w of the row with that of the lane; P counts pairs of rows.
template <int w, int... P>
[[gnu::always_inline]] inline void exchange_bit(Floats * m, std::integer_sequence<int, P...> /*pairs*/) {
    (exchange<w>(m[P / w * 2 * w + P % w], m[P / w * 2 * w + P % w + w], std::make_integer_sequence<int, lanes>{}),
     ...);
}

/// As many rows as lanes, in place.
[[gnu::always_inline]] inline void transpose(Floats * m) {
    constexpr auto pairs = std::make_integer_sequence<int, lanes / 2>{};
    exchange_bit<1>(m, pairs);
    exchange_bit<2>(m, pairs);
    if constexpr (lanes > 4) {
        exchange_bit<4>(m, pairs);
    }
    if constexpr (lanes > 8) {
        exchange_bit<8>(m, pairs);
    }
}

/// As many keys of halves as lanes, a whole number of those long.
void turn_halves(const std::byte * from, std::int64_t stride, std::int32_t head_size, float * keys) {
    for (std::int32_t d = 0; d < head_size; d += lanes) {
        Floats m[lanes];
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < lanes; ++i) {
            m[i] = load_halves(from + i * stride + 2 * static_cast<std::int64_t>(d));
        }
        transpose(m);
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < lanes; ++i) {
            store(keys + (d + i) * block_cells, m[i]);
        }
    }
}

/// As many keys as lanes, of any type and length, those beyond n_cells 0. `row`: those keys, padded.
void turn_some(const AttentionTile & t, const std::byte * from, std::int32_t n_cells, float * row, float * keys) {
    const std::int32_t padded = pad16(t.head_size);
    for (std::int32_t i = 0; i < lanes; ++i) {
        float * const out = row + static_cast<std::int64_t>(i) * padded;
        std::fill(out, out + padded, 0.0F);
        if (i < n_cells) {
            to_floats(t.k_type, from + i * t.key_stride, t.head_size, out);
        }
    }
    for (std::int32_t d = 0; d < padded; d += lanes) {
        Floats m[lanes];
        for (std::int64_t i = 0; i < lanes; ++i) {
            m[i] = load(row + i * padded + d);
        }
        transpose(m);
        for (std::int64_t i = 0; i < lanes && d + i < t.head_size; ++i) {
            store(keys + (d + i) * block_cells, m[i]);
        }
    }
}

/// keys[d][64]: the block's keys by dimension; cells beyond n_cells are 0.
void turn_keys(const AttentionTile & t, std::int32_t first, std::int32_t n_cells, float * row, float * keys) {
    for (std::int32_t c = 0; c < block_cells; c += lanes) {
        const std::byte * const from = t.keys + (first + c) * t.key_stride;
        if (t.k_type == GGML_TYPE_F16 && t.head_size % lanes == 0 && c + lanes <= n_cells) {
            turn_halves(from, t.key_stride, t.head_size, keys + c);
        } else {
            turn_some(t, from, n_cells - c, row, keys + c);
        }
    }
}

/// Scores of R rows against 64 cells, each summed over the dimensions in order.
template <int R>
void score(const AttentionTile & t, std::int32_t row, const float * keys, float * scores, std::int64_t stride) {
    const float * const q = t.queries + static_cast<std::int64_t>(row) * t.head_size;
    for (std::int64_t first = 0; first < block_cells; first += tile_columns) {
        Floats sums[R][tile_vectors] = {};
        for (std::int32_t d = 0; d < t.head_size; ++d) {
            const float * const at = keys + static_cast<std::int64_t>(d) * block_cells + first;
            Floats k[tile_vectors];
            for (std::int64_t v = 0; v < tile_vectors; ++v) {
                k[v] = load(at + v * lanes);
            }
#pragma GCC unroll 8
            for (std::size_t r = 0; r < R; ++r) {
                const Floats x = all(q[static_cast<std::int64_t>(r) * t.head_size + d]);
                for (std::size_t v = 0; v < tile_vectors; ++v) {
                    sums[r][v] = fma(x, k[v], sums[r][v]);
                }
            }
        }
        for (std::int64_t r = 0; r < R; ++r) {
            for (std::int64_t v = 0; v < tile_vectors; ++v) {
                store(scores + r * stride + first + v * lanes, sums[r][v]);
            }
        }
    }
}

/// Adds the weighted values of n_cells cells to V vectors of columns of R rows, cell after cell.
template <int R, int V>
void weigh(const float * weights, std::int64_t weight_stride, const float * values, std::int64_t value_stride,
           std::int32_t n_cells, float * out, std::int64_t out_stride) {
    Floats sums[R][V];
    for (std::int64_t r = 0; r < R; ++r) {
        for (std::int64_t v = 0; v < V; ++v) {
            sums[r][v] = load(out + r * out_stride + v * lanes);
        }
    }
    for (std::int32_t c = 0; c < n_cells; ++c) {
        Floats x[V];
        for (std::int64_t v = 0; v < V; ++v) {
            x[v] = load(values + c * value_stride + v * lanes);
        }
#pragma GCC unroll 8
        for (std::size_t r = 0; r < R; ++r) {
            const Floats w = all(weights[static_cast<std::int64_t>(r) * weight_stride + c]);
            for (std::size_t v = 0; v < V; ++v) {
                sums[r][v] = fma(w, x[v], sums[r][v]);
            }
        }
    }
    for (std::int64_t r = 0; r < R; ++r) {
        for (std::int64_t v = 0; v < V; ++v) {
            store(out + r * out_stride + v * lanes, sums[r][v]);
        }
    }
}

template <int R>
void score_rows(const AttentionTile & t, std::int32_t row, std::int32_t n, const float * keys, float * scores,
                std::int64_t stride) {
    for (; n >= R; n -= R, row += R) {
        score<R>(t, row, keys, scores + row * stride, stride);
    }
    if constexpr (R > 1) {
        if (n > 0) {
            score_rows<R - 1>(t, row, n, keys, scores, stride);
        }
    }
}

template <int R>
void weigh_rows(std::int32_t row, std::int32_t n, const float * weights, std::int64_t weight_stride,
                const float * values, std::int64_t columns, std::int32_t n_cells, float * out) {
    for (; n >= R; n -= R, row += R) {
        std::int64_t d = 0;
        for (; d + tile_columns <= columns; d += tile_columns) {
            weigh<R, tile_vectors>(weights + row * weight_stride, weight_stride, values + d, columns, n_cells,
                                   out + row * columns + d, columns);
        }
        for (; d < columns; d += lanes) {
            weigh<R, 1>(weights + row * weight_stride, weight_stride, values + d, columns, n_cells,
                        out + row * columns + d, columns);
        }
    }
    if constexpr (R > 1) {
        if (n > 0) {
            weigh_rows<R - 1>(row, n, weights, weight_stride, values, columns, n_cells, out);
        }
    }
}

const ggml_fp16_t * mask_of(const AttentionTile & t, std::int32_t row) {
    const std::int64_t at = row / t.group * t.mask_row_stride + row % t.group * t.mask_head_stride;
    return t.mask != nullptr ? reinterpret_cast<const ggml_fp16_t *>(t.mask + at) : nullptr;
}

/// Cap, mask and exponents of one row; zeros where all its cells are masked.
void weights_of(const AttentionTile & t, std::int32_t row, float * scores, std::int32_t n_padded, float * sums) {
    const ggml_fp16_t * const mask = mask_of(t, row);
    const float slope = mask != nullptr ? t.slopes[row % t.group] : 0.0F;
    Floats highest = all(none);
    for (std::int32_t c = 0; c < n_padded; c += lanes) {
        Floats s = load(scores + c);
        if (t.softcap != 0.0F) {
            s = t.softcap * tanh(s);
        }
        Floats m{};
        if (c + lanes <= t.n_cells) {
            m = mask != nullptr ? slope * load_halves(reinterpret_cast<const std::byte *>(mask + c)) : m;
        } else {
            for (std::int32_t i = 0; i < lanes; ++i) {
                const bool inside = c + i < t.n_cells;
                m[i] = !inside ? none : mask != nullptr ? slope * half_to_float(mask[c + i]) : 0.0F;
            }
        }
        s = m > none ? s + m : all(none);  // what a hidden key holds, be it no number, does not matter
        store(scores + c, s);
        highest = max(highest, s);
    }
    const float top = max_of(highest);
    sums[0] = top;
    sums[1] = 0.0F;
    if (top == none && std::all_of(scores, scores + n_padded, [](float s) { return s == none; })) {
        std::fill(scores, scores + n_padded, 0.0F);
        return;
    }
    Floats total{};
    for (std::int32_t c = 0; c < n_padded; c += lanes) {
        const Floats e = exp(load(scores + c) - top);
        store(scores + c, e);
        total += e;
    }
    sums[1] = sum_of(total);
}

bool all_masked(const AttentionTile & t, std::int32_t first, std::int32_t n) {
    if (t.mask == nullptr) {
        return false;
    }
    constexpr ggml_fp16_t minus_infinity = 0xFC00;
    for (std::int32_t r = 0; r < t.n_rows; r += t.mask_head_stride == 0 ? t.group : 1) {
        const ggml_fp16_t * const mask = mask_of(t, r);
        if (!std::all_of(mask + first, mask + first + n, [](ggml_fp16_t m) { return m == minus_infinity; })) {
            return false;
        }
    }
    return true;
}

}  // namespace

void attend(const AttentionTile & t) {
    const std::int32_t n_padded = (t.n_cells + block_cells - 1) / block_cells * block_cells;
    const std::int32_t columns = pad16(t.value_size);
    float * const scores = t.scratch;
    float * const block = scores + static_cast<std::int64_t>(t.n_rows) * n_padded;
    float * const row = block + static_cast<std::int64_t>(block_cells) * std::max(pad16(t.head_size), columns);
    std::array<bool, most_cells / block_cells> skipped{};
    for (std::int32_t c = 0; c < n_padded; c += block_cells) {
        const std::int32_t n = std::min(block_cells, t.n_cells - c);
        skipped[static_cast<std::size_t>(c / block_cells)] = all_masked(t, c, n);
        if (skipped[static_cast<std::size_t>(c / block_cells)]) {
            for (std::int32_t r = 0; r < t.n_rows; ++r) {
                float * const s = scores + static_cast<std::int64_t>(r) * n_padded + c;
                std::fill(s, s + block_cells, 0.0F);
            }
            continue;
        }
        turn_keys(t, c, n, row, block);
        score_rows<tile_rows>(t, 0, t.n_rows, block, scores + c, n_padded);
    }
    for (std::int32_t r = 0; r < t.n_rows; ++r) {
        weights_of(t, r, scores + static_cast<std::int64_t>(r) * n_padded, n_padded, t.sums + 2 * r);
    }
    std::fill(t.out, t.out + static_cast<std::int64_t>(t.n_rows) * columns, 0.0F);
    for (std::int32_t c = 0; c < n_padded; c += block_cells) {
        if (skipped[static_cast<std::size_t>(c / block_cells)]) {
            continue;
        }
        const std::int32_t n = std::min(block_cells, t.n_cells - c);
        for (std::int32_t i = 0; i < n; ++i) {
            float * const out = block + static_cast<std::int64_t>(i) * columns;
            to_floats(t.v_type, t.values + (c + i) * t.value_stride, t.value_size, out);
            std::fill(out + t.value_size, out + columns, 0.0F);
        }
        weigh_rows<tile_rows>(0, t.n_rows, scores + c, n_padded, block, columns, n, t.out);
    }
}

}  // namespace dflash::cpu::DFLASH_ISA
