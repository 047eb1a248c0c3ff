// Split GGUF models: any part opens all, and odd sets are refused.
#include <doctest/doctest.h>

#include "dflash/gguf_reader.h"
#include "gguf_bytes.h"

using namespace dflash;
using namespace dflash::test;

namespace {

GgufBytes part(std::uint16_t no, std::uint16_t count, std::int32_t n_tensors) {
    GgufBytes bytes;
    bytes.text("general.architecture", "llama");
    bytes.raw("split.no", t_u16, bytes_of(no)).raw("split.count", t_u16, bytes_of(count));
    bytes.raw("split.tensors.count", t_i32, bytes_of(n_tensors));
    return bytes;
}

/// Two parts, named as llama.cpp names them; one tensor each.
struct TwoParts {
    TempDir dir;
    std::filesystem::path first = dir.write(
        "m-00001-of-00002.gguf", part(0, 2, 2).u32("n", 5).tensor("a", {2}, GGML_TYPE_F32, "AAAAaaaa").build());
    std::filesystem::path second =
        dir.write("m-00002-of-00002.gguf", part(1, 2, 2).tensor("b", {2}, GGML_TYPE_F32, "BBBBbbbb").build());
};

void check_refused(const std::filesystem::path & path, const std::string & field, const std::string & words) {
    const auto error = error_of([&] { (void)GgufFile::open(path); });
    REQUIRE(error.has_value());
    CHECK(error->code() == ErrorCode::model_load);
    CHECK(error->field() == field);
    const std::string message = error->what();
    CHECK_MESSAGE(message.find(words) != std::string::npos, message);
}

}  // namespace

TEST_CASE("split: any part opens the whole model") {
    const TwoParts parts;
    for (const auto & path : {parts.first, parts.second}) {
        const GgufFile file = GgufFile::open(path);
        CHECK(file.path() == parts.first);
        CHECK(file.find_int("n") == 5);
        REQUIRE(file.tensors().size() == 2);
        CHECK(file.find_tensor("b")->part == 1);
        CHECK(file.file_bytes() == std::filesystem::file_size(parts.first) + std::filesystem::file_size(parts.second));
        std::string got(4, '\0');
        file.read(*file.find_tensor("b"), 4, std::as_writable_bytes(std::span(got)));
        CHECK(got == "bbbb");
        file.read(*file.find_tensor("a"), 0, std::as_writable_bytes(std::span(got)));
        CHECK(got == "AAAA");
    }
}

TEST_CASE("split: a model of one part needs no special name") {
    const TempDir dir;
    CHECK(GgufFile::open(dir.write("one.gguf", part(0, 1, 1).tensor("a", {1}).build())).tensors().size() == 1);
    CHECK(GgufFile::open(dir.write("zero.gguf", part(0, 0, 1).tensor("a", {1}).build())).tensors().size() == 1);
}

TEST_CASE("split: refuses a missing part") {
    const TwoParts parts;
    std::filesystem::remove(parts.second);
    check_refused(parts.first, "", "m-00002-of-00002.gguf': no such file");
}

TEST_CASE("split: refuses a part under another name") {
    const TwoParts parts;
    const auto renamed = parts.dir.path() / "model.gguf";
    std::filesystem::copy_file(parts.first, renamed);
    check_refused(renamed, "split.count", "its name does not say so");
    const auto wrong_number = parts.dir.path() / "x-00002-of-00002.gguf";
    std::filesystem::copy_file(parts.first, wrong_number);
    check_refused(wrong_number, "split.count", "its name does not say so");
    const auto wrong_count = parts.dir.path() / "x-00001-of-00003.gguf";
    std::filesystem::copy_file(parts.first, wrong_count);
    check_refused(wrong_count, "split.count", "its name does not say so");
    const auto odd = parts.dir.path() / "x-00001-of-../a.gguf";
    check_refused(odd, "", "no such file");
}

TEST_CASE("split: refuses parts of different models") {
    const TwoParts parts;
    parts.dir.write("m-00002-of-00002.gguf", part(1, 2, 9).tensor("b", {2}).build());
    check_refused(parts.first, "split.no", "not part 2 of 2 of the same model");
    parts.dir.write("m-00002-of-00002.gguf", part(0, 2, 2).tensor("b", {2}).build());
    check_refused(parts.first, "split.no", "not part 2 of 2 of the same model");
    parts.dir.write("m-00002-of-00002.gguf",
                    GgufBytes().text("general.architecture", "llama").tensor("b", {2}).build());
    check_refused(parts.first, "split.count", "no integer 'split.count'");
}

TEST_CASE("split: refuses wrong counts") {
    const TempDir dir;
    check_refused(dir.write("m-00001-of-60000.gguf", part(0, 60000, 1).tensor("a", {1}).build()), "split.count",
                  "60000");
    dir.write("n-00002-of-00002.gguf", part(1, 2, 3).tensor("b", {1}).build());
    check_refused(dir.write("n-00001-of-00002.gguf", part(0, 2, 3).tensor("a", {1}).build()), "split.tensors.count",
                  "says 3");
    GgufBytes negative;
    negative.text("general.architecture", "llama").raw("split.count", t_i32, bytes_of(-2));
    check_refused(dir.write("o-00001-of-00002.gguf", negative.build()), "split.count", "-2");
    GgufBytes text;
    text.text("general.architecture", "llama").text("split.count", "2");
    check_refused(dir.write("p-00001-of-00002.gguf", text.build()), "split.count", "no integer 'split.count'");
}

TEST_CASE("split: refuses a tensor that two parts hold") {
    const TwoParts parts;
    parts.dir.write("m-00002-of-00002.gguf", part(1, 2, 2).tensor("a", {2}).build());
    check_refused(parts.first, "a", "occurs in two split parts");
}
