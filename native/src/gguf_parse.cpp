// Walks a GGUF v2 or v3 header once; keeps positions instead of strings and arrays.
#include "gguf_parse.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "dflash/text.h"

namespace dflash {

static_assert(std::endian::native == std::endian::little, "GGUF is read as little endian without swapping");

namespace {

constexpr std::uint64_t fnv_basis = 0xcbf29ce484222325ULL;
constexpr std::uint64_t fnv_prime = 0x100000001b3ULL;
constexpr std::size_t cursor_buffer_bytes = std::size_t{256} << 10;

std::uint64_t fnv1a(std::uint64_t hash, std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
        hash = (hash ^ static_cast<std::uint64_t>(byte)) * fnv_prime;
    }
    return hash;
}

bool multiply(std::uint64_t a, std::uint64_t b, std::uint64_t & out) {
    if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) {
        return false;
    }
    out = a * b;
    return true;
}

/// Buffered forward reads that never pass the end of the file or the header limit.
class Cursor {
  public:
    explicit Cursor(const FileBytes & file, std::uint64_t begin = 0)
        : file_(file), end_(std::min(file.size(), gguf_max_header_bytes)), position_(begin) {}

    [[nodiscard]] std::uint64_t position() const { return position_; }
    [[nodiscard]] std::uint64_t left() const { return end_ - position_; }

    /// Fails unless n bytes are left; `what` says what they should have been.
    void require(std::uint64_t n, std::string_view what, std::string_view field = {}) const {
        if (n <= left()) {
            return;
        }
        const std::string at =
            (field.empty() ? "" : " of '" + printable(field) + "'") + " at byte " + std::to_string(position_);
        if (end_ < file_.size()) {
            gguf_fail(file_.path(),
                      "its header is longer than " + std::to_string(gguf_max_header_bytes) + " bytes" + at, field);
        }
        gguf_fail(file_.path(),
                  "it is truncated: " + std::string(what) + at + " needs " + std::to_string(n) + " bytes, " +
                      std::to_string(left()) + " are left",
                  field);
    }

    template <typename T>
    T scalar(std::string_view what, std::string_view field = {}) {
        require(sizeof(T), what, field);
        T value;
        std::memcpy(&value, view(sizeof(T)).data(), sizeof(T));
        return value;
    }

    /// The next n bytes, valid until the next call. n must be left and at most cursor_buffer_bytes.
    std::span<const std::byte> view(std::size_t n) {
        if (position_ < begin_ || position_ + n > begin_ + buffer_.size()) {
            buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(cursor_buffer_bytes, left())));
            begin_ = position_;
            file_.read(begin_, buffer_);
        }
        const std::span<const std::byte> bytes =
            std::span<const std::byte>(buffer_).subspan(static_cast<std::size_t>(position_ - begin_), n);
        position_ += n;
        return bytes;
    }

    void skip(std::uint64_t n) { position_ += n; }

  private:
    const FileBytes & file_;
    std::uint64_t end_;
    std::uint64_t position_;
    std::uint64_t begin_ = 0;  // position of buffer_[0]
    std::vector<std::byte> buffer_;
};

class Parser {
  public:
    Parser(const FileBytes & file, std::uint32_t part) : file_(file), part_(part), cursor_(file) {}

    GgufHeader parse() {
        read_version();
        const auto n_tensors = count("tensor count", gguf_max_tensors, 8 + 1 + 4 + 8 + 4 + 8);
        const auto n_keys = count("key count", gguf_max_keys, 8 + 1 + 4 + 1, n_tensors * (8 + 1 + 4 + 8 + 4 + 8));
        for (std::uint64_t i = 0; i < n_keys; ++i) {
            read_key();
        }
        read_alignment();
        header_.tensors.reserve(static_cast<std::size_t>(n_tensors));
        for (std::uint64_t i = 0; i < n_tensors; ++i) {
            read_tensor();
        }
        place_tensors();
        return std::move(header_);
    }

  private:
    [[noreturn]] void fail(const std::string & what, std::string_view field = {}) const {
        gguf_fail(file_.path(), what, field);
    }

    void read_version() {
        if (file_.size() == 0) {
            fail("it is empty");
        }
        cursor_.require(4, "the magic 'GGUF'");
        const auto magic = cursor_.view(4);
        if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
            fail("it is no GGUF file (it does not begin with 'GGUF')");
        }
        const auto version = cursor_.scalar<std::uint32_t>("the version");
        if (version != 0 && (version & 0xFFFFU) == 0) {
            fail("it is a big-endian GGUF file; convert it to little endian");
        }
        if (version != 2 && version != 3) {
            fail("GGUF version " + std::to_string(version) +
                 " is not supported (2 and 3 are); convert the model again");
        }
    }

    /// A count checked against its limit and against what `each` bytes apiece would need beside `reserved` other bytes.
    std::uint64_t count(const char * what, std::uint64_t limit, std::uint64_t each, std::uint64_t reserved = 0) {
        const auto n = cursor_.scalar<std::uint64_t>(what);
        if (n > limit) {
            fail(
                std::string("its ") + what + " " + std::to_string(n) + " is over the limit of " + std::to_string(limit),
                what);
        }
        if (reserved > cursor_.left() || n * each > cursor_.left() - reserved) {
            fail("it is truncated: its " + std::string(what) + " is " + std::to_string(n) + ", but only " +
                     std::to_string(cursor_.left()) + " bytes follow",
                 what);
        }
        return n;
    }

    /// Reads a length-prefixed name of 1..limit bytes.
    std::string name(const char * what, std::uint64_t limit) {
        const std::uint64_t at = cursor_.position();
        const auto n = cursor_.scalar<std::uint64_t>("the length of a name");
        if (n == 0 || n > limit) {
            fail("a " + std::string(what) + " at byte " + std::to_string(at) + " has " + std::to_string(n) +
                 " bytes (1 to " + std::to_string(limit) + " allowed)");
        }
        cursor_.require(n, what);
        const auto bytes = cursor_.view(static_cast<std::size_t>(n));
        std::string text(reinterpret_cast<const char *>(bytes.data()), bytes.size());
        if (text.find('\0') != std::string::npos) {
            fail("a " + std::string(what) + " at byte " + std::to_string(at) + " contains a NUL byte: '" +
                     printable(text) + "'",
                 text);
        }
        return text;
    }

    GgufType type(const std::string & key) {
        const auto raw = cursor_.scalar<std::uint32_t>("a value type", key);
        if (raw >= static_cast<std::uint32_t>(GgufType::count)) {
            fail("key '" + printable(key) + "' has the unknown value type " + std::to_string(raw), key);
        }
        return static_cast<GgufType>(raw);
    }

    void read_key() {
        const std::string key = name("key", gguf_max_key_bytes);
        GgufValue value;
        value.type = type(key);
        if (value.type == GgufType::string) {
            value.count = string_length(key);
            value.offset = cursor_.position();
            cursor_.skip(value.count);
        } else if (value.type == GgufType::array) {
            read_array(key, value);
        } else {
            const std::uint64_t n = gguf_type_bytes(value.type);
            cursor_.require(n, "the value", key);
            std::memcpy(&value.bits, cursor_.view(static_cast<std::size_t>(n)).data(), static_cast<std::size_t>(n));
        }
        if (!header_.values.emplace(key, value).second) {
            fail("key '" + printable(key) + "' occurs twice", key);
        }
    }

    std::uint64_t string_length(const std::string & key) {
        const auto n = cursor_.scalar<std::uint64_t>("the length of a string", key);
        cursor_.require(n, "a string", key);
        if (n > gguf_max_string_bytes) {
            fail("a string of key '" + printable(key) + "' has " + std::to_string(n) + " bytes, over the limit of " +
                     std::to_string(gguf_max_string_bytes),
                 key);
        }
        return n;
    }

    void read_array(const std::string & key, GgufValue & value) {
        value.element = type(key);
        if (value.element == GgufType::array) {
            fail("key '" + printable(key) + "' is an array of arrays, which is not supported", key);
        }
        value.count = cursor_.scalar<std::uint64_t>("the length of an array", key);
        if (value.count > gguf_max_array_elements) {
            fail("the array of key '" + printable(key) + "' has " + std::to_string(value.count) +
                     " elements, over the limit of " + std::to_string(gguf_max_array_elements),
                 key);
        }
        value.offset = cursor_.position();
        if (value.element != GgufType::string) {
            const std::uint64_t n = value.count * gguf_type_bytes(value.element);
            cursor_.require(n, "the array", key);
            cursor_.skip(n);
            return;
        }
        cursor_.require(value.count * 8, "the array", key);
        value.hash = fnv_basis;
        for (std::uint64_t i = 0; i < value.count; ++i) {
            std::uint64_t n = string_length(key);
            value.hash = fnv1a(value.hash, std::as_bytes(std::span(&n, 1)));
            while (n > 0) {
                const auto step = std::min<std::uint64_t>(n, cursor_buffer_bytes);
                value.hash = fnv1a(value.hash, cursor_.view(static_cast<std::size_t>(step)));
                n -= step;
            }
        }
    }

    void read_alignment() {
        const auto found = header_.values.find("general.alignment");
        if (found == header_.values.end()) {
            return;
        }
        if (found->second.type != GgufType::u32) {
            fail(std::string("general.alignment is a ") + gguf_type_name(found->second.type) + ", expected a u32",
                 "general.alignment");
        }
        alignment_ = found->second.bits;
        if (!std::has_single_bit(alignment_) || alignment_ > gguf_max_alignment) {
            fail("general.alignment is " + std::to_string(alignment_) + ", expected a power of two up to " +
                     std::to_string(gguf_max_alignment),
                 "general.alignment");
        }
    }

    void read_tensor() {
        GgufTensor tensor{};
        tensor.name = name("tensor name", gguf_max_tensor_name_bytes);
        tensor.part = part_;
        const std::string shown = "tensor '" + printable(tensor.name) + "'";
        if (!names_.insert(tensor.name).second) {
            fail(shown + " occurs twice", tensor.name);
        }
        const auto n_dims = cursor_.scalar<std::uint32_t>("the dimension count", tensor.name);
        if (n_dims < 1 || n_dims > tensor.ne.size()) {
            fail(shown + " has " + std::to_string(n_dims) + " dimensions (1 to 4 allowed)", tensor.name);
        }
        tensor.ne.fill(1);
        for (std::uint32_t i = 0; i < n_dims; ++i) {
            tensor.ne.at(i) = cursor_.scalar<std::int64_t>("a dimension", tensor.name);
            if (tensor.ne.at(i) <= 0) {
                fail(shown + " has dimension " + std::to_string(tensor.ne.at(i)) + ", expected a positive one",
                     tensor.name);
            }
        }
        const auto raw_type = cursor_.scalar<std::uint32_t>("the type", tensor.name);
        if (raw_type >= static_cast<std::uint32_t>(GGML_TYPE_COUNT) ||
            ggml_blck_size(static_cast<ggml_type>(raw_type)) <= 0 ||
            ggml_type_size(static_cast<ggml_type>(raw_type)) == 0) {
            fail(shown + " has the unknown type " + std::to_string(raw_type), tensor.name);
        }
        tensor.type = static_cast<ggml_type>(raw_type);
        tensor.offset = cursor_.scalar<std::uint64_t>("the offset", tensor.name);
        tensor.n_bytes = tensor_bytes(tensor, shown);
        header_.tensors.push_back(std::move(tensor));
    }

    std::uint64_t tensor_bytes(const GgufTensor & tensor, const std::string & shown) const {
        const std::int64_t block = ggml_blck_size(tensor.type);
        if (tensor.ne[0] % block != 0) {
            fail(shown + " has rows of " + std::to_string(tensor.ne[0]) + " values, no multiple of the block of " +
                     std::to_string(block) + " of its type " + ggml_type_name(tensor.type),
                 tensor.name);
        }
        // The element count must fit int64 too: ggml computes with it.
        std::uint64_t n = ggml_type_size(tensor.type);
        std::uint64_t elements = 1;
        bool fits = multiply(n, static_cast<std::uint64_t>(tensor.ne[0] / block), n);
        for (std::size_t i = 0; i < tensor.ne.size(); ++i) {
            fits = fits && multiply(elements, static_cast<std::uint64_t>(tensor.ne.at(i)), elements);
            fits = fits && (i == 0 || multiply(n, static_cast<std::uint64_t>(tensor.ne.at(i)), n));
        }
        constexpr auto limit = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
        if (!fits || n > limit || elements > limit) {
            fail(shown + " is larger than any file (its dimensions overflow)", tensor.name);
        }
        return n;
    }

    /// Turns relative offsets into absolute ones; checks alignment, bounds and overlaps.
    void place_tensors() {
        const std::uint64_t data = (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
        for (GgufTensor & tensor : header_.tensors) {
            const std::string shown = "tensor '" + printable(tensor.name) + "'";
            if (tensor.offset % alignment_ != 0) {
                fail(shown + " has the offset " + std::to_string(tensor.offset) + ", no multiple of the alignment " +
                         std::to_string(alignment_),
                     tensor.name);
            }
            if (data > file_.size() || tensor.offset > file_.size() - data ||
                tensor.n_bytes > file_.size() - data - tensor.offset) {
                fail(shown + " lies beyond the end of the file (" + std::to_string(tensor.n_bytes) +
                         " bytes at offset " + std::to_string(tensor.offset) + " of the data at byte " +
                         std::to_string(data) + ", file of " + std::to_string(file_.size()) +
                         " bytes); is the download complete?",
                     tensor.name);
            }
            tensor.offset += data;
        }
        std::vector<const GgufTensor *> order;
        order.reserve(header_.tensors.size());
        for (const GgufTensor & tensor : header_.tensors) {
            order.push_back(&tensor);
        }
        std::sort(order.begin(), order.end(), [](const auto * a, const auto * b) { return a->offset < b->offset; });
        for (std::size_t i = 1; i < order.size(); ++i) {
            if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset) {
                fail("tensors '" + printable(order[i - 1]->name) + "' and '" + printable(order[i]->name) +
                         "' overlap in the file",
                     order[i]->name);
            }
        }
    }

    const FileBytes & file_;
    std::uint32_t part_;
    Cursor cursor_;
    std::uint64_t alignment_ = gguf_default_alignment;
    std::set<std::string, std::less<>> names_;
    GgufHeader header_;
};

}  // namespace

const char * gguf_type_name(GgufType type) {
    switch (type) {
        case GgufType::u8: return "u8";
        case GgufType::i8: return "i8";
        case GgufType::u16: return "u16";
        case GgufType::i16: return "i16";
        case GgufType::u32: return "u32";
        case GgufType::i32: return "i32";
        case GgufType::f32: return "f32";
        case GgufType::boolean: return "bool";
        case GgufType::string: return "string";
        case GgufType::array: return "array";
        case GgufType::u64: return "u64";
        case GgufType::i64: return "i64";
        case GgufType::f64: return "f64";
        case GgufType::count: break;
    }
    return "unknown";
}

std::uint64_t gguf_type_bytes(GgufType type) {
    switch (type) {
        case GgufType::u8:
        case GgufType::i8:
        case GgufType::boolean: return 1;
        case GgufType::u16:
        case GgufType::i16: return 2;
        case GgufType::u32:
        case GgufType::i32:
        case GgufType::f32: return 4;
        case GgufType::u64:
        case GgufType::i64:
        case GgufType::f64: return 8;
        case GgufType::string:
        case GgufType::array:
        case GgufType::count: break;
    }
    return 0;
}

void gguf_fail(const std::filesystem::path & path, const std::string & what, std::string_view field) {
    throw Error(ErrorCode::model_load, "cannot load '" + printable_path(path) + "': " + what, printable(field));
}

std::vector<std::uint64_t> gguf_string_hashes(const FileBytes & file, const GgufValue & strings) {
    std::vector<std::uint64_t> out;
    out.reserve(static_cast<std::size_t>(strings.count));
    Cursor cursor(file, strings.offset);
    for (std::uint64_t i = 0; i < strings.count; ++i) {
        auto left = cursor.scalar<std::uint64_t>("the length of a string");
        cursor.require(left, "a string");  // holds unless the file changed since it was parsed
        std::uint64_t hash = fnv_basis;
        bool ended = false;
        while (left > 0) {
            const auto chunk =
                cursor.view(static_cast<std::size_t>(std::min<std::uint64_t>(left, cursor_buffer_bytes)));
            left -= chunk.size();
            const auto nul = std::find(chunk.begin(), chunk.end(), std::byte{0});
            hash = ended ? hash : fnv1a(hash, std::span(chunk.begin(), nul));
            ended = ended || nul != chunk.end();
        }
        if (hash == fnv_basis) {
            const std::string name = "[EMPTY_" + std::to_string(i) + "]";  // as llama.cpp names it
            hash = fnv1a(hash, std::as_bytes(std::span(name)));
        }
        out.push_back(hash);
    }
    return out;
}

GgufHeader gguf_parse(const FileBytes & file, std::uint32_t part) { return Parser(file, part).parse(); }

}  // namespace dflash
