// Activations are prepared once for all products that read them; groups of weight rows are shared among threads.
#include "product.h"

#include <algorithm>
#include <array>
#include <span>

#include "packed_matrix.h"
#include "weight_buffer.h"

namespace dflash::cpu {

namespace {

constexpr std::int64_t most_rows = 32;        // of one call of the kernels
constexpr std::int64_t shared_values = 4096;  // fewer to prepare are not worth a second thread
constexpr std::int32_t chunks_per_thread = 4;

struct Product {
    const ggml_tensor * node = nullptr;
    MatrixShape shape;
    std::byte * activations = nullptr;
    std::size_t stride = 0;                      // between activation rows
    std::int64_t n_rows = 0;                     // of activations
    std::int64_t n_chunks = 0;                   // of rows while preparing, of groups while multiplying
    const std::int64_t * picks = nullptr;        // output rows of a product with experts, by expert
    const std::int64_t * picks_begin = nullptr;  // [n_experts + 1]
};

void prepare_chunk(void * work, std::int32_t chunk) {
    const Product & p = *static_cast<Product *>(work);
    const ggml_tensor & input = *p.node->src[1];
    for (std::int64_t r = chunk * p.n_rows / p.n_chunks; r < (chunk + 1) * p.n_rows / p.n_chunks; ++r) {
        prepare_activation(p.shape.type, {row_of(input, r), static_cast<std::size_t>(input.ne[0])},
                           p.activations + static_cast<std::size_t>(r) * p.stride);
    }
}

/// Groups [first, last) of one matrix times n rows; `input` and `output` tell row i's activation and result.
template <typename Input, typename Output>
void multiply_rows(const Product & p, const std::byte * groups, std::int64_t first, std::int64_t last, std::int64_t n,
                   const Input & input, const Output & output) {
    for (std::int64_t r = 0; r < n; r += most_rows) {
        std::array<const std::byte *, most_rows> from{};
        std::array<float *, most_rows> to{};
        const auto count = static_cast<std::size_t>(std::min(most_rows, n - r));
        for (std::size_t i = 0; i < count; ++i) {
            from[i] = p.activations + static_cast<std::size_t>(input(r + static_cast<std::int64_t>(i))) * p.stride;
            to[i] = output(r + static_cast<std::int64_t>(i));
        }
        multiply(p.shape, groups, first, last, std::span(from).first(count), std::span(to).first(count));
    }
}

void multiply_chunk(void * work, std::int32_t chunk) {
    const Product & p = *static_cast<Product *>(work);
    const std::int64_t groups = n_groups(p.shape);
    multiply_rows(
        p, groups_of(*p.node->src[0], 0), chunk * groups / p.n_chunks, (chunk + 1) * groups / p.n_chunks, p.n_rows,
        [](std::int64_t r) { return r; }, [&](std::int64_t r) { return row_of(*p.node, r); });
}

/// One share of every expert's groups.
void multiply_experts(void * work, std::int32_t chunk) {
    const Product & p = *static_cast<Product *>(work);
    const std::int64_t groups = n_groups(p.shape);
    const std::int64_t per_token = p.node->src[1]->ne[1];  // 1: one input for all of a token's experts
    const std::int64_t n_used = p.node->ne[1];
    for (std::int64_t expert = 0; expert < p.node->src[0]->ne[2]; ++expert) {
        const std::span picks(p.picks + p.picks_begin[expert], p.picks + p.picks_begin[expert + 1]);
        if (picks.empty()) {
            continue;
        }
        multiply_rows(
            p, groups_of(*p.node->src[0], expert), chunk * groups / p.n_chunks, (chunk + 1) * groups / p.n_chunks,
            static_cast<std::int64_t>(picks.size()),
            [&](std::int64_t i) {
                const std::int64_t pick = picks[static_cast<std::size_t>(i)];
                return pick / n_used * per_token + pick % n_used % per_token;
            },
            [&](std::int64_t i) { return row_of(*p.node, picks[static_cast<std::size_t>(i)]); });
    }
}

/// Sorts the output rows, counted over experts and tokens, by their expert. False: an id is out of range.
bool sort_picks(const ggml_tensor & node, Scratch & scratch) {
    const ggml_tensor & ids = *node.src[2];
    const auto n_experts = static_cast<std::size_t>(node.src[0]->ne[2]);
    const std::int64_t n = node.ne[1] * node.ne[2];
    const auto expert_of = [&](std::int64_t pick) {
        return *reinterpret_cast<const std::int32_t *>(
            reinterpret_cast<const std::byte *>(row_of(ids, pick / node.ne[1], 0, 0)) +
            static_cast<std::size_t>(pick % node.ne[1]) * ids.nb[0]);
    };
    scratch.picks_begin.assign(n_experts + 1, 0);
    for (std::int64_t pick = 0; pick < n; ++pick) {
        const std::int32_t expert = expert_of(pick);
        if (expert < 0 || static_cast<std::size_t>(expert) >= n_experts) {
            return false;
        }
        ++scratch.picks_begin[static_cast<std::size_t>(expert) + 1];
    }
    for (std::size_t e = 0; e < n_experts; ++e) {
        scratch.picks_begin[e + 1] += scratch.picks_begin[e];
    }
    grow(scratch.picks, static_cast<std::size_t>(n));
    for (std::int64_t pick = n; pick-- > 0;) {
        // From the back, so that an expert's begin ends where it stood; its end is the next one's begin.
        scratch.picks[static_cast<std::size_t>(--scratch.picks_begin[static_cast<std::size_t>(expert_of(pick)) + 1])] =
            pick;
    }
    // Every begin has moved to the place of the one before it.
    scratch.picks_begin.erase(scratch.picks_begin.begin());
    scratch.picks_begin.push_back(n);
    return true;
}

void prepare(Product & p, Scratch & scratch, ThreadTeam & team) {
    const ggml_tensor & input = *p.node->src[1];
    p.n_rows = ggml_nrows(&input);
    p.stride = activation_bytes(p.shape.type, input.ne[0]);
    const std::int32_t form = activation_form(p.shape.type);
    const bool known = scratch.prepared == &input && scratch.prepared_form == form;
    grow(scratch.activations, p.stride * static_cast<std::size_t>(p.n_rows));
    p.activations = scratch.activations.data();
    if (known) {
        return;
    }
    const bool shared = p.n_rows > 1 && p.n_rows * input.ne[0] >= shared_values;
    p.n_chunks = shared ? std::min<std::int64_t>(p.n_rows, chunks_per_thread * team.n_threads()) : 1;
    team.run(static_cast<std::int32_t>(p.n_chunks), prepare_chunk, &p);
    scratch.prepared = &input;
    scratch.prepared_form = form;
}

struct Lookup {
    const ggml_tensor * node;
    std::byte * rows;
    std::size_t row_bytes;
    std::int64_t n_shares;
};

void look_up(void * work, std::int32_t share) {
    const Lookup & l = *static_cast<Lookup *>(work);
    const ggml_tensor & weight = *l.node->src[0];
    const MatrixShape shape = shape_of(weight);
    const std::size_t bytes = group_bytes(shape);
    const std::span row(l.rows + static_cast<std::size_t>(share) * l.row_bytes, l.row_bytes);
    const std::int64_t n = l.node->ne[1];
    for (std::int64_t i = share * n / l.n_shares; i < (share + 1) * n / l.n_shares; ++i) {
        const std::int32_t id = static_cast<const std::int32_t *>(l.node->src[1]->data)[i];
        unpack_row(shape, {groups_of(weight, 0) + static_cast<std::size_t>(id / group_rows) * bytes, bytes},
                   static_cast<std::int32_t>(id % group_rows), row);
        ggml_get_type_traits(shape.type)->to_float(row.data(), row_of(*l.node, i), shape.n_cols);
    }
}

}  // namespace

bool is_product(const ggml_tensor & node) {
    if ((node.op != GGML_OP_MUL_MAT && node.op != GGML_OP_MUL_MAT_ID) || !is_packed(*node.src[0])) {
        return false;
    }
    const ggml_tensor & weight = *node.src[0];
    const ggml_tensor & input = *node.src[1];
    const bool fits = node.op == GGML_OP_MUL_MAT
                          ? weight.ne[2] == 1
                          : node.src[2]->type == GGML_TYPE_I32 && input.ne[3] == 1 && node.ne[3] == 1;
    return fits && weight.ne[3] == 1 && input.type == GGML_TYPE_F32 && input.nb[0] == sizeof(float) &&
           node.type == GGML_TYPE_F32 && node.nb[0] == sizeof(float);
}

void run_product(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team) {
    Product p{.node = &node, .shape = shape_of(*node.src[0])};
    prepare(p, scratch, team);
    const std::int64_t groups = n_groups(p.shape);
    p.n_chunks = std::min<std::int64_t>(groups, chunks_per_thread * team.n_threads());
    if (node.op == GGML_OP_MUL_MAT) {
        team.run(static_cast<std::int32_t>(p.n_chunks), multiply_chunk, &p);
        return;
    }
    if (!sort_picks(node, scratch)) {
        throw BadGraph();
    }
    p.picks = scratch.picks.data();
    p.picks_begin = scratch.picks_begin.data();
    team.run(static_cast<std::int32_t>(p.n_chunks), multiply_experts, &p);
}

bool is_lookup(const ggml_tensor & node) {
    if (node.op != GGML_OP_GET_ROWS || !is_packed(*node.src[0])) {
        return false;
    }
    const ggml_tensor & ids = *node.src[1];
    return node.src[0]->ne[2] == 1 && node.src[0]->ne[3] == 1 && node.type == GGML_TYPE_F32 &&
           ids.type == GGML_TYPE_I32 && ids.ne[1] == 1 && ids.ne[2] == 1 && ids.ne[3] == 1 && ggml_is_contiguous(&ids);
}

void run_lookup(const ggml_tensor & node, Scratch & scratch, ThreadTeam & team) {
    const ggml_tensor & ids = *node.src[1];
    const std::span all(static_cast<const std::int32_t *>(ids.data), static_cast<std::size_t>(ids.ne[0]));
    if (!std::ranges::all_of(all, [&](std::int32_t id) { return id >= 0 && id < node.src[0]->ne[1]; })) {
        throw BadGraph();
    }
    Lookup l{&node, nullptr, ggml_row_size(node.src[0]->type, node.src[0]->ne[0]), 1};
    l.n_shares = node.ne[0] * node.ne[1] < shared_values
                     ? 1
                     : std::min<std::int64_t>(node.ne[1], chunks_per_thread * team.n_threads());
    grow(scratch.rows, l.row_bytes * static_cast<std::size_t>(l.n_shares));
    l.rows = scratch.rows.data();
    team.run(static_cast<std::int32_t>(l.n_shares), look_up, &l);
}

}  // namespace dflash::cpu
