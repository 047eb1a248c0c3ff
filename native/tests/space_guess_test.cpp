// Optional white space is expected as it was written before.
#include "dflash/space_guess.h"

#include <doctest/doctest.h>

using dflash::expected_space;

TEST_CASE("without an example white space is as JSON usually has it") {
    CHECK(expected_space("", '"').empty());
    CHECK(expected_space("  ", '"').empty());
    CHECK(expected_space("{", '"').empty());
    CHECK(expected_space("{\"a\":", '1') == " ");
    CHECK(expected_space("[1,", '2') == " ");
    CHECK(expected_space("[1", ']').empty());
}

TEST_CASE("the same neighbours count first, then the same one before") {
    CHECK(expected_space("{\"a\":1,\"b\":", '2').empty());
    CHECK(expected_space("{\"a\":1,  \"b\":[1, 2], ", '"') == "  ");
    CHECK(expected_space("{\"a\": 1,", '"') == " ");
    CHECK(expected_space("[1,\n 2,", '"') == "\n ");
    CHECK(expected_space("{ \"a\" : 1, \"b\"", ':') == " ");
}

TEST_CASE("brackets of both shapes count as the same, and closing ones follow opening ones") {
    CHECK(expected_space("{ \"a\": [", '1') == " ");
    CHECK(expected_space("{ \"a\": 1", '}') == " ");
    CHECK(expected_space("{ \"a\": [1]", '}').empty());
    CHECK(expected_space("[ {\"a\": 1 }", ']') == " ");
}
