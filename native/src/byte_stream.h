// Writes and reads plain values to and from bytes, with checked sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dflash/error.h"

namespace dflash {

class ByteWriter {
  public:
    template <typename T>
    void value(const T & item) {
        static_assert(std::is_trivially_copyable_v<T>);
        bytes(std::as_bytes(std::span{&item, 1}));
    }
    template <typename T>
    void array(std::span<const T> items) {
        static_assert(std::is_trivially_copyable_v<T>);
        value(static_cast<std::uint64_t>(items.size()));
        bytes(std::as_bytes(items));
    }
    [[nodiscard]] std::vector<std::byte> take() { return std::move(out_); }

  private:
    void bytes(std::span<const std::byte> data) {
        if (data.empty()) {
            return;
        }
        const std::size_t end = out_.size();
        out_.resize(end + data.size());
        std::memcpy(out_.data() + end, data.data(), data.size());
    }
    std::vector<std::byte> out_;
};

/// Throws Error(invalid_argument) where the bytes end early.
class ByteReader {
  public:
    explicit ByteReader(std::span<const std::byte> data) : data_(data) {}

    template <typename T>
    T value() {
        static_assert(std::is_trivially_copyable_v<T>);
        T item;
        std::memcpy(&item, take(sizeof(T)).data(), sizeof(T));
        return item;
    }
    template <typename T>
    std::vector<T> array() {
        static_assert(std::is_trivially_copyable_v<T>);
        const auto n = value<std::uint64_t>();
        if (n > data_.size() / sizeof(T)) {
            fail();
        }
        const std::span<const std::byte> source = take(n * sizeof(T));
        std::vector<T> items(n);
        if (n > 0) {
            std::memcpy(items.data(), source.data(), source.size());
        }
        return items;
    }
    void finish() const {
        if (!data_.empty()) {
            fail();
        }
    }

  private:
    std::span<const std::byte> take(std::size_t n) {
        if (n > data_.size()) {
            fail();
        }
        const std::span<const std::byte> head = data_.first(n);
        data_ = data_.subspan(n);
        return head;
    }
    [[noreturn]] static void fail() {
        throw Error(ErrorCode::invalid_argument, "the saved state is cut short or damaged; save it again");
    }
    std::span<const std::byte> data_;
};

constexpr std::uint32_t state_version = 2;

/// Reads the magic number and version that begin every saved state. Throws Error(invalid_argument).
inline void check_state_header(ByteReader & in, std::uint32_t magic) {
    if (in.value<std::uint32_t>() != magic) {
        throw Error(ErrorCode::invalid_argument, "these bytes are no saved state of dflash-local");
    }
    const auto version = in.value<std::uint32_t>();
    if (version != state_version) {
        throw Error(ErrorCode::invalid_argument, "the saved state has version " + std::to_string(version) +
                                                     ", this build reads version " + std::to_string(state_version) +
                                                     "; save it again with this build");
    }
}

}  // namespace dflash
