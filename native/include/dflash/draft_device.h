// One ggml device with its backend: which buffer a weight goes to, which tensors it may multiply with, how it runs a
// graph.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <cstdint>
#include <vector>

namespace dflash {

/// A graph in runs of nodes for one backend each.
struct GraphRuns {
    struct Run {
        ggml_backend_t backend;
        ggml_cgraph * graph;
    };
    ggml_context_ptr ctx;  // of the runs' graphs; null where there is but the whole graph
    std::vector<Run> runs;
};

class DraftDevice {
  public:
    /// device null: the CPU. The one of our CPU kernels leaves what it does not support to the CPU. Throws
    /// Error(unsupported) where no backend starts on it.
    explicit DraftDevice(ggml_backend_dev_t device);

    [[nodiscard]] ggml_backend_dev_t device() const { return device_; }
    /// In host memory, by threads of this process?
    [[nodiscard]] bool is_cpu() const;
    [[nodiscard]] ggml_backend_buffer_type_t buffer_type() const;
    void set_n_threads(std::int32_t n_threads);  // no effect on devices that have no such setting

    /// Best buffer type for a matrix [ne0 x ne1] that MUL_MAT reads (repacking ones first), null where the device has
    /// none.
    [[nodiscard]] ggml_backend_buffer_type_t weight_buffer_type(ggml_type type, std::int64_t ne0,
                                                                std::int64_t ne1) const;

    /// Can this loaded tensor, wherever it lies, be MUL_MAT's weight here?
    [[nodiscard]] bool can_multiply(const ggml_tensor * weight) const;

    /// Throws Error(unsupported, "device") naming the first operation of the graph that this device cannot run.
    void require(ggml_cgraph * graph) const;

    /// Of an allocated graph that `require` has let pass; it must outlive the runs.
    [[nodiscard]] GraphRuns split(ggml_cgraph * graph) const;
    [[nodiscard]] static ggml_status compute(const GraphRuns & runs);

    /// Do tensors of one graph stay usable when another graph is allocated in the same buffer? Not where the backend
    /// frees its side data of a buffer at every allocation.
    [[nodiscard]] bool keeps_graphs() const;

  private:
    [[nodiscard]] std::vector<ggml_backend_dev_t> devices() const;  // that may run a part of a graph
    [[nodiscard]] bool supports(const ggml_tensor * node) const;

    ggml_backend_dev_t device_;
    ggml_backend_ptr backend_;
    ggml_backend_ptr cpu_;  // beside that of our kernels
};

/// Types whose rows ggml can both multiply and dequantize.
[[nodiscard]] bool is_weight_type(ggml_type type);

}  // namespace dflash
