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

/// Most sequence ids of one context: 0 holds the conversation, the others its prefix while trees are verified.
constexpr std::int32_t max_sequences = 32;

/// One row of a target batch.
struct Row {
    llama_token token;
    llama_pos pos;
    bool logits;
    std::uint32_t seqs = 1;  // bit s: the row belongs to sequence s
};

/// Owns a llama_context of the given target and reads the taps of each batch.
/// Not thread-safe but for cancel().
class TargetContext {
  public:
    /// Called now and then inside a batch, on the decoding thread; true stops the batch.
    using InterruptPoll = std::function<bool()>;

    /// `tap_inputs`: GGUF numbers (the INPUT of layer i, 1..n_layer); empty for no taps. A dry decode checks that each
    /// tap is there. params.n_seq_max becomes 1 where max_leaves() must be 1. Throws Error: incompatible_drafter (field
    /// target_layers), out_of_memory, unsupported.
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

    /// Removes positions >= pos from all sequences. False where the memory cannot (recurrent state, or an evicted
    /// window): then it is empty.
    bool rewind(llama_pos pos);

    /// Most leaves of a tree of rows, one sequence id each. 1, chains only: the target's memory is not dense attention
    /// alone, or the context was made without unified K/V or with n_seq_max 1.
    [[nodiscard]] std::int32_t max_leaves() const noexcept;
    /// Before a tree at `pos`: sequences 1 .. n_leaves - 1 get the positions < pos of sequence 0. Throws
    /// invalid_argument beyond max_leaves().
    void share_prefix(std::int32_t n_leaves, llama_pos pos);
    /// After a tree at `pos`: the cells of `leaf` at positions [pos, end) stay and belong to sequence 0 alone, those of
    /// all other rows of the tree are free again.
    void keep_leaf(std::int32_t leaf, llama_pos pos, llama_pos end);

    void cancel() noexcept;  // from any thread
    void clear_cancel() noexcept;
    void set_interrupt_poll(InterruptPoll poll);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

[[nodiscard]] bool is_gpu(ggml_backend_dev_t device);

/// The GPU that holds the target's head, or the device of our CPU kernels; null: ggml's CPU backend computes its
/// logits.
[[nodiscard]] ggml_backend_dev_t head_device(const llama_model * model);

/// Does this architecture assign the layer inputs that layer_input reads? It aborts on others.
[[nodiscard]] bool exports_layer_inputs(const std::string & architecture);

}  // namespace dflash
