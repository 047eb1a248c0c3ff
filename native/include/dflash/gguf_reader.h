// Reads GGUF headers and tensor bytes with checked sizes and named limits. Trusts nothing in the file.
#pragma once

#include <ggml.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dflash {

struct GgufTensor {
    std::string name;
    ggml_type type;
    std::array<std::int64_t, 4> ne;  // ggml order, 1 where unused
    std::uint64_t offset;            // absolute, in the file of `part`
    std::uint64_t n_bytes;
    std::uint32_t part;  // index of the split file that holds it
};

/// One GGUF model, split parts included. Holds metadata and tensor positions; reads tensor bytes on request.
class GgufFile {
  public:
    /// Throws Error(model_load) that says what was wrong, where (byte offset or key) and what was expected.
    static GgufFile open(const std::filesystem::path & path);

    GgufFile(GgufFile &&) noexcept;
    GgufFile & operator=(GgufFile &&) noexcept;
    ~GgufFile();

    [[nodiscard]] const std::filesystem::path & path() const;
    [[nodiscard]] std::uint64_t file_bytes() const;  // all parts
    [[nodiscard]] const std::string & architecture() const;

    // Metadata; nullopt where the key is absent, Error(model_load, key) where it has another type.
    [[nodiscard]] bool has(std::string_view key) const;
    [[nodiscard]] bool is_array(std::string_view key) const;
    [[nodiscard]] std::optional<std::int64_t> find_int(std::string_view key) const;
    [[nodiscard]] std::optional<double> find_float(std::string_view key) const;
    [[nodiscard]] std::optional<bool> find_bool(std::string_view key) const;
    [[nodiscard]] std::optional<std::string> find_string(std::string_view key) const;
    [[nodiscard]] std::optional<std::vector<std::int64_t>> find_int_array(std::string_view key) const;  // ints or bools
    [[nodiscard]] std::optional<std::vector<double>> find_float_array(std::string_view key) const;
    [[nodiscard]] std::optional<std::uint64_t> array_size(std::string_view key) const;
    /// FNV-1a over the elements of a string array with their lengths; to compare vocabularies cheaply.
    [[nodiscard]] std::optional<std::uint64_t> string_array_hash(std::string_view key) const;
    /// Index of an element that equals another one up to its first NUL; llama.cpp aborts on such a vocabulary.
    [[nodiscard]] std::optional<std::uint64_t> find_duplicate_string(std::string_view key) const;

    [[nodiscard]] std::span<const GgufTensor> tensors() const;
    [[nodiscard]] const GgufTensor * find_tensor(std::string_view name) const;  // null if absent
    /// Reads n = dst.size() bytes at `offset` within the tensor's data. Throws Error(model_load) on short reads.
    void read(const GgufTensor & tensor, std::uint64_t offset, std::span<std::byte> dst) const;

  private:
    struct Impl;
    explicit GgufFile(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace dflash
