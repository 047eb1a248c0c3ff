// The ring of a conversation's draft K/V: which positions it holds, where, and how it is saved and restored.
#include "dflash/draft_context.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::int32_t cell_padding = 32;  // rows of V start on cache lines

struct SavedHeader {
    std::array<char, 4> magic{'D', 'F', 'K', 'V'};
    std::uint32_t version = 1;
    std::uint64_t fingerprint = 0;
    std::int32_t n_layer = 0;
    std::int32_t n_embd_kv = 0;
    std::int32_t type = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::int32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<SavedHeader> && sizeof(SavedHeader) == 40);

[[noreturn]] void refuse(const std::string & message) {
    throw Error(ErrorCode::invalid_argument, "saved draft context: " + message, "state");
}

}  // namespace

std::int32_t RingInterval::cells_in_use() const {
    if (size() == 0) {
        return 0;
    }
    const std::int32_t last = cell(end_ - 1);
    return last - cell(begin_) == size() - 1 ? last + 1 : capacity_;
}

std::array<RingInterval::Run, 2> RingInterval::runs() const {
    const std::int32_t first = size() > 0 ? cell(begin_) : 0;
    const std::int32_t n_first = std::min(size(), capacity_ - first);
    return {Run{first, n_first, begin_}, Run{0, size() - n_first, begin_ + n_first}};
}

void RingInterval::rewind(std::int32_t pos) {
    if (pos <= begin_) {
        reset(pos);
    } else {
        end_ = std::min(end_, pos);
    }
}

void RingInterval::evict(std::int32_t pos0, std::int32_t n) {
    if (pos0 > end_ || pos0 <= begin_) {
        reset(pos0);
        return;
    }
    end_ = pos0;
    begin_ = std::max(begin_, pos0 + n - capacity_);
}

std::int32_t KvLayout::n_cells() const {
    return (block_size + capacity + 1 + cell_padding - 1) / cell_padding * cell_padding;
}

std::size_t KvLayout::bytes() const {
    return static_cast<std::size_t>(2 * n_layer) * static_cast<std::size_t>(n_embd_kv) *
           static_cast<std::size_t>(n_cells()) * ggml_type_size(type);
}

KvCache::KvCache(const KvLayout & layout)
    : ctx(ggml_init({static_cast<std::size_t>(2 * layout.n_layer) * ggml_tensor_overhead(), nullptr, true})) {
    tensors.n_cells = layout.n_cells();
    for (std::int32_t i = 0; i < layout.n_layer; ++i) {
        tensors.k.push_back(ggml_new_tensor_2d(ctx.get(), layout.type, layout.n_embd_kv, layout.n_cells()));
        tensors.v.push_back(ggml_new_tensor_2d(ctx.get(), layout.type, layout.n_cells(), layout.n_embd_kv));
    }
}

RingContext::RingContext(const KvLayout & layout, std::shared_ptr<const DraftDevice> device,
                         std::shared_ptr<std::atomic<std::size_t>> bytes_in_use)
    : layout_(layout),
      device_(std::move(device)),
      bytes_in_use_(std::move(bytes_in_use)),
      cache_(layout),
      interval_(layout.capacity) {
    cache_.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(cache_.ctx.get(), device_->buffer_type()));
    if (cache_.buffer == nullptr) {
        throw Error(ErrorCode::out_of_memory, "cannot allocate " + std::to_string(layout.bytes()) +
                                                  " bytes for the drafter's context of " +
                                                  std::to_string(layout.capacity) + " positions");
    }
    wipe();
    *bytes_in_use_ += ggml_backend_buffer_get_size(cache_.buffer.get());
}

RingContext::~RingContext() { *bytes_in_use_ -= ggml_backend_buffer_get_size(cache_.buffer.get()); }

void RingContext::wipe() {
    ggml_backend_buffer_clear(cache_.buffer.get(), 0);
    interval_.clear();
}

void RingContext::rewind(std::int32_t pos) {
    if (pos < 0) {
        throw Error(ErrorCode::invalid_argument, "rewind to position " + std::to_string(pos) + ", expected 0 or more",
                    "pos");
    }
    interval_.rewind(pos);
}

std::vector<std::byte> RingContext::save() const {
    const SavedHeader header{.fingerprint = layout_.fingerprint,
                             .n_layer = layout_.n_layer,
                             .n_embd_kv = layout_.n_embd_kv,
                             .type = layout_.type,
                             .begin = begin(),
                             .end = end()};
    const std::size_t element = ggml_type_size(layout_.type);
    const auto n_embd = static_cast<std::size_t>(layout_.n_embd_kv);
    const auto n = static_cast<std::size_t>(interval_.size());
    std::vector<std::byte> bytes(sizeof header + static_cast<std::size_t>(layout_.n_layer) * 2 * n * n_embd * element);
    std::memcpy(bytes.data(), &header, sizeof header);
    std::byte * out = bytes.data() + sizeof header;
    for (std::size_t layer = 0; layer < cache_.tensors.k.size(); ++layer) {
        const ggml_tensor * const k = cache_.tensors.k[layer];
        const ggml_tensor * const v = cache_.tensors.v[layer];
        for (const RingInterval::Run & run : interval_.runs()) {
            if (run.count == 0) {
                continue;
            }
            const auto at = static_cast<std::size_t>(layout_.block_size + run.cell);
            const auto n_run = static_cast<std::size_t>(run.count);
            const auto n_done = static_cast<std::size_t>(run.pos - begin());
            ggml_backend_tensor_get(k, out + n_done * n_embd * element, at * k->nb[1], n_run * k->nb[1]);
            ggml_backend_tensor_get_2d(v, out + (n * n_embd + n_done) * element, at * element, n_run * element, n_embd,
                                       v->nb[1], n * element);
        }
        out += 2 * n * n_embd * element;
    }
    return bytes;
}

void RingContext::restore(std::span<const std::byte> bytes) {
    SavedHeader header;
    const SavedHeader expected{.fingerprint = layout_.fingerprint,
                               .n_layer = layout_.n_layer,
                               .n_embd_kv = layout_.n_embd_kv,
                               .type = layout_.type};
    if (bytes.size() < sizeof header) {
        refuse(std::to_string(bytes.size()) + " bytes are shorter than its header");
    }
    std::memcpy(&header, bytes.data(), sizeof header);
    if (header.magic != expected.magic || header.version != expected.version) {
        refuse("not a state of this version");
    }
    if (header.fingerprint != expected.fingerprint || header.n_layer != expected.n_layer ||
        header.n_embd_kv != expected.n_embd_kv || header.type != expected.type) {
        refuse("it belongs to another drafter");
    }
    const std::int64_t size = static_cast<std::int64_t>(header.end) - header.begin;
    if (header.begin < 0 || size < 0 || size > capacity()) {
        refuse("positions [" + std::to_string(header.begin) + ", " + std::to_string(header.end) + ") do not fit into " +
               std::to_string(capacity()) + " cells");
    }
    const std::size_t element = ggml_type_size(layout_.type);
    const auto n_embd = static_cast<std::size_t>(layout_.n_embd_kv);
    const auto n = static_cast<std::size_t>(size);
    const std::size_t n_bytes = sizeof header + static_cast<std::size_t>(layout_.n_layer) * 2 * n * n_embd * element;
    if (bytes.size() != n_bytes) {
        refuse(std::to_string(bytes.size()) + " bytes, expected " + std::to_string(n_bytes));
    }

    interval_ = RingInterval(layout_.capacity);
    interval_.evict(header.begin, static_cast<std::int32_t>(size));
    const std::byte * in = bytes.data() + sizeof header;
    for (std::size_t layer = 0; layer < cache_.tensors.k.size() && n > 0; ++layer) {
        ggml_tensor * const k = cache_.tensors.k[layer];
        ggml_tensor * const v = cache_.tensors.v[layer];
        const auto at = static_cast<std::size_t>(layout_.block_size);  // the interval starts at ring cell 0
        ggml_backend_tensor_set(k, in, at * k->nb[1], n * k->nb[1]);
        ggml_backend_tensor_set_2d(v, in + n * n_embd * element, at * element, n * element, n_embd, v->nb[1],
                                   n * element);
        in += 2 * n * n_embd * element;
    }
    interval_.commit(header.begin, static_cast<std::int32_t>(size));
}

}  // namespace dflash
