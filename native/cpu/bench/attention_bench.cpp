// Attention nodes of narrow batches, microseconds each: ours and ggml's with flash attention, by rows and cells.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "../tests/graph_case.h"

using namespace dflash::cpu;

namespace {

template <typename Run>
double best_us(const Run & run) {
    double best = 1e12;
    for (int i = 0; i < 25; ++i) {
        const auto start = std::chrono::steady_clock::now();
        run();
        best =
            std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
}

void set_threads(ggml_backend_t cpu, int n_threads) {
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
    set(cpu, n_threads);
}

}  // namespace

/// Argument: threads. Shape of SmolLM2-135M: 9 query heads, 3 K/V heads of 64, F16 caches, all cells seen.
int main(int argc, char ** argv) {
    const int n_threads = argc > 1 ? static_cast<int>(std::strtol(argv[1], nullptr, 10)) : 2;
    ThreadTeam team(n_threads);
    Scratch scratch;
    const std::unique_ptr<ggml_backend, decltype(&ggml_backend_free)> cpu(
        ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr), ggml_backend_free);
    set_threads(cpu.get(), n_threads);
    std::printf("cells rows   ours   ggml flash  (us, %d threads)\n", n_threads);
    for (const std::int64_t n_cells : {128, 512, 2048}) {
        for (const std::int64_t n_rows : {1, 2, 4, 8, 16, 32, 512}) {
            GraphCase graph;
            ggml_context * const ctx = graph.ctx();
            ggml_tensor * const q = ggml_permute(ctx, graph.random(GGML_TYPE_F32, 64, 9, n_rows), 0, 2, 1, 3);
            ggml_tensor * const k = ggml_permute(ctx, graph.random(GGML_TYPE_F16, 64, 3, n_cells), 0, 2, 1, 3);
            ggml_tensor * const v = ggml_permute(ctx, graph.random(GGML_TYPE_F16, 64, 3, n_cells), 0, 2, 1, 3);
            ggml_tensor * const mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, n_cells, n_rows);
            std::memset(mask->data, 0, ggml_nbytes(mask));
            ggml_tensor * const node = ggml_flash_attn_ext(ctx, q, k, v, mask, 0.125F, 0.0F, 0.0F);
            ggml_cgraph * const computed = ggml_new_graph(ctx);
            ggml_build_forward_expand(computed, node);
            const double ours = best_us([&] { run_attention(*node, scratch, team); });
            const double theirs = best_us([&] { ggml_backend_graph_compute(cpu.get(), computed); });
            std::printf("%5d %4d %6.0f %12.0f\n", static_cast<int>(n_cells), static_cast<int>(n_rows), ours, theirs);
        }
    }
}
