// FLASH_ATTN_EXT: cells in chunks of 256, each chunk with its own maximum and sum, merged in order.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/kernels.h"
#include "neighbours.h"

namespace dflash::cpu {

namespace {

constexpr std::int32_t chunk_cells = 256;
constexpr std::int64_t narrow_rows = 32;   // batches up to this share out chunks of cells, wider ones rows
constexpr std::int64_t block_rows = 16;    // of wider batches

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
    std::int64_t tile_floats;
    std::int64_t partial_floats;  // of one (stream, K/V head, chunk)
    float scale;
    float softcap;
    std::vector<float> slopes;  // of query heads
    float * partials;
    float * tiles;            // of shares
    std::int64_t n_tasks;     // (stream, K/V head, chunk)
    std::int64_t n_shares;    // of tasks, each with one tile

    [[nodiscard]] float * partial(std::int64_t stream, std::int64_t head, std::int64_t chunk) const {
        return partials + ((stream * k.ne[2] + head) * n_chunks + chunk) * partial_floats;
    }
};

std::byte * at(const ggml_tensor & t, std::int64_t i1, std::int64_t i2, std::int64_t i3) {
    return static_cast<std::byte *>(t.data) + static_cast<std::size_t>(i1) * t.nb[1] + static_cast<std::size_t>(i2) * t.nb[2] +
           static_cast<std::size_t>(i3) * t.nb[3];
}

/// Rows [first, first + n) of a K/V head's query heads against one chunk; results of row r, head h at [r * group + h].
void attend_chunk(const Attention & a, std::int64_t stream, std::int64_t head, std::int64_t chunk, std::int64_t first, std::int64_t n,
                  float * tile_scratch, float * sums, float * out) {
    const std::int64_t head_size = a.q.ne[0];
    const auto tile_rows = static_cast<std::int32_t>(n * a.group);
    float * const queries = tile_scratch;
    float * const scratch = queries + tile_rows * head_size;
    std::vector<const ggml_fp16_t *> masks;
    std::vector<float> slopes;
    const std::int64_t cell = chunk * chunk_cells;
    for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t h = 0; h < a.group; ++h) {
            const std::int64_t query_head = head * a.group + h;
            const auto * const from = reinterpret_cast<const float *>(at(a.q, first + r, query_head, stream));
            float * const to = queries + (r * a.group + h) * head_size;
            for (std::int64_t d = 0; d < head_size; ++d) {
                to[d] = from[d] * a.scale;
            }
            if (a.mask != nullptr) {
                masks.push_back(reinterpret_cast<const ggml_fp16_t *>(
                                    at(*a.mask, first + r, query_head % a.mask->ne[2], stream % a.mask->ne[3])) +
                                cell);
                slopes.push_back(a.slopes[static_cast<std::size_t>(query_head)]);
            }
        }
    }
    AttentionTile tile;
    tile.queries = queries;
    tile.n_rows = tile_rows;
    tile.head_size = static_cast<std::int32_t>(head_size);
    tile.value_size = static_cast<std::int32_t>(a.v.ne[0]);
    tile.k_type = a.k.type;
    tile.v_type = a.v.type;
    tile.keys = at(a.k, cell, head, stream);
    tile.key_stride = static_cast<std::int64_t>(a.k.nb[1]);
    tile.values = at(a.v, cell, head, stream);
    tile.value_stride = static_cast<std::int64_t>(a.v.nb[1]);
    tile.n_cells = static_cast<std::int32_t>(std::min<std::int64_t>(chunk_cells, a.k.ne[1] - cell));
    tile.masks = a.mask != nullptr ? masks.data() : nullptr;
    tile.slopes = slopes.data();
    tile.softcap = a.softcap;
    tile.scratch = scratch;
    tile.sums = sums;
    tile.out = out;
    kernels().attend(tile);
}

void finish(const Attention & a, std::int64_t stream, std::int64_t query_head, std::int64_t row, Running & running, float * values) {
    if (a.node.src[4] != nullptr) {
        const float sink = static_cast<const float *>(a.node.src[4]->data)[query_head];
        const float highest = std::max(running.top, sink);
        const float weight = running.sum > 0.0F ? std::exp(running.top - highest) : 0.0F;
        running.sum = running.sum * weight + std::exp(sink - highest);
        for (std::int64_t d = 0; d < a.v.ne[0]; ++d) {
            values[d] *= weight;
        }
    }
    const float inverse = running.sum == 0.0F ? 0.0F : 1.0F / running.sum;
    auto * const out = reinterpret_cast<float *>(at(a.node, query_head, row, stream));
    for (std::int64_t d = 0; d < a.v.ne[0]; ++d) {
        out[d] = values[d] * inverse;
    }
}

void narrow_share(void * work, std::int32_t share) {
    const Attention & a = *static_cast<Attention *>(work);
    for (std::int64_t task = share; task < a.n_tasks; task += a.n_shares) {
        const std::int64_t chunk = task % a.n_chunks;
        const std::int64_t head = task / a.n_chunks % a.k.ne[2];
        const std::int64_t stream = task / a.n_chunks / a.k.ne[2];
        float * const partial = a.partial(stream, head, chunk);
        float * const sums = partial + a.n_rows * a.group * a.columns;
        attend_chunk(a, stream, head, chunk, 0, a.n_rows, a.tiles + share * a.tile_floats, sums, partial);
    }
}

void merge_row(void * work, std::int32_t index) {
    const Attention & a = *static_cast<Attention *>(work);
    const std::int64_t row = index % a.n_rows;
    const std::int64_t stream = index / a.n_rows;
    std::vector<float> values(static_cast<std::size_t>(a.columns));
    for (std::int64_t query_head = 0; query_head < a.q.ne[2]; ++query_head) {
        std::ranges::fill(values, 0.0F);
        Running running;
        const std::int64_t at_row = row * a.group + query_head % a.group;
        for (std::int64_t chunk = 0; chunk < a.n_chunks; ++chunk) {
            const float * const partial = a.partial(stream, query_head / a.group, chunk);
            const float * const sums = partial + a.n_rows * a.group * a.columns + 2 * at_row;
            merge(running, values.data(), sums[0], sums[1], partial + at_row * a.columns, a.columns);
        }
        finish(a, stream, query_head, row, running, values.data());
    }
}

void wide_block(void * work, std::int32_t index) {
    const Attention & a = *static_cast<Attention *>(work);
    const std::int64_t blocks = (a.n_rows + block_rows - 1) / block_rows;
    const std::int64_t first = index % blocks * block_rows;
    const std::int64_t head = index / blocks % a.k.ne[2];
    const std::int64_t stream = index / blocks / a.k.ne[2];
    const std::int64_t n = std::min(block_rows, a.n_rows - first);
    std::vector<float> scratch(static_cast<std::size_t>(a.tile_floats));
    std::vector<float> part(static_cast<std::size_t>(n * a.group * (a.columns + 2)));
    std::vector<float> values(static_cast<std::size_t>(n * a.group * a.columns));
    std::vector<Running> running(static_cast<std::size_t>(n * a.group));
    for (std::int64_t chunk = 0; chunk < a.n_chunks; ++chunk) {
        float * const sums = part.data() + n * a.group * a.columns;
        attend_chunk(a, stream, head, chunk, first, n, scratch.data(), sums, part.data());
        for (std::int64_t r = 0; r < n * a.group; ++r) {
            merge(running[static_cast<std::size_t>(r)], values.data() + r * a.columns, sums[2 * r], sums[2 * r + 1],
                  part.data() + r * a.columns, a.columns);
        }
    }
    for (std::int64_t r = 0; r < n * a.group; ++r) {
        finish(a, stream, head * a.group + r % a.group, first + r / a.group, running[static_cast<std::size_t>(r)],
               values.data() + r * a.columns);
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
           k.nb[0] == ggml_type_size(k.type) && v.nb[0] == ggml_type_size(v.type) && k.ne[2] == v.ne[2] && k.ne[3] == q.ne[3] &&
           q.ne[2] % k.ne[2] == 0 && (mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == 2));
}

void run_attention(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team) {
    Attention a{node, *node.src[0], *node.src[1], *node.src[2], node.src[3], node.src[0]->ne[1], node.src[0]->ne[2] / node.src[1]->ne[2],
                (node.src[1]->ne[1] + chunk_cells - 1) / chunk_cells, pad16(static_cast<std::int32_t>(node.src[2]->ne[0])), 0, 0, 0.0F, 0.0F, {}, nullptr, nullptr, 0, 0};
    float max_bias = 0.0F;
    std::memcpy(&a.scale, node.op_params, sizeof(float));
    std::memcpy(&max_bias, node.op_params + 1, sizeof(float));
    std::memcpy(&a.softcap, node.op_params + 2, sizeof(float));
    a.scale = a.softcap != 0.0F ? a.scale / a.softcap : a.scale;
    const auto n_heads = static_cast<std::uint32_t>(a.q.ne[2]);
    const std::uint32_t power = 1U << static_cast<std::uint32_t>(std::floor(std::log2(n_heads)));
    for (std::uint32_t h = 0; h < n_heads; ++h) {
        const float base = std::pow(2.0F, -(h < power ? max_bias : max_bias / 2.0F) / static_cast<float>(power));
        const auto exponent = static_cast<float>(h < power ? h + 1 : 2 * (h - power) + 1);
        a.slopes.push_back(max_bias > 0.0F ? std::pow(base, exponent) : 1.0F);
    }
    const bool narrow = a.n_rows <= narrow_rows;
    const std::int64_t rows = narrow ? a.n_rows : block_rows;
    a.tile_floats = rows * a.group * a.q.ne[0] +
                    attention_scratch(static_cast<std::int32_t>(rows * a.group), chunk_cells, static_cast<std::int32_t>(a.q.ne[0]),
                                      static_cast<std::int32_t>(a.v.ne[0]));
    if (!narrow) {
        const std::int64_t blocks = (a.n_rows + block_rows - 1) / block_rows;
        team.run(static_cast<std::int32_t>(blocks * a.k.ne[2] * a.k.ne[3]), wide_block, &a);
        return;
    }
    a.partial_floats = a.n_rows * a.group * (a.columns + 2);
    a.n_tasks = a.n_chunks * a.k.ne[2] * a.k.ne[3];
    a.n_shares = std::min<std::int64_t>(a.n_tasks, 4 * team.n_threads());
    scratch.attention.resize(std::max(scratch.attention.size(),
                                      static_cast<std::size_t>(a.n_tasks * a.partial_floats + a.n_shares * a.tile_floats)));
    a.partials = scratch.attention.data();
    a.tiles = a.partials + a.n_tasks * a.partial_floats;
    team.run(static_cast<std::int32_t>(a.n_shares), narrow_share, &a);
    team.run(static_cast<std::int32_t>(a.n_rows * a.k.ne[3]), merge_row, &a);
}

}  // namespace dflash::cpu
