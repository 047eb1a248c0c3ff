// Ranges and messages of metadata values.
#include "gguf_fields.h"

#include <cmath>

#include "dflash/text.h"

namespace dflash {

void GgufFields::fail(const std::string & what, std::string_view field) const {
    throw Error(code_, "cannot use '" + printable_path(file_.path()) + "': " + what, printable(field));
}

std::int32_t GgufFields::in_range(const std::string & key, std::int64_t value, std::int64_t lo, std::int64_t hi) const {
    if (value < lo || value > hi) {
        fail("'" + printable(key) + "' is " + std::to_string(value) + ", expected " + std::to_string(lo) + " to " +
                 std::to_string(hi),
             key);
    }
    return static_cast<std::int32_t>(value);
}

std::int32_t GgufFields::integer(const std::string & key, std::int64_t lo, std::int64_t hi) const {
    const auto value = file_.find_int(key);
    if (!value) {
        fail("it has no '" + printable(key) + "'", key);
    }
    return in_range(key, *value, lo, hi);
}

std::int32_t GgufFields::integer_or(const std::string & key, std::int32_t fallback, std::int64_t lo,
                                    std::int64_t hi) const {
    return file_.has(key) ? integer(key, lo, hi) : fallback;
}

std::vector<std::int32_t> GgufFields::integers(const std::string & key, std::int64_t lo, std::int64_t hi,
                                               std::uint64_t max_count) const {
    if (!file_.is_array(key)) {
        return {integer(key, lo, hi)};
    }
    const std::uint64_t count = file_.array_size(key).value();
    if (count == 0 || count > max_count) {
        fail("'" + printable(key) + "' has " + std::to_string(count) + " values, expected 1 to " +
                 std::to_string(max_count),
             key);
    }
    const auto values = file_.find_int_array(key).value();
    std::vector<std::int32_t> out;
    out.reserve(values.size());
    for (const std::int64_t value : values) {
        out.push_back(in_range(key, value, lo, hi));
    }
    return out;
}

float GgufFields::real_or(const std::string & key, float fallback, float lo, float hi) const {
    const auto value = file_.find_float(key);
    if (!value) {
        return fallback;
    }
    // Not (lo <= v <= hi), so that NaN is refused too.
    if (!(*value >= static_cast<double>(lo) && *value <= static_cast<double>(hi))) {
        fail("'" + printable(key) + "' is " + std::to_string(*value) + ", expected " + std::to_string(lo) + " to " +
                 std::to_string(hi),
             key);
    }
    return static_cast<float>(*value);
}

std::string GgufFields::text_or(const std::string & key, const std::string & fallback) const {
    return file_.find_string(key).value_or(fallback);
}

}  // namespace dflash
