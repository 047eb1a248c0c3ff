// Allocates host memory and packs weight matrices as they are loaded.
#include "weight_buffer.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <vector>

namespace dflash::cpu {

namespace {

constexpr std::size_t alignment = 64;

struct Storage {
    std::byte * bytes = nullptr;
    explicit Storage(std::size_t size)
        : bytes(static_cast<std::byte *>(::operator new(std::max<std::size_t>(size, 1), std::align_val_t{alignment}))) {
    }
    ~Storage() { ::operator delete(bytes, std::align_val_t{alignment}); }
    Storage(const Storage &) = delete;
    Storage & operator=(const Storage &) = delete;
};

std::size_t matrix_bytes(const MatrixShape & shape) {
    return group_bytes(shape) * static_cast<std::size_t>(n_groups(shape));
}

std::int64_t n_matrices(const ggml_tensor & weight) { return weight.ne[2] * weight.ne[3]; }

struct Part {
    MatrixShape shape;
    std::size_t row_bytes;
    std::size_t matrix_rows_bytes;  // in ggml's layout
};

Part part_of(const ggml_tensor & weight) {
    const MatrixShape shape = shape_of(weight);
    const std::size_t row = ggml_row_size(shape.type, shape.n_cols);
    return {shape, row, row * static_cast<std::size_t>(shape.n_rows)};
}

/// Calls function(group, first byte of its rows in the whole tensor, bytes) for the groups that [offset, offset + size)
/// meets.
template <typename Function>
void each_group(const ggml_tensor & weight, std::size_t offset, std::size_t size, const Function & function) {
    const Part part = part_of(weight);
    const std::size_t group_row_bytes = part.row_bytes * static_cast<std::size_t>(group_rows);
    for (std::int64_t m = 0; m < n_matrices(weight); ++m) {
        const std::size_t begin = static_cast<std::size_t>(m) * part.matrix_rows_bytes;
        for (std::int64_t g = 0; g < n_groups(part.shape); ++g) {
            const std::size_t first = begin + static_cast<std::size_t>(g) * group_row_bytes;
            const std::size_t bytes = std::min(group_row_bytes, begin + part.matrix_rows_bytes - first);
            if (first < offset + size && offset < first + bytes) {
                auto * const base =
                    static_cast<std::byte *>(weight.data) + static_cast<std::size_t>(m) * matrix_bytes(part.shape);
                function(
                    part.shape,
                    std::span(base + static_cast<std::size_t>(g) * group_bytes(part.shape), group_bytes(part.shape)),
                    first, bytes);
            }
        }
    }
}

void set_packed(const ggml_tensor & weight, const std::byte * data, std::size_t offset, std::size_t size) {
    each_group(weight, offset, size,
               [&](const MatrixShape & shape, std::span<std::byte> group, std::size_t first, std::size_t bytes) {
                   if (first >= offset && first + bytes <= offset + size) {
                       pack_group(shape, {data + (first - offset), bytes}, group);
                       return;
                   }
                   std::vector<std::byte> rows(bytes);
                   unpack_group(shape, group, rows);
                   const std::size_t from = std::max(first, offset);
                   const std::size_t to = std::min(first + bytes, offset + size);
                   std::memcpy(rows.data() + (from - first), data + (from - offset), to - from);
                   pack_group(shape, rows, group);
               });
}

void get_packed(const ggml_tensor & weight, std::byte * data, std::size_t offset, std::size_t size) {
    each_group(weight, offset, size,
               [&](const MatrixShape & shape, std::span<std::byte> group, std::size_t first, std::size_t bytes) {
                   std::vector<std::byte> rows(bytes);
                   unpack_group(shape, group, rows);
                   const std::size_t from = std::max(first, offset);
                   const std::size_t to = std::min(first + bytes, offset + size);
                   std::memcpy(data + (from - offset), rows.data() + (from - first), to - from);
               });
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
    if (is_packed(*tensor)) {
        const std::vector<std::byte> bytes(size, static_cast<std::byte>(value));
        set_packed(*tensor, bytes.data(), offset, size);
    } else {
        std::memset(static_cast<std::byte *>(tensor->data) + offset, value, size);
    }
}

void set_tensor(ggml_backend_buffer_t /*buffer*/, ggml_tensor * tensor, const void * data, std::size_t offset,
                std::size_t size) {
    if (is_packed(*tensor)) {
        set_packed(*tensor, static_cast<const std::byte *>(data), offset, size);
    } else {
        std::memcpy(static_cast<std::byte *>(tensor->data) + offset, data, size);
    }
}

void get_tensor(ggml_backend_buffer_t /*buffer*/, const ggml_tensor * tensor, void * data, std::size_t offset,
                std::size_t size) {
    if (is_packed(*tensor)) {
        get_packed(*tensor, static_cast<std::byte *>(data), offset, size);
    } else {
        std::memcpy(data, static_cast<const std::byte *>(tensor->data) + offset, size);
    }
}

bool copy_tensor(ggml_backend_buffer_t /*buffer*/, const ggml_tensor * src, ggml_tensor * dst) {
    if (!ggml_backend_buffer_is_host(src->buffer) || is_packed(*dst)) {
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

MatrixShape shape_of(const ggml_tensor & weight) { return {weight.type, weight.ne[0], weight.ne[1]}; }

const std::byte * groups_of(const ggml_tensor & weight, std::int64_t index) {
    return static_cast<const std::byte *>(weight.data) +
           static_cast<std::size_t>(index) * matrix_bytes(shape_of(weight));
}

}  // namespace dflash::cpu
