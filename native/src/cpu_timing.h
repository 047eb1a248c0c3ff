// Runs a graph on the CPU backend again and again and takes the median; shared by the timings of single operations.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <cstdint>
#include <string>

namespace dflash::cpu_timing {

constexpr std::int32_t max_threads = GGML_MAX_N_THREADS;

/// Throws Error(invalid_argument) on a budget that is not positive or a number of threads out of 1 to max_threads;
/// `who` is the function to name.
void check(const std::string & who, std::int32_t n_threads, double budget_ms);

[[nodiscard]] ggml_backend_dev_t cpu_device(const std::string & who);  // throws Error(unsupported)
/// `device`: null for ggml's CPU device.
[[nodiscard]] ggml_backend_ptr start_backend(const std::string & who, std::int32_t n_threads,
                                             ggml_backend_dev_t device = nullptr);

/// Median milliseconds over as many runs as fit into budget_ms, at least one after a first that warms up.
[[nodiscard]] double median_ms(const std::string & who, ggml_backend_t backend, ggml_cgraph * graph, double budget_ms);

}  // namespace dflash::cpu_timing
