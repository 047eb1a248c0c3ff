// Weights and graphs of a DFlash drafter on one ggml backend, and the K/V context of a conversation.
#pragma once

#include <ggml-backend.h>
#include <llama.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dflash/gguf_reader.h"
#include "dflash/pair_spec.h"

namespace dflash {

struct DrafterParams {
    std::int32_t n_ctx = 0;               // cells of the drafter's context; 0: its window, bounded by default_draft_ctx
    std::int32_t n_threads = 1;           // CPU only
    std::int32_t top_k = 8;               // candidates per slot
    ggml_backend_dev_t device = nullptr;  // null: CPU
};

constexpr std::int32_t default_draft_ctx = 4096;
constexpr std::int32_t max_pending_rows = 32;  // features that a session buffers before they are injected in bulk
constexpr std::int32_t all_slots = 1 << 16;    // more than any block has

/// Bytes that drafting adds, printed before anything is loaded and checked against the truth in a test.
struct DraftMemory {
    std::size_t weights = 0;
    std::size_t context = 0;  // K/V
    std::size_t compute = 0;
    std::size_t taps = 0;  // tap buffers on the target's side
    [[nodiscard]] std::size_t total() const { return weights + context + compute + taps; }
};

/// Candidates of the slots after the anchor, best first.
struct DraftCandidates {
    std::int32_t n_slots = 0;  // block_size - 1, or fewer where fewer were asked for
    std::int32_t top_k = 0;
    std::vector<std::int32_t> ids;  // [n_slots x top_k], target token ids
    std::vector<float> log_probs;   // [n_slots x top_k], log-softmax over the head's vocabulary
};

/// K/V of one conversation: a ring over positions [begin, end). Made by Drafter::new_context.
class DraftContext {
  public:
    virtual ~DraftContext() = default;
    [[nodiscard]] virtual std::int32_t begin() const = 0;
    [[nodiscard]] virtual std::int32_t end() const = 0;
    [[nodiscard]] virtual std::int32_t capacity() const = 0;
    /// Forgets positions >= pos. Below begin() the interval becomes the empty [pos, pos).
    virtual void rewind(std::int32_t pos) = 0;
    /// Forgets all; the next injection may start anywhere.
    virtual void clear() = 0;
    /// K/V of [begin, end) with the interval; `restore` throws Error(invalid_argument) on bytes of another drafter.
    [[nodiscard]] virtual std::vector<std::byte> save() const = 0;
    virtual void restore(std::span<const std::byte> bytes) = 0;
};

class Drafter {
  public:
    /// Borrows the target's embedding rows (from its file) and head (its loaded tensor where the backend may use it as
    /// a MUL_MAT weight, else from its file). `target` may be null for a drafter that has both of its own. The files
    /// are not needed afterwards. Throws Error: incompatible_drafter, model_load, out_of_memory, unsupported.
    Drafter(const GgufFile & drafter_file, const GgufFile & target_file, const llama_model * target,
            const DrafterParams & params);
    Drafter(const Drafter &) = delete;
    Drafter & operator=(const Drafter &) = delete;
    ~Drafter();

    [[nodiscard]] const DrafterSpec & spec() const;
    [[nodiscard]] DraftMemory memory() const;         // what is in use now; taps is 0 here
    [[nodiscard]] std::int32_t feature_size() const;  // floats per tapped row: n_taps x target n_embd
    [[nodiscard]] ggml_backend_dev_t device() const;
    void set_n_threads(std::int32_t n_threads);

    [[nodiscard]] std::unique_ptr<DraftContext> new_context() const;

    /// Writes K/V of n rows at positions pos0.. from taps [n x feature_size()]. A gap after end() empties the context
    /// first; positions already there are overwritten from pos0 on.
    void inject(DraftContext & ctx, std::int32_t pos0, std::span<const float> taps);

    /// Injects `taps` (may be empty) at pos0, then runs one block whose anchor sits at position ctx.end(), in one
    /// graph. The block is always whole; at least its first `n_slots` slots get candidates, so that the head skips the
    /// others. Throws Error(decode_failed); the context then holds what it held before, less the cells that `taps` had
    /// taken, and nothing where the probabilities came out as no numbers.
    void draft(DraftContext & ctx, std::int32_t pos0, std::span<const float> taps, llama_token anchor,
               DraftCandidates & out, std::int32_t n_slots = all_slots);

    /// Bytes the constructor and one context will take, from the files alone; taps as for a target batch of n_batch
    /// rows, with what tapping takes besides where layers of the target lie on a device.
    static DraftMemory estimate(const GgufFile & drafter_file, const GgufFile & target_file,
                                const DrafterParams & params, std::int32_t n_batch, bool layers_on_device);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
