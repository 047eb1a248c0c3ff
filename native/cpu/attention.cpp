// FLASH_ATTN_EXT: cells in chunks of 256, each chunk with its own maximum and sum, merged in order.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"
#include "neighbours.h"

namespace dflash::cpu {

namespace {

constexpr std::int32_t chunk_cells = 256;
constexpr std::int64_t narrow_rows = 32;    // batches up to this share out chunks of cells, wider ones rows
constexpr std::int64_t block_rows = 16;     // of wider batches
constexpr std::int64_t shared_merges = 64;  // fewer are not worth a second thread
constexpr std::int64_t chunks_per_thread = 4;
constexpr std::int64_t most_group = 64;  // query heads of a K/V head

/// One query head row's running result.
struct Running {
    float top = -std::numeric_limits<float>::infinity();
    float sum = 0.0F;
};

void merge(Running & into, float * values, float top, float sum, const float * more, std::int64_t n) {
    if (sum == 0.0F) {
        return;
    }
    const float highest = std::max(into.top, top);
    const float old_weight = into.sum > 0.0F ? std::exp(into.top - highest) : 0.0F;
    const float weight = std::exp(top - highest);
    for (std::int64_t i = 0; i < n; ++i) {
        values[i] = values[i] * old_weight + more[i] * weight;
    }
    into.sum = into.sum * old_weight + sum * weight;
    into.top = highest;
}

struct Attention {
    const ggml_tensor & node;
    const ggml_tensor & q;
    const ggml_tensor & k;
    const ggml_tensor & v;
    const ggml_tensor * mask;
    std::int64_t n_rows;
    std::int64_t group;  // query heads of one K/V head
    std::int64_t n_chunks;
    std::int64_t columns;  // padded values
    std::int64_t block;    // rows of a tile
    float scale;
    float softcap;
    const float * slopes;  // of query heads
    std::int64_t heads_per_task =
        1;  // all of a chunk's one after the other where chunks are many: their cells are neighbours
    std::int64_t n_tasks = 0;
    std::int64_t n_shares = 0;  // of tasks, each with scratch of its own
    float * shares = nullptr;   // [n_shares][share_floats]
    std::int64_t share_floats = 0;
    float * partials = nullptr;       // of narrow batches, [stream][K/V head][chunk][partial_floats]
    std::int64_t partial_floats = 0;  // values, then maxima and sums, of block * group rows

    [[nodiscard]] float * partial(std::int64_t stream, std::int64_t head, std::int64_t chunk) const {
        return partials + ((stream * k.ne[2] + head) * n_chunks + chunk) * partial_floats;
    }
    [[nodiscard]] float * sums_of(float * values) const { return values + block * group * columns; }
};

std::byte * at(const ggml_tensor & t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return static_cast<std::byte *>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] +
           static_cast<std::size_t>(i2) * t.nb[2] + static_cast<std::size_t>(i3) * t.nb[3];
}

/// Rows [first, first + n) of a K/V head's query heads against one chunk; results of row r, head h at [r * group + h].
void attend_chunk(const Attention & a, std::int64_t stream, std::int64_t head, std::int64_t chunk, std::int64_t first,
                  std::int64_t n, float * tile_scratch, float * out) {
    const std::int64_t head_size = a.q.ne[0];
    float * to = tile_scratch;
    for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t h = 0; h < a.group; ++h) {
            const auto * const from = reinterpret_cast<const float *>(at(a.q, first + r, head * a.group + h, stream));
            for (std::int64_t d = 0; d < head_size; ++d) {
                *to++ = from[d] * a.scale;
            }
        }
    }
    const std::int64_t cell = chunk * chunk_cells;
    AttentionTile tile;
    tile.queries = tile_scratch;
    tile.n_rows = static_cast<std::int32_t>(n * a.group);
    tile.head_size = static_cast<std::int32_t>(head_size);
    tile.value_size = static_cast<std::int32_t>(a.v.ne[0]);
    tile.k_type = a.k.type;
    tile.v_type = a.v.type;
    tile.keys = at(a.k, cell, head, stream);
    tile.key_stride = static_cast<std::int64_t>(a.k.nb[1]);
    tile.values = at(a.v, cell, head, stream);
    tile.value_stride = static_cast<std::int64_t>(a.v.nb[1]);
    tile.n_cells = static_cast<std::int32_t>(std::min<std::int64_t>(chunk_cells, a.k.ne[1] - cell));
    tile.group = static_cast<std::int32_t>(a.group);
    if (a.mask != nullptr) {
        const bool by_head = a.mask->ne[2] > 1;
        tile.mask = at(*a.mask, first, by_head ? head * a.group : 0, stream % a.mask->ne[3]) + 2 * cell;
        tile.mask_row_stride = static_cast<std::int64_t>(a.mask->nb[1]);
        tile.mask_head_stride = by_head ? static_cast<std::int64_t>(a.mask->nb[2]) : 0;
        tile.slopes = a.slopes + head * a.group;
    }
    tile.softcap = a.softcap;
    tile.scratch = to;
    tile.sums = a.sums_of(out);
    tile.out = out;
    kernels().attend(tile);
}

void finish(const Attention & a, std::int64_t query_head, const Running & running, float * out) {
    float weight = 1.0F;
    float sum = running.sum;
    if (a.node.src[4] != nullptr) {
        const float sink = static_cast<const float *>(a.node.src[4]->data)[query_head];
        const float highest = std::max(running.top, sink);
        weight = running.sum > 0.0F ? std::exp(running.top - highest) : 0.0F;
        sum = running.sum * weight + std::exp(sink - highest);
    }
    const float inverse = sum == 0.0F ? 0.0F : 1.0F / sum;
    for (std::int64_t d = 0; d < a.v.ne[0]; ++d) {
        out[d] = out[d] * weight * inverse;
    }
}

/// Reads a chunk's cells, [head, head + n_heads) of each, once in their order: at that the hardware reads ahead, at the
/// kernel's own order, which turns blocks of keys, it does not, and asking for single lines is slower by half.
void touch(const ggml_tensor & cache, std::int64_t stream, std::int64_t head, std::int64_t n_heads,
           std::int64_t chunk) {
    const std::size_t bytes = static_cast<std::size_t>(n_heads) * ggml_row_size(cache.type, cache.ne[0]);
    unsigned sum = 0;
    for (std::int64_t cell = chunk * chunk_cells; cell < std::min((chunk + 1) * chunk_cells, cache.ne[1]); ++cell) {
        const std::byte * const from = at(cache, cell, head, stream);
        for (std::size_t i = 0; i < bytes; i += 64) {
            sum += static_cast<unsigned>(from[i]);
        }
    }
    asm volatile("" : : "r"(sum));  // or the reads would go
}

void narrow_share(void * work, std::int32_t share) {
    const Attention & a = *static_cast<Attention *>(work);
    for (std::int64_t task = share; task < a.n_tasks; task += a.n_shares) {
        const std::int64_t blocks = a.k.ne[2] / a.heads_per_task;
        const std::int64_t chunk = task / blocks % a.n_chunks;
        const std::int64_t stream = task / blocks / a.n_chunks;
        const std::int64_t first = task % blocks * a.heads_per_task;
        touch(a.k, stream, first, a.heads_per_task, chunk);
        touch(a.v, stream, first, a.heads_per_task, chunk);
        for (std::int64_t head = first; head < first + a.heads_per_task; ++head) {
            attend_chunk(a, stream, head, chunk, 0, a.n_rows, a.shares + share * a.share_floats,
                         a.partial(stream, head, chunk));
        }
    }
}

void merge_head(void * work, std::int32_t index) {
    const Attention & a = *static_cast<Attention *>(work);
    const std::int64_t query_head = index % a.q.ne[2];
    const std::int64_t stream = index / a.q.ne[2];
    for (std::int64_t row = 0; row < a.n_rows; ++row) {
        auto * const out = reinterpret_cast<float *>(at(a.node, query_head, row, stream));
        std::fill(out, out + a.v.ne[0], 0.0F);
        Running running;
        const std::int64_t at_row = row * a.group + query_head % a.group;
        for (std::int64_t chunk = 0; chunk < a.n_chunks; ++chunk) {
            float * const partial = a.partial(stream, query_head / a.group, chunk);
            const float * const sums = a.sums_of(partial) + 2 * at_row;
            merge(running, out, sums[0], sums[1], partial + at_row * a.columns, a.v.ne[0]);
        }
        finish(a, query_head, running, out);
    }
}

/// A block of a wide batch's rows, all its chunks one after the other.
void wide_block(const Attention & a, std::int64_t task, float * scratch) {
    const std::int64_t blocks = (a.n_rows + a.block - 1) / a.block;
    const std::int64_t first = task % blocks * a.block;
    const std::int64_t head = task / blocks % a.k.ne[2];
    const std::int64_t stream = task / blocks / a.k.ne[2];
    const std::int64_t n = std::min(a.block, a.n_rows - first);
    float * const part = scratch;
    float * const tile = scratch + a.partial_floats;
    std::array<Running, block_rows * most_group> running{};
    const auto out_of = [&](std::int64_t r) {
        return reinterpret_cast<float *>(at(a.node, head * a.group + r % a.group, first + r / a.group, stream));
    };
    for (std::int64_t r = 0; r < n * a.group; ++r) {
        std::fill(out_of(r), out_of(r) + a.v.ne[0], 0.0F);
    }
    for (std::int64_t chunk = 0; chunk < a.n_chunks; ++chunk) {
        attend_chunk(a, stream, head, chunk, first, n, tile, part);
        for (std::int64_t r = 0; r < n * a.group; ++r) {
            const float * const sums = a.sums_of(part) + 2 * r;
            merge(running[static_cast<std::size_t>(r)], out_of(r), sums[0], sums[1], part + r * a.columns, a.v.ne[0]);
        }
    }
    for (std::int64_t r = 0; r < n * a.group; ++r) {
        finish(a, head * a.group + r % a.group, running[static_cast<std::size_t>(r)], out_of(r));
    }
}

void wide_share(void * work, std::int32_t share) {
    const Attention & a = *static_cast<Attention *>(work);
    for (std::int64_t task = share; task < a.n_tasks; task += a.n_shares) {
        wide_block(a, task, a.shares + share * a.share_floats);
    }
}

/// Of ALiBi; 1 without it.
void fill_slopes(std::vector<float> & slopes, std::uint32_t n_heads, float max_bias) {
    slopes.assign(n_heads, 1.0F);
    if (max_bias <= 0.0F) {
        return;
    }
    const std::uint32_t power = std::bit_floor(n_heads);
    for (std::uint32_t h = 0; h < n_heads; ++h) {
        const float base = std::pow(2.0F, -(h < power ? max_bias : max_bias / 2.0F) / static_cast<float>(power));
        slopes[h] = std::pow(base, static_cast<float>(h < power ? h + 1 : 2 * (h - power) + 1));
    }
}

bool is_cache_type(ggml_type type) {
    return type == GGML_TYPE_F16 || type == GGML_TYPE_BF16 || type == GGML_TYPE_F32 || type == GGML_TYPE_Q8_0;
}

}  // namespace

bool is_attention(const ggml_tensor & node) {
    if (node.op != GGML_OP_FLASH_ATTN_EXT) {
        return false;
    }
    const ggml_tensor & q = *node.src[0];
    const ggml_tensor & k = *node.src[1];
    const ggml_tensor & v = *node.src[2];
    const ggml_tensor * const mask = node.src[3];
    return q.type == GGML_TYPE_F32 && q.nb[0] == sizeof(float) && is_cache_type(k.type) && is_cache_type(v.type) &&
           k.nb[0] == ggml_type_size(k.type) && v.nb[0] == ggml_type_size(v.type) && k.ne[2] == v.ne[2] &&
           k.ne[3] == q.ne[3] && q.ne[2] % k.ne[2] == 0 && q.ne[2] / k.ne[2] <= most_group &&
           (mask == nullptr ||
            (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2 && (mask->ne[2] == 1 || mask->ne[2] == q.ne[2])));
}

void run_attention(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team) {
    const ggml_tensor & q = *node.src[0];
    const ggml_tensor & k = *node.src[1];
    const ggml_tensor & v = *node.src[2];
    std::array<float, 3> params{};  // scale, ALiBi's bias, soft cap
    std::memcpy(params.data(), node.op_params, sizeof params);
    fill_slopes(scratch.slopes, static_cast<std::uint32_t>(q.ne[2]), params[1]);
    const bool narrow = q.ne[1] <= narrow_rows;
    Attention a{.node = node,
                .q = q,
                .k = k,
                .v = v,
                .mask = node.src[3],
                .n_rows = q.ne[1],
                .group = q.ne[2] / k.ne[2],
                .n_chunks = (k.ne[1] + chunk_cells - 1) / chunk_cells,
                .columns = pad16(static_cast<std::int32_t>(v.ne[0])),
                .block = narrow ? q.ne[1] : block_rows,
                .scale = params[2] != 0.0F ? params[0] / params[2] : params[0],
                .softcap = params[2],
                .slopes = scratch.slopes.data()};
    const std::int64_t n_blocks = (a.n_rows + a.block - 1) / a.block;
    const bool many_chunks = a.n_chunks * k.ne[3] >= chunks_per_thread * team.n_threads();
    a.heads_per_task = narrow && many_chunks ? k.ne[2] : 1;
    a.n_tasks = (narrow ? a.n_chunks : n_blocks) * k.ne[2] / a.heads_per_task * k.ne[3];
    a.n_shares = std::min<std::int64_t>(a.n_tasks, chunks_per_thread * team.n_threads());
    a.partial_floats = a.block * a.group * (a.columns + 2);
    a.share_floats = a.block * a.group * q.ne[0] +
                     attention_scratch(static_cast<std::int32_t>(a.block * a.group), chunk_cells,
                                       static_cast<std::int32_t>(q.ne[0]), static_cast<std::int32_t>(v.ne[0])) +
                     (narrow ? 0 : a.partial_floats);
    a.share_floats = pad16(static_cast<std::int32_t>(a.share_floats));  // no two threads write one cache line
    const std::int64_t n_partials = narrow ? a.n_chunks * k.ne[2] * k.ne[3] : 0;
    const auto needed = static_cast<std::size_t>(a.n_shares * a.share_floats + n_partials * a.partial_floats);
    if (scratch.attention.size() < needed) {
        scratch.attention.resize(needed);
    }
    a.shares = scratch.attention.data();
    a.partials = a.shares + a.n_shares * a.share_floats;
    team.run(static_cast<std::int32_t>(a.n_shares), narrow ? narrow_share : wide_share, &a);
    if (narrow) {
        const auto n_heads = static_cast<std::int32_t>(q.ne[2] * k.ne[3]);
        if (n_heads * a.n_rows * a.n_chunks < shared_merges) {
            for (std::int32_t head = 0; head < n_heads; ++head) {
                merge_head(&a, head);
            }
        } else {
            team.run(n_heads, merge_head, &a);
        }
    }
}

}  // namespace dflash::cpu
