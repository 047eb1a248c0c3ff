// Writes GGUF files for tests, valid or broken in one chosen place.
#pragma once

#include <ggml.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dflash/error.h"

namespace dflash::test {

template <typename T>
std::string bytes_of(T value) {
    std::string out(sizeof(T), '\0');
    std::memcpy(out.data(), &value, sizeof(T));
    return out;
}

inline std::string string_bytes(std::string_view text) {
    return bytes_of<std::uint64_t>(text.size()) + std::string(text);
}

// Numbers of the value types in the file format.
constexpr std::uint32_t t_u8 = 0, t_u16 = 2, t_i16 = 3, t_u32 = 4, t_i32 = 5, t_f32 = 6, t_bool = 7, t_string = 8,
                        t_array = 9, t_u64 = 10, t_i64 = 11, t_f64 = 12;

class GgufBytes {
  public:
    std::string magic = "GGUF";
    std::uint32_t version = 3;
    std::uint64_t alignment = 32;  // of the data written here, whatever the file says
    std::optional<std::uint64_t> n_keys;
    std::optional<std::uint64_t> n_tensors;

    GgufBytes & raw(std::string_view key, std::uint32_t type, std::string_view payload) {
        keys_.push_back({std::string(key), string_bytes(key) + bytes_of(type) + std::string(payload)});
        return *this;
    }
    GgufBytes & text(std::string_view key, std::string_view value) { return raw(key, t_string, string_bytes(value)); }
    GgufBytes & u32(std::string_view key, std::uint32_t value) { return raw(key, t_u32, bytes_of(value)); }
    GgufBytes & f32(std::string_view key, float value) { return raw(key, t_f32, bytes_of(value)); }
    GgufBytes & boolean(std::string_view key, bool value) { return raw(key, t_bool, bytes_of<std::uint8_t>(value)); }

    GgufBytes & array(std::string_view key, std::uint32_t type, std::uint64_t count, std::string_view payload) {
        return raw(key, t_array, bytes_of(type) + bytes_of(count) + std::string(payload));
    }
    template <typename T>
    GgufBytes & numbers(std::string_view key, std::uint32_t type, const std::vector<T> & values) {
        std::string payload;
        for (const T value : values) {
            payload += bytes_of(value);
        }
        return array(key, type, values.size(), payload);
    }
    GgufBytes & i32s(std::string_view key, const std::vector<std::int32_t> & values) {
        return numbers(key, t_i32, values);
    }
    GgufBytes & texts(std::string_view key, const std::vector<std::string> & values) {
        std::string payload;
        for (const std::string & value : values) {
            payload += string_bytes(value);
        }
        return array(key, t_string, values.size(), payload);
    }

    /// Takes a key out again, so that a test can leave it away or write another value.
    GgufBytes & drop(std::string_view key) {
        std::erase_if(keys_, [&](const Entry & entry) { return entry.name == key; });
        return *this;
    }

    /// A tensor with data of zeros, or of `data`.
    GgufBytes & tensor(std::string_view name, const std::vector<std::int64_t> & ne, ggml_type type = GGML_TYPE_F32,
                       std::string data = {}) {
        if (data.empty()) {
            std::size_t n = ggml_row_size(type, ne[0]);
            for (std::size_t i = 1; i < ne.size(); ++i) {
                n *= static_cast<std::size_t>(ne[i]);
            }
            data.assign(n, '\0');
        }
        tensors_.push_back({std::string(name), {}, ne, static_cast<std::uint32_t>(type), std::move(data)});
        return *this;
    }
    GgufBytes & drop_tensor(std::string_view name) {
        std::erase_if(tensors_, [&](const Tensor & tensor) { return tensor.name == name; });
        return *this;
    }
    /// A tensor entry as given, without data.
    GgufBytes & raw_tensor(std::string_view name, std::uint32_t n_dims, const std::vector<std::int64_t> & ne,
                           std::uint32_t type, std::uint64_t offset) {
        std::string entry = string_bytes(name) + bytes_of(n_dims);
        for (const std::int64_t n : ne) {
            entry += bytes_of(n);
        }
        tensors_.push_back({std::string(name), entry + bytes_of(type) + bytes_of(offset), {}, 0, {}});
        return *this;
    }

    /// Everything before the data, padding not included.
    [[nodiscard]] std::string header() const {
        std::string out = magic + bytes_of(version) + bytes_of<std::uint64_t>(n_tensors.value_or(tensors_.size())) +
                          bytes_of<std::uint64_t>(n_keys.value_or(keys_.size()));
        for (const Entry & entry : keys_) {
            out += entry.bytes;
        }
        std::uint64_t offset = 0;
        for (const Tensor & tensor : tensors_) {
            if (!tensor.entry.empty()) {
                out += tensor.entry;
                continue;
            }
            out += string_bytes(tensor.name) + bytes_of(static_cast<std::uint32_t>(tensor.ne.size()));
            for (const std::int64_t n : tensor.ne) {
                out += bytes_of(n);
            }
            out += bytes_of(tensor.type) + bytes_of(offset);
            offset += padded(tensor.data.size());
        }
        return out;
    }
    [[nodiscard]] std::string build() const {
        std::string out = header();
        out.resize(padded(out.size()), '\0');
        for (const Tensor & tensor : tensors_) {
            out += tensor.data;
            out.resize(padded(out.size()), '\0');
        }
        return out;
    }

  private:
    struct Entry {
        std::string name;
        std::string bytes;
    };
    struct Tensor {
        std::string name;
        std::string entry;  // empty: written from the rest
        std::vector<std::int64_t> ne;
        std::uint32_t type;
        std::string data;
    };

    [[nodiscard]] std::size_t padded(std::size_t n) const { return (n + alignment - 1) / alignment * alignment; }

    std::vector<Entry> keys_;
    std::vector<Tensor> tensors_;
};

/// A directory of its own, removed with what is in it.
class TempDir {
  public:
    TempDir() {
        static std::atomic<int> next{0};
        path_ = std::filesystem::temp_directory_path() /
                ("dflash-test-" + std::to_string(::getpid()) + "-" + std::to_string(next++));
        std::filesystem::create_directories(path_);
    }
    TempDir(const TempDir &) = delete;
    TempDir & operator=(const TempDir &) = delete;
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::filesystem::path & path() const { return path_; }
    std::filesystem::path write(const std::string & name, std::string_view bytes) const {
        const std::filesystem::path file = path_ / name;
        std::ofstream(file, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        return file;
    }

  private:
    std::filesystem::path path_;
};

/// The Error that `action` throws, if any.
template <typename F>
std::optional<Error> error_of(F action) {
    try {
        action();
    } catch (const Error & error) {
        return error;
    }
    return std::nullopt;
}

}  // namespace dflash::test
