// The same product by ggml's CPU backend, its weights repacked where it can.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "../packed_matrix.h"
#include "ggml-backend.h"

namespace dflash::cpu {

class GgmlProduct {
  public:
    /// `rows`: 16 rows that make up the matrix again and again.
    GgmlProduct(const MatrixShape & shape, const std::vector<std::byte> & rows, std::size_t copies, int n_threads)
        : backend_(cpu()), shape_(shape) {
        ggml_backend_reg_t const reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_.get()));
        reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))(backend_.get(), n_threads);
        weights_ctx_.reset(ggml_init({ggml_tensor_overhead() * (copies + 1), nullptr, true}));
        for (std::size_t i = 0; i < copies; ++i) {
            weights_.push_back(ggml_new_tensor_2d(weights_ctx_.get(), shape.type, shape.n_cols, shape.n_rows));
        }
        buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(weights_ctx_.get(), weights_type()));
        std::vector<std::byte> all(ggml_nbytes(weights_[0]));
        for (std::size_t at = 0; at < all.size(); at += rows.size()) {
            std::copy_n(rows.begin(), std::min(rows.size(), all.size() - at),
                        all.begin() + static_cast<std::ptrdiff_t>(at));
        }
        for (ggml_tensor * const weight : weights_) {
            ggml_backend_tensor_set(weight, all.data(), 0, all.size());
        }
    }

    /// Multiply-adds a second; the best of seven.
    double measure(const std::vector<float> & x, std::int64_t n) {
        const std::unique_ptr<ggml_context, Free> ctx(
            ggml_init({ggml_tensor_overhead() * (2 * weights_.size() + 2) + ggml_graph_overhead(), nullptr, true}));
        ggml_tensor * const input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, shape_.n_cols, n);
        ggml_cgraph * const graph = ggml_new_graph(ctx.get());
        for (ggml_tensor * const weight : weights_) {
            ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), weight, input));
        }
        const std::unique_ptr<ggml_backend_buffer, Free> buffer(
            ggml_backend_alloc_ctx_tensors(ctx.get(), backend_.get()));
        ggml_backend_tensor_set(input, x.data(), 0, x.size() * sizeof(float));
        double best = 1e9;
        for (int turn = 0; turn < 7; ++turn) {
            const auto start = std::chrono::steady_clock::now();
            ggml_backend_graph_compute(backend_.get(), graph);
            best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
        return static_cast<double>(shape_.n_cols * shape_.n_rows * n) * static_cast<double>(weights_.size()) / best;
    }

  private:
    struct Free {
        void operator()(ggml_context * p) const { ggml_free(p); }
        void operator()(ggml_backend_buffer_t p) const { ggml_backend_buffer_free(p); }
        void operator()(ggml_backend_t p) const { ggml_backend_free(p); }
    };

    [[nodiscard]] static ggml_backend_t cpu() {
        ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);  // a line for every tensor that is repacked
        return ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    }

    /// A buffer type of the CPU's device that repacks for this product, or its plain one.
    [[nodiscard]] ggml_backend_buffer_type_t weights_type() {
        ggml_backend_dev_t const device = ggml_backend_get_device(backend_.get());
        auto * const extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
        for (ggml_backend_buffer_type_t * type = extra == nullptr ? nullptr : extra(device);
             type != nullptr && *type != nullptr; ++type) {
            const std::unique_ptr<ggml_context, Free> ctx(ggml_init({ggml_tensor_overhead() * 4, nullptr, true}));
            ggml_tensor * const weight = ggml_new_tensor_2d(ctx.get(), shape_.type, shape_.n_cols, shape_.n_rows);
            const std::unique_ptr<ggml_backend_buffer, Free> buffer(ggml_backend_buft_alloc_buffer(*type, 0));
            weight->buffer = buffer.get();
            ggml_tensor * const x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, shape_.n_cols, 8);
            const bool takes = ggml_backend_dev_supports_op(device, ggml_mul_mat(ctx.get(), weight, x));
            weight->buffer = nullptr;
            if (takes) {
                return *type;
            }
        }
        return ggml_backend_get_default_buffer_type(backend_.get());
    }

    std::unique_ptr<ggml_backend, Free> backend_;
    MatrixShape shape_;
    std::unique_ptr<ggml_context, Free> weights_ctx_;
    std::vector<ggml_tensor *> weights_;
    std::unique_ptr<ggml_backend_buffer, Free> buffer_;
};

}  // namespace dflash::cpu
