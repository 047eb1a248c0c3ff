// The header of one GGUF file: metadata values by position, and tensor positions, all checked. Knows nothing of models.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "dflash/error.h"
#include "dflash/gguf_reader.h"
#include "file_bytes.h"

namespace dflash {

constexpr std::uint64_t gguf_max_keys = 16384;
constexpr std::uint64_t gguf_max_tensors = 131072;
constexpr std::uint64_t gguf_max_key_bytes = 1024;
constexpr std::uint64_t gguf_max_tensor_name_bytes = 63;  // GGML_MAX_NAME - 1
constexpr std::uint64_t gguf_max_string_bytes = std::uint64_t{16} << 20;
constexpr std::uint64_t gguf_max_array_elements = std::uint64_t{1} << 24;
constexpr std::uint64_t gguf_max_header_bytes = std::uint64_t{128} << 20;
constexpr std::uint64_t gguf_max_alignment = std::uint64_t{1} << 20;
constexpr std::uint64_t gguf_default_alignment = 32;

enum class GgufType : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64, count };

[[nodiscard]] const char * gguf_type_name(GgufType type);
/// Bytes of a fixed-size value, 0 for strings and arrays.
[[nodiscard]] std::uint64_t gguf_type_bytes(GgufType type);

struct GgufValue {
    GgufType type = GgufType::u8;
    GgufType element = GgufType::u8;  // of arrays
    std::uint64_t count = 0;          // elements of an array, bytes of a string
    std::uint64_t offset = 0;         // of the first element or byte, in the file
    std::uint64_t bits = 0;           // a scalar's bytes, little endian
    std::uint64_t hash = 0;           // of string arrays
};

struct GgufHeader {
    std::map<std::string, GgufValue, std::less<>> values;
    std::vector<GgufTensor> tensors;  // in the order of the file
};

/// Throws Error(model_load), with the key or tensor as field where one is at fault.
[[nodiscard]] GgufHeader gguf_parse(const FileBytes & file, std::uint32_t part);

/// A hash per element of a string array, each up to its first NUL; that of an empty one is its own.
[[nodiscard]] std::vector<std::uint64_t> gguf_string_hashes(const FileBytes & file, const GgufValue & strings);

[[noreturn]] void gguf_fail(const std::filesystem::path & path, const std::string & what, std::string_view field = {});

}  // namespace dflash
