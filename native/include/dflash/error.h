// The one exception type of the core; the border maps its codes to Python exceptions.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace dflash {

enum class ErrorCode : std::uint8_t {
    invalid_argument,      // the caller's fault: ValueError
    model_load,            // a file that cannot be read or is no usable GGUF
    incompatible_drafter,  // drafter and target do not fit, or the drafter is of a family we cannot run
    context_overflow,      // more tokens than the context holds
    out_of_memory,
    cancelled,
    decode_failed,  // llama_decode or a draft graph reported failure
    unsupported,    // this target cannot do what was asked
};

/// Every failure of the core. `field` names the metadata key, tensor or argument at fault, or is empty.
class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string & message, std::string field = {})
        : std::runtime_error(message), code_(code), field_(std::move(field)) {}

    [[nodiscard]] ErrorCode code() const noexcept { return code_; }
    [[nodiscard]] const std::string & field() const noexcept { return field_; }

  private:
    ErrorCode code_;
    std::string field_;
};

}  // namespace dflash
