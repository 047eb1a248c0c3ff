// Allocates host memory and packs weight matrices as they are loaded.
#include "weight_buffer.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "thread_team.h"

namespace dflash::cpu {

namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t huge_page = std::size_t{2} << 20U;
constexpr std::size_t shared_packing = std::size_t{1} << 18U;  // smaller ones are not worth threads

struct Storage {
    std::byte * bytes = nullptr;
    explicit Storage(std::size_t size)
        : bytes(static_cast<std::byte *>(
              ::operator new(std::max<std::size_t>(size, 1), std::align_val_t{alignment_of(size)}))),
          alignment_(alignment_of(size)) {
#if defined(__linux__)
        if (alignment_ == huge_page) {
            ::madvise(bytes, size / huge_page * huge_page, MADV_HUGEPAGE);  // a wish: refused, all works as well
        }
#endif
    }
    ~Storage() { ::operator delete(bytes, std::align_val_t{alignment_}); }
    Storage(const Storage &) = delete;
    Storage & operator=(const Storage &) = delete;

  private:
    static std::size_t alignment_of(std::size_t size) { return size >= 4 * huge_page ? huge_page : alignment; }
    std::size_t alignment_;
};

std::size_t matrix_bytes(const MatrixShape & shape) {
    return group_bytes(shape) * static_cast<std::size_t>(n_groups(shape));
}

std::int64_t n_matrices(const ggml_tensor & weight) { return weight.ne[2] * weight.ne[3]; }

/// One group of a weight: its packed bytes, and which bytes of the tensor in ggml's layout they stand for.
struct Group {
    std::span<std::byte> packed;
    std::size_t first;
    std::size_t size;
};

/// Bytes [offset, offset + size) of a weight in ggml's layout.
class Range {
  public:
    Range(const ggml_tensor & weight, std::size_t offset, std::size_t size)
        : shape_(shape_of(weight)),
          row_bytes_(ggml_row_size(shape_.type, shape_.n_cols)),
          packed_(static_cast<std::byte *>(weight.data)),
          begin_(offset),
          end_(offset + size) {
        const std::size_t n = static_cast<std::size_t>(n_matrices(weight) * n_groups(shape_));
        while (first_ < n && group(first_).first + group(first_).size <= begin_) {
            ++first_;
        }
        last_ = first_;
        while (last_ < n && group(last_).first < end_) {
            ++last_;
        }
    }

    [[nodiscard]] const MatrixShape & shape() const { return shape_; }
    [[nodiscard]] std::size_t begin() const { return begin_; }
    /// Groups that it meets: n_groups from the first on.
    [[nodiscard]] std::size_t first_group() const { return first_; }
    [[nodiscard]] std::size_t n_met() const { return last_ - first_; }
    [[nodiscard]] bool covers(const Group & g) const { return begin_ <= g.first && g.first + g.size <= end_; }
    /// The part of a group's bytes that lies in it.
    [[nodiscard]] std::pair<std::size_t, std::size_t> common(const Group & g) const {
        return {std::max(begin_, g.first), std::min(end_, g.first + g.size)};
    }

    [[nodiscard]] Group group(std::size_t index) const {
        const auto per_matrix = static_cast<std::size_t>(n_groups(shape_));
        const std::size_t rows_before = index % per_matrix * static_cast<std::size_t>(group_rows);
        const std::size_t n_rows =
            std::min(static_cast<std::size_t>(group_rows), static_cast<std::size_t>(shape_.n_rows) - rows_before);
        const std::size_t matrix_row = index / per_matrix * static_cast<std::size_t>(shape_.n_rows);
        return {{packed_ + index * group_bytes(shape_), group_bytes(shape_)},
                (matrix_row + rows_before) * row_bytes_,
                n_rows * row_bytes_};
    }

  private:
    MatrixShape shape_;
    std::size_t row_bytes_;
    std::byte * packed_;
    std::size_t begin_;
    std::size_t end_;
    std::size_t first_ = 0;
    std::size_t last_ = 0;
};

struct Packing {
    const Range & range;
    const std::byte * data;
    std::size_t n_chunks;
};

/// Whole groups; those that the range only touches are left to the caller.
void pack_chunk(void * work, std::int32_t chunk) {
    const Packing & p = *static_cast<Packing *>(work);
    const auto c = static_cast<std::size_t>(chunk);
    const std::size_t n = p.range.n_met();
    for (std::size_t i = c * n / p.n_chunks; i < (c + 1) * n / p.n_chunks; ++i) {
        const Group g = p.range.group(p.range.first_group() + i);
        if (p.range.covers(g)) {
            pack_group(p.range.shape(), {p.data + (g.first - p.range.begin()), g.size}, g.packed);
        }
    }
}

void set_packed(const ggml_tensor & weight, const std::byte * data, std::size_t offset, std::size_t size) {
    const Range range(weight, offset, size);
    const bool shared = size >= shared_packing;
    ThreadTeam team(shared ? static_cast<std::int32_t>(std::clamp(std::thread::hardware_concurrency(), 1U, 8U)) : 1);
    Packing packing{range, data, shared ? static_cast<std::size_t>(4 * team.n_threads()) : 1};
    team.run(static_cast<std::int32_t>(packing.n_chunks), pack_chunk, &packing);
    std::vector<std::byte> rows;
    for (std::size_t i = 0; i < range.n_met(); ++i) {
        const Group g = range.group(range.first_group() + i);
        if (range.covers(g)) {
            continue;
        }
        rows.resize(g.size);
        unpack_group(range.shape(), g.packed, rows);
        const auto [from, to] = range.common(g);
        std::memcpy(rows.data() + (from - g.first), data + (from - offset), to - from);
        pack_group(range.shape(), rows, g.packed);
    }
}

void get_packed(const ggml_tensor & weight, std::byte * data, std::size_t offset, std::size_t size) {
    const Range range(weight, offset, size);
    std::vector<std::byte> rows;
    for (std::size_t i = 0; i < range.n_met(); ++i) {
        const Group g = range.group(range.first_group() + i);
        rows.resize(g.size);
        unpack_group(range.shape(), g.packed, rows);
        const auto [from, to] = range.common(g);
        std::memcpy(data + (from - offset), rows.data() + (from - g.first), to - from);
    }
}

/// The packed weight that a tensor is, or is a view of; null: neither.
const ggml_tensor * packed_behind(const ggml_tensor & tensor) {
    const ggml_tensor & whole = tensor.view_src != nullptr ? *tensor.view_src : tensor;
    return is_packed(whole) ? &whole : nullptr;
}

ggml_backend_buffer_type & compute_type();
ggml_backend_buffer_type & packed_type();

void free_buffer(ggml_backend_buffer_t buffer) { delete static_cast<Storage *>(buffer->context); }
void * get_base(ggml_backend_buffer_t buffer) { return static_cast<Storage *>(buffer->context)->bytes; }

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    if (tensor->view_src == nullptr && is_packed_weight(*tensor)) {
        buffer->buft = &packed_type();
    }
    return GGML_STATUS_SUCCESS;
}

void memset_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor * tensor, std::uint8_t value, std::size_t offset,
                   std::size_t size) {
    if (const ggml_tensor * const weight = packed_behind(*tensor)) {
        const std::vector<std::byte> bytes(size, static_cast<std::byte>(value));
        set_packed(*weight, bytes.data(), tensor->view_offs + offset, size);
    } else {
        std::memset(static_cast<std::byte *>(tensor->data) + offset, value, size);
    }
}

void set_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor * tensor, const void * data, std::size_t offset,
                std::size_t size) {
    if (const ggml_tensor * const weight = packed_behind(*tensor)) {
        set_packed(*weight, static_cast<const std::byte *>(data), tensor->view_offs + offset, size);
    } else {
        std::memcpy(static_cast<std::byte *>(tensor->data) + offset, data, size);
    }
}

void get_tensor(ggml_backend_buffer_t /*buffer*/, const ggml_tensor * tensor, void * data, std::size_t offset,
                std::size_t size) {
    if (const ggml_tensor * const weight = packed_behind(*tensor)) {
        get_packed(*weight, static_cast<std::byte *>(data), tensor->view_offs + offset, size);
    } else {
        std::memcpy(data, static_cast<const std::byte *>(tensor->data) + offset, size);
    }
}

bool copy_tensor(ggml_backend_buffer_t /*buffer*/, const ggml_tensor * src, ggml_tensor * dst) {
    if (!ggml_backend_buffer_is_host(src->buffer) || packed_behind(*dst) != nullptr) {
        return false;
    }
    std::memcpy(dst->data, src->data, ggml_nbytes(src));
    return true;
}

void clear(ggml_backend_buffer_t buffer, std::uint8_t value) { std::memset(get_base(buffer), value, buffer->size); }

const char * compute_name(ggml_backend_buffer_type_t /*type*/) { return "DFlash"; }
const char * packed_name(ggml_backend_buffer_type_t /*type*/) { return "DFlash_Packed"; }
std::size_t get_alignment(ggml_backend_buffer_type_t /*type*/) { return alignment; }
bool yes(ggml_backend_buffer_type_t /*type*/) { return true; }
bool no(ggml_backend_buffer_type_t /*type*/) { return false; }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, std::size_t size) {
    try {
        constexpr ggml_backend_buffer_i iface{free_buffer, get_base, init_tensor, memset_tensor, set_tensor, get_tensor,
                                              nullptr,     nullptr,  copy_tensor, clear,         nullptr};
        return ggml_backend_buffer_init(type, iface, new Storage(size), size);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

std::size_t get_alloc_size(ggml_backend_buffer_type_t /*type*/, const ggml_tensor * tensor) {
    if (!is_packed_weight(*tensor)) {
        return ggml_nbytes(tensor);
    }
    return std::max(ggml_nbytes(tensor),
                    matrix_bytes(shape_of(*tensor)) * static_cast<std::size_t>(n_matrices(*tensor)));
}

ggml_backend_buffer_type & compute_type() {
    static ggml_backend_buffer_type type{
        {compute_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, yes}, nullptr, nullptr};
    return type;
}
ggml_backend_buffer_type & packed_type() {
    static ggml_backend_buffer_type type{
        {packed_name, alloc_buffer, get_alignment, nullptr, get_alloc_size, no}, nullptr, nullptr};
    return type;
}

}  // namespace

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t device) {
    compute_type().device = device;
    packed_type().device = device;
    return &compute_type();
}

bool is_ours(ggml_backend_buffer_type_t type) { return type == &compute_type() || type == &packed_type(); }

bool is_packed_weight(const ggml_tensor & tensor) {
    const std::string_view name = tensor.name;
    return tensor.op == GGML_OP_NONE && tensor.view_src == nullptr && tensor.ne[1] > 1 && name.ends_with(".weight") &&
           can_pack({tensor.type, tensor.ne[0], tensor.ne[1]});
}

bool is_packed(const ggml_tensor & tensor) {
    return tensor.buffer != nullptr && is_ours(tensor.buffer->buft) && is_packed_weight(tensor);
}

bool is_view_of_packed(const ggml_tensor & tensor) { return tensor.view_src != nullptr && is_packed(*tensor.view_src); }

MatrixShape shape_of(const ggml_tensor & weight) { return {weight.type, weight.ne[0], weight.ne[1]}; }

const std::byte * groups_of(const ggml_tensor & weight, std::int64_t index) {
    return static_cast<const std::byte *>(weight.data) +
           static_cast<std::size_t>(index) * matrix_bytes(shape_of(weight));
}

}  // namespace dflash::cpu
