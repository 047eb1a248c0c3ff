// The tests link libllama once, so exactly one file of it is mapped.
#include "dflash/mapped_libraries.h"

#include <doctest/doctest.h>
#include <llama.h>

TEST_CASE("one libllama is mapped, and libllama-common does not count as one") {
    CHECK(llama_max_devices() > 0);  // keeps the linker from dropping the library
    const std::vector<std::string> paths = dflash::mapped_libraries();
    REQUIRE(paths.size() == 1);
    CHECK(paths.front().find("llama") != std::string::npos);
}
