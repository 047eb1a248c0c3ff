// Metadata of one model with ranges: each refusal names the key, the value and what was expected.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dflash/error.h"
#include "dflash/gguf_reader.h"

namespace dflash {

class GgufFields {
  public:
    /// `code` is thrown for missing and impossible values; a value of another type throws as GgufFile does.
    GgufFields(const GgufFile & file, ErrorCode code) : file_(file), code_(code) {}

    [[noreturn]] void fail(const std::string & what, std::string_view field) const;

    /// "<architecture>.<suffix>"
    [[nodiscard]] std::string key(std::string_view suffix) const {
        return file_.architecture() + "." + std::string(suffix);
    }

    [[nodiscard]] std::int32_t integer(const std::string & key, std::int64_t lo, std::int64_t hi) const;
    [[nodiscard]] std::int32_t integer_or(const std::string & key, std::int32_t fallback, std::int64_t lo,
                                          std::int64_t hi) const;
    /// A scalar or one value per layer; the values.
    [[nodiscard]] std::vector<std::int32_t> integers(const std::string & key, std::int64_t lo, std::int64_t hi,
                                                     std::uint64_t max_count) const;
    [[nodiscard]] float real_or(const std::string & key, float fallback, float lo, float hi) const;
    [[nodiscard]] std::string text_or(const std::string & key, const std::string & fallback) const;

  private:
    std::int32_t in_range(const std::string & key, std::int64_t value, std::int64_t lo, std::int64_t hi) const;

    const GgufFile & file_;
    ErrorCode code_;
};

}  // namespace dflash
