// GgufFile: what it reads from good files, and one refusal per way to be wrong.
#include "dflash/gguf_reader.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <limits>

#include "dflash/text.h"
#include "gguf_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();

GgufBytes small() {
    GgufBytes file;
    file.text("general.architecture", "llama");
    return file;
}

/// Opens the bytes; expects model_load with this field and words.
void check_refused(const std::string & bytes, const std::string & field, const std::string & words) {
    const TempDir dir;
    const auto path = dir.write("bad.gguf", bytes);
    const auto error = error_of([&] { (void)GgufFile::open(path); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::model_load);
    CHECK(error->field() == field);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
    CHECK(message.find('\n') == std::string::npos);
}

void check_path_refused(const std::filesystem::path & path, const std::string & words) {
    const auto error = error_of([&] { (void)GgufFile::open(path); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::model_load);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
}

}  // namespace

TEST_CASE("gguf: reads every kind of value") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.u32("n", 7).f32("x", 0.5F).boolean("yes", true).text("word", "caf\xC3\xA9");
    bytes.raw("i16", t_i16, bytes_of<std::int16_t>(-3)).raw("u64", t_u64, bytes_of<std::uint64_t>(1ULL << 40));
    bytes.raw("f64", t_f64, bytes_of(0.25)).raw("u8", t_u8, bytes_of<std::uint8_t>(255));
    bytes.i32s("ints", {1, -2, 3}).numbers<float>("floats", t_f32, {1.5F, -2.0F}).texts("words", {"a", "", "bc"});
    bytes.numbers<std::uint8_t>("flags", t_bool, {1, 0});
    bytes.tensor("w", {4, 2}, GGML_TYPE_F32, std::string("0123456789abcdefghijklmnopqrstuv"));
    bytes.tensor("q", {32}, GGML_TYPE_Q8_0);
    const GgufFile file = GgufFile::open(dir.write("a.gguf", bytes.build()));

    CHECK(file.architecture() == "llama");
    CHECK(file.has("n"));
    CHECK_FALSE(file.has("m"));
    CHECK(file.find_int("n") == 7);
    CHECK(file.find_int("i16") == -3);
    CHECK(file.find_int("u64") == 1LL << 40);
    CHECK(file.find_int("u8") == 255);
    CHECK(file.find_int("missing") == std::nullopt);
    CHECK(file.find_float("x") == 0.5);
    CHECK(file.find_float("f64") == 0.25);
    CHECK(file.find_bool("yes") == true);
    CHECK(file.find_string("word") == "caf\xC3\xA9");
    CHECK(file.is_array("ints"));
    CHECK_FALSE(file.is_array("n"));
    CHECK(file.find_int_array("ints") == std::vector<std::int64_t>{1, -2, 3});
    CHECK(file.find_int_array("flags") == std::vector<std::int64_t>{1, 0});
    CHECK(file.find_float_array("floats") == std::vector<double>{1.5, -2.0});
    CHECK(file.array_size("words") == 3U);
    CHECK(file.string_array_hash("missing") == std::nullopt);
    CHECK(file.file_bytes() == std::filesystem::file_size(file.path()));

    REQUIRE(file.tensors().size() == 2);
    const GgufTensor * w = file.find_tensor("w");
    REQUIRE(w != nullptr);
    CHECK(w->ne == std::array<std::int64_t, 4>{4, 2, 1, 1});
    CHECK(w->n_bytes == 32);
    CHECK(file.find_tensor("q")->n_bytes == 34);
    CHECK(file.find_tensor("nope") == nullptr);
    std::string got(4, '\0');
    file.read(*w, 10, std::as_writable_bytes(std::span(got)));
    CHECK(got == "abcd");
    const auto error = error_of([&] { file.read(*w, 30, std::as_writable_bytes(std::span(got))); });
    CHECK(error.value().code() == ErrorCode::invalid_argument);
}

TEST_CASE("gguf: version 2 is read like version 3") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.version = 2;
    CHECK(GgufFile::open(dir.write("a.gguf", bytes.build())).architecture() == "llama");
}

TEST_CASE("gguf: the hash tells vocabularies apart") {
    const TempDir dir;
    const auto hash = [&](const std::vector<std::string> & words) {
        GgufBytes bytes = small();
        bytes.texts("t", words);
        return GgufFile::open(dir.write("a.gguf", bytes.build())).string_array_hash("t").value();
    };
    CHECK(hash({"ab", "c"}) == hash({"ab", "c"}));
    CHECK(hash({"ab", "c"}) != hash({"a", "bc"}));
    CHECK(hash({"ab", "c"}) != hash({"ab", "d"}));
    CHECK(hash({}) != hash({""}));
}

TEST_CASE("gguf: a string longer than the read buffer is walked over and hashed") {
    const TempDir dir;
    const std::string longest(700'000, 'x');
    GgufBytes bytes = small();
    bytes.texts("t", {longest, "y"}).text("long", longest).u32("after", 5);
    const GgufFile file = GgufFile::open(dir.write("a.gguf", bytes.build()));
    CHECK(file.find_int("after") == 5);
    CHECK(file.find_string("long") == longest);
    CHECK(file.array_size("t") == 2U);
}

TEST_CASE("gguf: a value of another type is refused with its key") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.text("word", "x").u32("n", 1).i32s("ints", {1}).raw("big", t_u64, bytes_of(huge));
    bytes.numbers<std::uint64_t>("bigs", t_u64, {huge});
    const GgufFile file = GgufFile::open(dir.write("a.gguf", bytes.build()));
    const auto field = [](auto action) { return error_of(action).value().field(); };
    CHECK(field([&] { (void)file.find_int("word"); }) == "word");
    CHECK(field([&] { (void)file.find_int("big"); }) == "big");
    CHECK(field([&] { (void)file.find_int("ints"); }) == "ints");
    CHECK(field([&] { (void)file.find_float("n"); }) == "n");
    CHECK(field([&] { (void)file.find_bool("n"); }) == "n");
    CHECK(field([&] { (void)file.find_string("n"); }) == "n");
    CHECK(field([&] { (void)file.find_int_array("n"); }) == "n");
    CHECK(field([&] { (void)file.find_int_array("bigs"); }) == "bigs");
    CHECK(field([&] { (void)file.find_float_array("ints"); }) == "ints");
    CHECK(field([&] { (void)file.array_size("n"); }) == "n");
    CHECK(field([&] { (void)file.string_array_hash("ints"); }) == "ints");
}

TEST_CASE("gguf: refuses what does not begin like a GGUF file") {
    check_refused("", "", "it is empty");
    check_refused("GGU", "", "truncated");
    check_refused("GGUF", "", "truncated");
    check_refused("GGML" + std::string(60, '\0'), "", "does not begin with 'GGUF'");
}

TEST_CASE("gguf: refuses other versions and byte orders") {
    for (const std::uint32_t version : {0U, 1U, 4U, 99U}) {
        GgufBytes bytes = small();
        bytes.version = version;
        check_refused(bytes.build(), "", "version " + std::to_string(version) + " is not supported");
    }
    GgufBytes bytes = small();
    bytes.version = 0x03000000;
    check_refused(bytes.build(), "", "big-endian");
}

TEST_CASE("gguf: refuses counts before allocating for them") {
    for (const std::uint64_t n : {huge, huge / 2, std::uint64_t{1'000'000'000}}) {
        GgufBytes keys = small();
        keys.n_keys = n;
        check_refused(keys.build(), "key count", "over the limit");
        GgufBytes tensors = small();
        tensors.n_tensors = n;
        check_refused(tensors.build(), "tensor count", "over the limit");
    }
    GgufBytes keys = small();
    keys.n_keys = 10'000;
    check_refused(keys.build(), "key count", "truncated");
    GgufBytes tensors = small();
    tensors.n_tensors = 10'000;
    check_refused(tensors.build(), "tensor count", "truncated");
}

TEST_CASE("gguf: refuses lengths of strings and arrays that the file cannot hold") {
    for (const std::uint64_t n : {std::uint64_t{1} << 63, std::uint64_t{2} << 30, std::uint64_t{100}}) {
        check_refused(small().raw("k", t_string, bytes_of(n)).build(), "k", "truncated");
    }
    check_refused(small().array("k", t_u8, std::uint64_t{1} << 40, "").build(), "k", "over the limit");
    check_refused(small().array("k", t_u8, 1'000'000, "").build(), "k", "truncated");
    check_refused(small().array("k", t_string, 1'000'000, "").build(), "k", "truncated");
    check_refused(small().array("k", t_string, 2, string_bytes("a") + bytes_of(huge)).build(), "k", "truncated");
    check_refused(small().text("k", std::string((16 << 20) + 1, 'x')).build(), "k", "over the limit");
}

TEST_CASE("gguf: refuses arrays of arrays and unknown value types") {
    std::string nested;
    for (int depth = 0; depth < 1000; ++depth) {
        nested += bytes_of(t_array) + bytes_of<std::uint64_t>(1);
    }
    check_refused(small().raw("k", t_array, nested).build(), "k", "array of arrays");
    check_refused(small().raw("k", 13, "").build(), "k", "unknown value type 13");
    check_refused(small().raw("k", std::numeric_limits<std::uint32_t>::max(), "").build(), "k", "unknown value type");
    check_refused(small().array("k", 99, 0, "").build(), "k", "unknown value type 99");
}

TEST_CASE("gguf: refuses duplicate, empty, long and NUL-carrying keys") {
    check_refused(small().u32("k", 1).u32("k", 2).build(), "k", "occurs twice");
    check_refused(small().u32("", 1).build(), "", "has 0 bytes");
    check_refused(small().u32(std::string(2000, 'k'), 1).build(), "", "has 2000 bytes");
    check_refused(small().u32(std::string_view("a\0b", 3), 1).build(), "a\\x00b", "NUL");
}

TEST_CASE("gguf: keeps a key that is no UTF-8 and escapes it in messages") {
    const TempDir dir;
    CHECK(GgufFile::open(dir.write("a.gguf", small().u32("\xFF", 3).build())).find_int("\xFF") == 3);
    check_refused(small().u32("\xFF\x1B", 1).u32("\xFF\x1B", 1).build(), "\\xff\\x1b", "'\\xff\\x1b' occurs twice");
}

TEST_CASE("gguf: refuses impossible alignments") {
    for (const std::uint32_t alignment : {0U, 3U, 1U << 31, 48U}) {
        check_refused(small().u32("general.alignment", alignment).build(), "general.alignment", "power of two");
    }
    check_refused(small().raw("general.alignment", t_u64, bytes_of<std::uint64_t>(32)).build(), "general.alignment",
                  "expected a u32");
}

TEST_CASE("gguf: honours another alignment") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.alignment = 64;
    bytes.u32("general.alignment", 64).tensor("a", {1}).tensor("b", {1});
    const GgufFile file = GgufFile::open(dir.write("a.gguf", bytes.build()));
    CHECK(file.find_tensor("b")->offset - file.find_tensor("a")->offset == 64);
}

TEST_CASE("gguf: refuses impossible tensor shapes") {
    const auto with = [](std::uint32_t n_dims, const std::vector<std::int64_t> & ne,
                         std::uint32_t type = GGML_TYPE_F32) {
        return small().raw_tensor("w", n_dims, ne, type, 0).build() + std::string(64, '\0');
    };
    check_refused(with(0, {}), "w", "0 dimensions");
    check_refused(with(5, {1, 1, 1, 1, 1}), "w", "5 dimensions");
    check_refused(with(0xFFFFFFFFU, {1}), "w", "4294967295 dimensions");
    check_refused(with(2, {4, 0}), "w", "dimension 0");
    check_refused(with(1, {-1}), "w", "dimension -1");
    check_refused(with(4, {1LL << 40, 1LL << 40, 1LL << 40, 1}), "w", "overflow");
    check_refused(with(2, {1LL << 61, 2}), "w", "overflow");
    check_refused(with(1, {std::numeric_limits<std::int64_t>::max() / 4}), "w", "beyond the end");
    check_refused(with(2, {31, 1}, GGML_TYPE_Q8_0), "w", "no multiple of the block of 32");
}

TEST_CASE("gguf: refuses unknown tensor types") {
    for (const std::uint32_t type :
         {4U, 5U, 31U, static_cast<std::uint32_t>(GGML_TYPE_COUNT), 0x7FFFFFFFU, 0xFFFFFFFFU}) {
        check_refused(small().raw_tensor("w", 1, {32}, type, 0).build() + std::string(256, '\0'), "w", "unknown type");
    }
}

TEST_CASE("gguf: refuses tensors that lie wrongly in the file") {
    const auto at = [](std::uint64_t offset) {
        return small().raw_tensor("w", 1, {8}, GGML_TYPE_F32, offset).build() + std::string(64, '\0');
    };
    check_refused(at(4), "w", "no multiple of the alignment");
    check_refused(at(64), "w", "beyond the end");
    check_refused(at(huge - 31), "w", "beyond the end");
    GgufBytes two = small();
    two.raw_tensor("a", 1, {16}, GGML_TYPE_F32, 0).raw_tensor("b", 1, {8}, GGML_TYPE_F32, 32);
    check_refused(two.build() + std::string(256, '\0'), "b", "overlap");
}

TEST_CASE("gguf: refuses bad tensor names") {
    check_refused(small().tensor("w", {1}).tensor("w", {1}).build(), "w", "occurs twice");
    check_refused(small().tensor("", {1}).build(), "", "has 0 bytes");
    check_refused(small().tensor(std::string(64, 'w'), {1}).build(), "", "has 64 bytes");
    check_refused(small().tensor(std::string_view("a\0b", 3), {1}).build(), "a\\x00b", "NUL");
}

TEST_CASE("gguf: refuses a file without an architecture") {
    check_refused(GgufBytes().u32("n", 1).build(), "general.architecture", "no key 'general.architecture'");
    check_refused(GgufBytes().u32("general.architecture", 1).build(), "general.architecture", "expected a string");
    check_refused(GgufBytes().text("general.architecture", "").build(), "general.architecture", "0 bytes");
}

TEST_CASE("gguf: cut at any byte of its header or data, a file is refused and nothing breaks") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.u32("n", 1)
        .texts("words", {"a", "bc"})
        .i32s("ints", {1, 2})
        .boolean("b", true)
        .tensor("w", {8})
        .tensor("q", {32}, GGML_TYPE_Q8_0);
    const std::string whole = bytes.build();
    const std::size_t data_end = whole.size() - 30;  // the padding after the last tensor may be missing
    for (std::size_t n = 0; n < data_end; ++n) {
        const auto path = dir.write("cut.gguf", std::string_view(whole).substr(0, n));
        const auto error = error_of([&] { (void)GgufFile::open(path); });
        REQUIRE_MESSAGE(error.has_value(), "cut at byte ", n);
        CHECK(error->code() == ErrorCode::model_load);
    }
    CHECK(GgufFile::open(dir.write("cut.gguf", std::string_view(whole).substr(0, data_end))).tensors().size() == 2);
}

TEST_CASE("gguf: any one byte changed gives a file or our error") {
    const TempDir dir;
    GgufBytes bytes = small();
    bytes.u32("n", 1)
        .texts("words", {"a", "bc"})
        .i32s("ints", {1, 2})
        .tensor("w", {8})
        .tensor("q", {32}, GGML_TYPE_Q8_0);
    const std::string whole = bytes.build();
    const std::size_t n_header = bytes.header().size();
    for (std::size_t i = 0; i < n_header; ++i) {
        for (const int value : {0x00, 0x01, 0x7F, 0x80, 0xFF}) {
            std::string changed = whole;
            changed[i] = static_cast<char>(value);
            const auto path = dir.write("changed.gguf", changed);
            const auto error = error_of([&] { (void)GgufFile::open(path); });
            CHECK((!error.has_value() || error->code() == ErrorCode::model_load));
        }
    }
}

TEST_CASE("gguf: refuses what is no regular file, at once") {
    const TempDir dir;
    check_path_refused(dir.path(), "directory");
    check_path_refused(dir.path() / "none.gguf", "no such file");
    check_path_refused("/dev/zero", "not a regular file");
    const auto fifo = dir.path() / "fifo.gguf";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    check_path_refused(fifo, "not a regular file");
    const auto loop = dir.path() / "loop.gguf";
    std::filesystem::create_symlink(loop, loop);
    check_path_refused(loop, "Too many levels");
}

TEST_CASE("gguf: a file that shrinks while open gives an error") {
    const TempDir dir;
    const auto path = dir.write("a.gguf", small().text("word", "hello").tensor("w", {1024}).build());
    const GgufFile file = GgufFile::open(path);
    std::filesystem::resize_file(path, 40);
    std::vector<float> values(1024);
    const auto error = error_of([&] { file.read(file.tensors()[0], 0, std::as_writable_bytes(std::span(values))); });
    CHECK(error.value().code() == ErrorCode::model_load);
    CHECK(error_of([&] { (void)file.find_string("word"); }).value().code() == ErrorCode::model_load);
}

TEST_CASE("text: control characters and broken UTF-8 are escaped") {
    CHECK(printable("plain caf\xC3\xA9") == "plain caf\xC3\xA9");
    CHECK(printable("a\x1B[31m\n\x7F") == "a\\x1b[31m\\x0a\\x7f");
    CHECK(printable("\xC2\x9B") == "\\xc2\\x9b");                               // C1
    CHECK(printable("\xC0\xAF \xED\xA0\x80") == "\\xc0\\xaf \\xed\\xa0\\x80");  // overlong, surrogate
    CHECK(printable("\xE2\x82") == "\\xe2\\x82");
    CHECK(printable("\xE2\x80\xAE"
                    "x") == "\\xe2\\x80\\xaex");         // right-to-left override
    CHECK(printable("\xE2\x80\x9C") == "\xE2\x80\x9C");  // a quotation mark
    CHECK(printable("abcdef", 3) == "abc...");
}
