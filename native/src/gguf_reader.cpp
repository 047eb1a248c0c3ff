// GgufFile: typed access to the header of a GGUF model and its split parts, and to tensor bytes.
#include "dflash/gguf_reader.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "dflash/error.h"
#include "dflash/text.h"
#include "gguf_parse.h"

namespace dflash {

namespace {

constexpr std::uint32_t max_parts = 512;
constexpr std::size_t suffix_digits = 5;  // "-00001-of-00003.gguf"

/// The directory and name before "-00001-of-00003.gguf", and the two numbers.
struct SplitName {
    std::filesystem::path directory;
    std::u8string prefix;
    std::uint32_t number = 0;  // from 1
    std::uint32_t count = 0;

    [[nodiscard]] std::filesystem::path part(std::uint32_t index) const {
        std::array<char, 32> suffix{};
        std::snprintf(suffix.data(), suffix.size(), "-%05u-of-%05u.gguf", index + 1, count);
        const std::string text(suffix.data());
        return directory / std::filesystem::path(prefix + std::u8string(text.begin(), text.end()));
    }
};

std::optional<std::uint32_t> five_digits(std::string_view text) {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + suffix_digits, value);
    return error == std::errc() && end == text.data() + suffix_digits ? std::optional(value) : std::nullopt;
}

std::optional<SplitName> parse_split_name(const std::filesystem::path & path) {
    const std::u8string whole = path.filename().u8string();
    const std::string name(whole.begin(), whole.end());
    constexpr std::size_t suffix_bytes = 1 + suffix_digits + 4 + suffix_digits + 5;
    if (name.size() <= suffix_bytes) {
        return std::nullopt;
    }
    const std::string_view suffix = std::string_view(name).substr(name.size() - suffix_bytes);
    if (suffix[0] != '-' || suffix.substr(1 + suffix_digits, 4) != "-of-" ||
        suffix.substr(suffix_bytes - 5) != ".gguf") {
        return std::nullopt;
    }
    const auto number = five_digits(suffix.substr(1));
    const auto count = five_digits(suffix.substr(1 + suffix_digits + 4));
    if (!number || !count) {
        return std::nullopt;
    }
    return SplitName{path.parent_path(), whole.substr(0, whole.size() - suffix_bytes), *number, *count};
}

std::optional<std::int64_t> as_int(GgufType type, std::uint64_t bits) {
    switch (type) {
        case GgufType::u8: return static_cast<std::uint8_t>(bits);
        case GgufType::i8: return static_cast<std::int8_t>(bits);
        case GgufType::u16: return static_cast<std::uint16_t>(bits);
        case GgufType::i16: return static_cast<std::int16_t>(bits);
        case GgufType::u32: return static_cast<std::uint32_t>(bits);
        case GgufType::i32: return static_cast<std::int32_t>(bits);
        case GgufType::i64: return static_cast<std::int64_t>(bits);
        case GgufType::u64:
            return bits <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
                       ? std::optional(static_cast<std::int64_t>(bits))
                       : std::nullopt;
        default: return std::nullopt;
    }
}

std::optional<double> as_float(GgufType type, std::uint64_t bits) {
    switch (type) {
        case GgufType::f32: return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        case GgufType::f64: return std::bit_cast<double>(bits);
        default: return std::nullopt;
    }
}

}  // namespace

struct GgufFile::Impl {
    std::vector<FileBytes> files;
    std::map<std::string, GgufValue, std::less<>> values;  // of the first part
    std::vector<GgufTensor> tensors;
    std::unordered_map<std::string_view, std::size_t> tensor_index;  // views into `tensors`
    std::string architecture;

    explicit Impl(const std::filesystem::path & path);

    [[noreturn]] void fail(const std::string & what, std::string_view field = {}) const {
        gguf_fail(files.front().path(), what, field);
    }

    [[noreturn]] void fail_type(std::string_view key, const GgufValue & value, const char * expected) const {
        const bool is_array = value.type == GgufType::array;
        fail("key '" + printable(key) + "' is " + (is_array ? "an array of " : "a ") +
                 gguf_type_name(is_array ? value.element : value.type) + ", expected " + expected,
             key);
    }

    [[nodiscard]] const GgufValue * find(std::string_view key) const {
        const auto found = values.find(key);
        return found == values.end() ? nullptr : &found->second;
    }

    [[nodiscard]] const GgufValue * find_array(std::string_view key, const char * expected) const {
        const GgufValue * value = find(key);
        if (value != nullptr && value->type != GgufType::array) {
            fail_type(key, *value, expected);
        }
        return value;
    }

    /// Elements of an array of fixed-size values, each in the low bytes of its word.
    [[nodiscard]] std::vector<std::uint64_t> words(const GgufValue & value) const {
        const auto width = static_cast<std::size_t>(gguf_type_bytes(value.element));
        std::vector<std::byte> bytes(static_cast<std::size_t>(value.count) * width);
        files.front().read(value.offset, bytes);
        std::vector<std::uint64_t> out(static_cast<std::size_t>(value.count), 0);
        for (std::size_t i = 0; i < out.size(); ++i) {
            std::memcpy(&out[i], bytes.data() + i * width, width);
        }
        return out;
    }

    void open_parts(const std::filesystem::path & path);
    std::int64_t split_value(const GgufHeader & header, const FileBytes & file, const char * key) const;
};

GgufFile::Impl::Impl(const std::filesystem::path & path) {
    open_parts(path);
    const GgufValue * value = find("general.architecture");
    if (value == nullptr) {
        fail("it has no key 'general.architecture', so it is no model", "general.architecture");
    }
    if (value->type != GgufType::string) {
        fail_type("general.architecture", *value, "a string");
    }
    if (value->count == 0 || value->count > gguf_max_key_bytes) {
        fail("'general.architecture' has " + std::to_string(value->count) + " bytes", "general.architecture");
    }
    architecture.resize(static_cast<std::size_t>(value->count));
    files.front().read(value->offset, std::as_writable_bytes(std::span(architecture)));
    tensor_index.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        if (!tensor_index.emplace(tensors[i].name, i).second) {
            fail("tensor '" + printable(tensors[i].name) + "' occurs in two split parts", tensors[i].name);
        }
    }
}

std::int64_t GgufFile::Impl::split_value(const GgufHeader & header, const FileBytes & file, const char * key) const {
    const auto found = header.values.find(key);
    const auto number = found == header.values.end() ? std::nullopt : as_int(found->second.type, found->second.bits);
    if (!number) {
        gguf_fail(file.path(), std::string("it is part of a split model but has no integer '") + key + "'", key);
    }
    return *number;
}

void GgufFile::Impl::open_parts(const std::filesystem::path & path) {
    FileBytes given(path);
    GgufHeader header = gguf_parse(given, 0);
    if (header.values.find("split.count") == header.values.end() || split_value(header, given, "split.count") == 0 ||
        split_value(header, given, "split.count") == 1) {
        files.push_back(std::move(given));
        values = std::move(header.values);
        tensors = std::move(header.tensors);
        return;
    }
    const std::int64_t count = split_value(header, given, "split.count");
    if (count < 0 || count > max_parts) {
        gguf_fail(path, "its split.count is " + std::to_string(count) + ", expected 1 to " + std::to_string(max_parts),
                  "split.count");
    }
    const auto name = parse_split_name(path);
    if (!name || name->count != static_cast<std::uint32_t>(count) ||
        static_cast<std::int64_t>(name->number) != split_value(header, given, "split.no") + 1) {
        gguf_fail(path,
                  "it is part " + std::to_string(split_value(header, given, "split.no") + 1) + " of " +
                      std::to_string(count) +
                      " of a split model, but its name does not say so; restore the name NAME-0000N-of-0000M.gguf",
                  "split.count");
    }
    const std::int64_t n_tensors = split_value(header, given, "split.tensors.count");
    for (std::uint32_t i = 0; i < name->count; ++i) {
        const bool is_given = i + 1 == name->number;
        // NOLINTNEXTLINE(bugprone-use-after-move): one part of the split is the given one.
        FileBytes file = is_given ? std::move(given) : FileBytes(name->part(i));
        // The given part was parsed as part 0 and is parsed anew under its own number.
        GgufHeader part = gguf_parse(file, i);
        if (split_value(part, file, "split.count") != count ||
            split_value(part, file, "split.no") != static_cast<std::int64_t>(i) ||
            split_value(part, file, "split.tensors.count") != n_tensors) {
            gguf_fail(file.path(),
                      "it is not part " + std::to_string(i + 1) + " of " + std::to_string(count) +
                          " of the same model (split.no, split.count and split.tensors.count tell)",
                      "split.no");
        }
        if (i == 0) {
            values = std::move(part.values);
        }
        std::move(part.tensors.begin(), part.tensors.end(), std::back_inserter(tensors));
        if (tensors.size() > gguf_max_tensors) {
            gguf_fail(file.path(), "the split model has more than " + std::to_string(gguf_max_tensors) + " tensors",
                      "split.tensors.count");
        }
        files.push_back(std::move(file));
    }
    if (static_cast<std::int64_t>(tensors.size()) != n_tensors) {
        fail("its parts hold " + std::to_string(tensors.size()) + " tensors, split.tensors.count says " +
                 std::to_string(n_tensors),
             "split.tensors.count");
    }
}

GgufFile GgufFile::open(const std::filesystem::path & path) { return GgufFile(std::make_unique<Impl>(path)); }

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::GgufFile(GgufFile &&) noexcept = default;
GgufFile & GgufFile::operator=(GgufFile &&) noexcept = default;
GgufFile::~GgufFile() = default;

const std::filesystem::path & GgufFile::path() const { return impl_->files.front().path(); }

std::uint64_t GgufFile::file_bytes() const {
    std::uint64_t n = 0;
    for (const FileBytes & file : impl_->files) {
        n += file.size();
    }
    return n;
}

const std::string & GgufFile::architecture() const { return impl_->architecture; }

bool GgufFile::has(std::string_view key) const { return impl_->find(key) != nullptr; }

bool GgufFile::is_array(std::string_view key) const {
    const GgufValue * value = impl_->find(key);
    return value != nullptr && value->type == GgufType::array;
}

std::optional<std::int64_t> GgufFile::find_int(std::string_view key) const {
    const GgufValue * value = impl_->find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    const auto number = as_int(value->type, value->bits);
    if (!number) {
        impl_->fail_type(key, *value, "an integer below 2^63");
    }
    return number;
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
    const GgufValue * value = impl_->find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    const auto number = as_float(value->type, value->bits);
    if (!number) {
        impl_->fail_type(key, *value, "a float");
    }
    return number;
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
    const GgufValue * value = impl_->find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->type != GgufType::boolean) {
        impl_->fail_type(key, *value, "a bool");
    }
    return value->bits != 0;
}

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
    const GgufValue * value = impl_->find(key);
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->type != GgufType::string) {
        impl_->fail_type(key, *value, "a string");
    }
    std::string text(static_cast<std::size_t>(value->count), '\0');
    impl_->files.front().read(value->offset, std::as_writable_bytes(std::span(text)));
    return text;
}

std::optional<std::vector<std::int64_t>> GgufFile::find_int_array(std::string_view key) const {
    const GgufValue * value = impl_->find_array(key, "an array of integers");
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->element == GgufType::string || value->element == GgufType::f32 || value->element == GgufType::f64) {
        impl_->fail_type(key, *value, "an array of integers");
    }
    std::vector<std::int64_t> out;
    out.reserve(static_cast<std::size_t>(value->count));
    for (const std::uint64_t word : impl_->words(*value)) {
        const auto number =
            value->element == GgufType::boolean ? std::optional<std::int64_t>(word != 0) : as_int(value->element, word);
        if (!number) {
            impl_->fail_type(key, *value, "an array of integers below 2^63");
        }
        out.push_back(*number);
    }
    return out;
}

std::optional<std::vector<double>> GgufFile::find_float_array(std::string_view key) const {
    const GgufValue * value = impl_->find_array(key, "an array of floats");
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->element != GgufType::f32 && value->element != GgufType::f64) {
        impl_->fail_type(key, *value, "an array of floats");
    }
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(value->count));
    for (const std::uint64_t word : impl_->words(*value)) {
        out.push_back(as_float(value->element, word).value());
    }
    return out;
}

std::optional<std::uint64_t> GgufFile::array_size(std::string_view key) const {
    const GgufValue * value = impl_->find_array(key, "an array");
    return value == nullptr ? std::nullopt : std::optional(value->count);
}

std::optional<std::uint64_t> GgufFile::string_array_hash(std::string_view key) const {
    const GgufValue * value = impl_->find_array(key, "an array of strings");
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->element != GgufType::string) {
        impl_->fail_type(key, *value, "an array of strings");
    }
    return value->hash;
}

std::optional<std::uint64_t> GgufFile::find_duplicate_string(std::string_view key) const {
    const GgufValue * value = impl_->find_array(key, "an array of strings");
    if (value == nullptr) {
        return std::nullopt;
    }
    if (value->element != GgufType::string) {
        impl_->fail_type(key, *value, "an array of strings");
    }
    const std::vector<std::uint64_t> hashes = gguf_string_hashes(impl_->files.front(), *value);
    std::vector<std::uint32_t> order(hashes.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return hashes[a] < hashes[b]; });
    const auto found =
        std::adjacent_find(order.begin(), order.end(), [&](auto a, auto b) { return hashes[a] == hashes[b]; });
    return found == order.end() ? std::nullopt : std::optional<std::uint64_t>(*found);
}

std::span<const GgufTensor> GgufFile::tensors() const { return impl_->tensors; }

const GgufTensor * GgufFile::find_tensor(std::string_view name) const {
    const auto found = impl_->tensor_index.find(name);
    return found == impl_->tensor_index.end() ? nullptr : &impl_->tensors[found->second];
}

void GgufFile::read(const GgufTensor & tensor, std::uint64_t offset, std::span<std::byte> dst) const {
    if (tensor.part >= impl_->files.size() || offset > tensor.n_bytes || dst.size() > tensor.n_bytes - offset) {
        throw Error(ErrorCode::invalid_argument,
                    "read of " + std::to_string(dst.size()) + " bytes at " + std::to_string(offset) +
                        " passes the end of tensor '" + printable(tensor.name) + "' (" +
                        std::to_string(tensor.n_bytes) + " bytes)",
                    tensor.name);
    }
    impl_->files[tensor.part].read(tensor.offset + offset, dst);
}

}  // namespace dflash
