// The CPU backend for timings, and the median over repeated runs of a graph.
#include "cpu_timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "dflash/error.h"

namespace dflash::cpu_timing {

namespace {

constexpr std::size_t max_runs = 4096;

double run_ms(const std::string & who, ggml_backend_t backend, ggml_cgraph * graph) {
    const auto start = std::chrono::steady_clock::now();
    if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) {
        throw Error(ErrorCode::decode_failed, who + ": ggml failed to compute the graph");
    }
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

void check(const std::string & who, std::int32_t n_threads, double budget_ms) {
    if (n_threads < 1 || n_threads > max_threads) {
        throw Error(
            ErrorCode::invalid_argument,
            who + ": n_threads is " + std::to_string(n_threads) + ", expected 1 to " + std::to_string(max_threads),
            "n_threads");
    }
    if (!std::isfinite(budget_ms) || budget_ms <= 0.0) {
        throw Error(ErrorCode::invalid_argument,
                    who + ": budget_ms is " + std::to_string(budget_ms) + ", expected a positive number", "budget_ms");
    }
}

ggml_backend_dev_t cpu_device(const std::string & who) {
    const ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == nullptr) {
        throw Error(ErrorCode::unsupported, who + ": ggml has no CPU device");
    }
    return device;
}

ggml_backend_ptr start_backend(const std::string & who, std::int32_t n_threads, ggml_backend_dev_t device) {
    if (device == nullptr) {
        device = cpu_device(who);
    }
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    if (backend == nullptr) {
        throw Error(ErrorCode::unsupported, who + ": no backend starts on " + ggml_backend_dev_name(device));
    }
    void * const setter =
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads");
    if (setter == nullptr) {
        throw Error(ErrorCode::unsupported, who + ": " + ggml_backend_dev_name(device) + " takes no thread count");
    }
    reinterpret_cast<ggml_backend_set_n_threads_t>(setter)(backend.get(), n_threads);
    return backend;
}

double median_ms(const std::string & who, ggml_backend_t backend, ggml_cgraph * graph, double budget_ms) {
    // The first run pays for page faults and for the thread team; it counts only against the budget.
    double spent = run_ms(who, backend, graph);
    std::vector<double> times;
    do {
        times.push_back(run_ms(who, backend, graph));
        spent += times.back();
    } while (spent < budget_ms && times.size() < max_runs);
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

}  // namespace dflash::cpu_timing
