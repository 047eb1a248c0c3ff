// Small graphs whose nodes are computed by the backend's own operations and, for comparison, by ggml's CPU backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "../neighbours.h"
#include "ggml-backend.h"
#include "ggml.h"

namespace dflash::cpu {

class GraphCase {
  public:
    explicit GraphCase(std::size_t bytes = std::size_t{64} << 20U)
        : ctx_(ggml_init({bytes, nullptr, false}), ggml_free) {}

    [[nodiscard]] ggml_context * ctx() const { return ctx_.get(); }

    /// Uniform in [-1, 1); quantized types get the nearest they hold.
    ggml_tensor * random(ggml_type type, std::int64_t ne0, std::int64_t ne1 = 1, std::int64_t ne2 = 1,
                         std::int64_t ne3 = 1) {
        ggml_tensor * const t = ggml_new_tensor_4d(ctx(), type, ne0, ne1, ne2, ne3);
        std::vector<float> values(static_cast<std::size_t>(ggml_nelements(t)));
        for (float & x : values) {
            state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
            x = static_cast<float>(static_cast<std::int32_t>(state_ >> 32U)) * 0x1p-31F;
        }
        if (type == GGML_TYPE_F32) {
            std::memcpy(t->data, values.data(), ggml_nbytes(t));
        } else {
            ggml_quantize_chunk(type, values.data(), t->data, 0, ggml_nrows(t), ne0, nullptr);
        }
        return t;
    }

    template <typename T>
    ggml_tensor * ints(ggml_type type, const std::vector<T> & values) {
        ggml_tensor * const t = ggml_new_tensor_1d(ctx(), type, static_cast<std::int64_t>(values.size()));
        std::memcpy(t->data, values.data(), ggml_nbytes(t));
        return t;
    }

    /// The contiguous node's bytes after our operation has run; empty where it is refused.
    [[nodiscard]] static std::vector<float> ours(const ggml_tensor & node, std::int32_t n_threads = 1) {
        ThreadTeam team(n_threads);
        Scratch scratch;
        if (is_attention(node)) {
            run_attention(node, scratch, team);
        } else if (is_neighbour(node)) {
            run_neighbour(node, scratch, team);
        } else {
            return {};
        }
        return values(node);
    }

    /// The same by ggml, which also computes what the node depends on.
    [[nodiscard]] std::vector<float> ggmls(ggml_tensor * node) const {
        ggml_cgraph * const graph = ggml_new_graph(ctx());
        ggml_build_forward_expand(graph, node);
        const std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> backend(
            ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr), ggml_backend_free);
        ggml_backend_graph_compute(backend.get(), graph);
        return values(*node);
    }

    [[nodiscard]] static std::vector<float> values(const ggml_tensor & node) {
        const auto n = static_cast<std::size_t>(ggml_nelements(&node));
        std::vector<float> out(n);
        if (node.type == GGML_TYPE_F32) {
            std::memcpy(out.data(), node.data, n * sizeof(float));
        } else {
            ggml_get_type_traits(node.type)->to_float(node.data, out.data(), static_cast<std::int64_t>(n));
        }
        return out;
    }

  private:
    std::unique_ptr<ggml_context, decltype(&ggml_free)> ctx_;
    std::uint64_t state_ = 11;
};

}  // namespace dflash::cpu
