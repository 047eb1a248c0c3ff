// The target's llama.cpp context: decoding, cancelling, and tapping hidden states by either of two ways.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace dflash {

enum class TapMode : std::uint8_t {
    automatic,    // layer_input where layers lie on a device and the architecture exports it, else callback
    callback,     // the public cb_eval on `l_out-<i>`: copies the wanted rows, cuts the graph at each tap
    layer_input,  // llama_set_embeddings_layer_inp: no cut, copies every row of the batch
};

/// One row of a target batch, sequence 0.
struct Row {
    llama_token token;
    llama_pos pos;
    bool logits;
};

/// Owns a llama_context of the given target and reads the taps of each batch.
/// Not thread-safe but for cancel().
class TargetContext {
  public:
    /// Called now and then inside a batch, on the decoding thread; true stops the batch.
    using InterruptPoll = std::function<bool()>;

    /// `tap_inputs`: GGUF numbers (the INPUT of layer i, 1..n_layer); empty for no taps. A dry decode checks that each
    /// tap is there. Throws Error: incompatible_drafter (field target_layers), out_of_memory, unsupported.
    TargetContext(llama_model * model, llama_context_params params, std::vector<std::int32_t> tap_inputs, TapMode mode);
    TargetContext(const TargetContext &) = delete;
    TargetContext & operator=(const TargetContext &) = delete;
    ~TargetContext();

    [[nodiscard]] llama_context * get() const noexcept;
    [[nodiscard]] const llama_model * model() const noexcept;
    [[nodiscard]] std::int32_t n_ctx() const noexcept;
    [[nodiscard]] std::int32_t n_chunk() const noexcept;  // most rows of one decode: one physical batch
    [[nodiscard]] TapMode tap_mode() const noexcept;
    [[nodiscard]] std::int32_t feature_size() const noexcept;  // n_taps x n_embd, 0 without taps
    [[nodiscard]] std::size_t tap_bytes() const noexcept;      // buffers held for taps

    /// Decodes the rows and synchronizes. With `tap`, taps() then holds every row. Throws Error: cancelled,
    /// context_overflow (no cell left), decode_failed; then rows may be left in the memory: remove them. A CPU stops
    /// inside a batch, devices before the next one.
    void decode(std::span<const Row> rows, bool tap);

    /// Taps of the last decode, [n_rows x feature_size()], of a row one tap after the other.
    [[nodiscard]] std::span<const float> taps() const noexcept;

    /// Removes positions >= pos. False where the memory cannot (recurrent state, or an evicted window): then it is
    /// empty.
    bool rewind(llama_pos pos);

    void cancel() noexcept;  // from any thread
    void clear_cancel() noexcept;
    void set_interrupt_poll(InterruptPoll poll);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The GPU that holds the target's head; null: the CPU computes its logits.
[[nodiscard]] ggml_backend_dev_t head_device(const llama_model * model);

/// Does this architecture assign the layer inputs that layer_input reads? It aborts on others.
[[nodiscard]] bool exports_layer_inputs(const std::string & architecture);

}  // namespace dflash
