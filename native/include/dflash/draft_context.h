// K/V of one conversation on a device: block cells first, then a ring of context cells, then a scratch cell.
#pragma once

#include <ggml-cpp.h>
#include <ggml.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "dflash/draft_device.h"
#include "dflash/draft_graph_dflash.h"
#include "dflash/drafter.h"

namespace dflash {

/// Which positions a ring of cells holds. Pure bookkeeping.
class RingInterval {
  public:
    explicit RingInterval(std::int32_t capacity) : capacity_(capacity) {}

    [[nodiscard]] std::int32_t begin() const { return begin_; }
    [[nodiscard]] std::int32_t end() const { return end_; }
    [[nodiscard]] std::int32_t size() const { return end_ - begin_; }
    [[nodiscard]] std::int32_t capacity() const { return capacity_; }
    /// Adjacent cells [cell, cell + count) with the positions from `pos` on; at most two runs, count 0 where unused.
    struct Run {
        std::int32_t cell = 0;
        std::int32_t count = 0;
        std::int32_t pos = 0;
    };
    [[nodiscard]] std::array<Run, 2> runs() const;
    /// Ring cell of a position at or after the first one injected since the ring was empty.
    [[nodiscard]] std::int32_t cell(std::int32_t pos) const { return (pos - origin_) % capacity_; }
    /// Cells [0, n) hold all positions of the interval.
    [[nodiscard]] std::int32_t cells_in_use() const;

    void rewind(std::int32_t pos);
    void clear() { reset(0); }
    /// Drops whatever n rows at pos0 would overwrite or leave a gap after; n <= capacity.
    void evict(std::int32_t pos0, std::int32_t n);
    /// The n rows at pos0 are there now; only after evict with the same arguments.
    void commit(std::int32_t pos0, std::int32_t n) { end_ = pos0 + n; }

  private:
    void reset(std::int32_t pos) { begin_ = end_ = origin_ = pos; }

    std::int32_t capacity_;
    std::int32_t begin_ = 0;
    std::int32_t end_ = 0;
    std::int32_t origin_ = 0;
};

/// Shape of the K/V of one drafter.
struct KvLayout {
    std::int32_t n_layer = 0;
    std::int32_t n_embd_kv = 0;
    std::int32_t block_size = 0;
    std::int32_t capacity = 0;
    ggml_type type = GGML_TYPE_F16;
    std::uint64_t fingerprint = 0;  // of the drafter, so that saved K/V returns to the same one only

    [[nodiscard]] std::int32_t n_cells() const;
    [[nodiscard]] std::int32_t scratch_cell() const { return block_size + capacity; }
    [[nodiscard]] std::size_t bytes() const;
};

/// Tensors of a layout in a context of their own, not allocated.
struct KvCache {
    explicit KvCache(const KvLayout & layout);

    ggml_context_ptr ctx;
    ggml_backend_buffer_ptr buffer;
    KvTensors tensors;
};

class RingContext final : public DraftContext {
  public:
    /// `bytes_in_use` counts the K/V of all contexts of one drafter. Throws Error(out_of_memory).
    RingContext(const KvLayout & layout, std::shared_ptr<const DraftDevice> device,
                std::shared_ptr<std::atomic<std::size_t>> bytes_in_use);
    RingContext(const RingContext &) = delete;
    RingContext & operator=(const RingContext &) = delete;
    ~RingContext() override;

    [[nodiscard]] std::int32_t begin() const override { return interval_.begin(); }
    [[nodiscard]] std::int32_t end() const override { return interval_.end(); }
    [[nodiscard]] std::int32_t capacity() const override { return interval_.capacity(); }
    void rewind(std::int32_t pos) override;
    void clear() override { interval_.clear(); }
    [[nodiscard]] std::vector<std::byte> save() const override;
    void restore(std::span<const std::byte> bytes) override;

    /// Empties the context and zeroes its cells: masked cells are multiplied by zero and must not hold NaN.
    void wipe();
    [[nodiscard]] RingInterval & interval() { return interval_; }
    [[nodiscard]] const KvLayout & layout() const { return layout_; }
    [[nodiscard]] const KvTensors & kv() const { return cache_.tensors; }

    std::map<DraftShape, std::unique_ptr<DraftGraph>> graphs;  // over this context's tensors, made by the drafter

  private:
    KvLayout layout_;
    std::shared_ptr<const DraftDevice> device_;
    std::shared_ptr<std::atomic<std::size_t>> bytes_in_use_;
    KvCache cache_;
    RingInterval interval_;
};

}  // namespace dflash
