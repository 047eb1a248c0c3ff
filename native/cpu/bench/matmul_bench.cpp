// Products by type and rows: billions of multiply-adds a second with so many threads (argument; 1), against the peak of
// one core's dot product.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "../packed_matrix.h"
#include "../thread_team.h"

using namespace dflash::cpu;

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Multiply-adds a second of dot products between registers.
double peak() {
#if defined(__AVX512VNNI__)
    constexpr int rounds = 2'000'000;
    double best = 0.0;
    for (int turn = 0; turn < 5; ++turn) {
        __m512i a = _mm512_set1_epi8(3);
        __m512i sums[8] = {a, a, a, a, a, a, a, a};
        const double start = seconds();
        for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 8
            for (int k = 0; k < 8; ++k) {
                sums[k] = _mm512_dpbusd_epi32(sums[k], a, a);
            }
            asm volatile("" : "+v"(a));
        }
        best = std::max(best, 8.0 * 64.0 * rounds / (seconds() - start));
        asm volatile("" ::"v"(sums[0]), "v"(sums[1]), "v"(sums[2]), "v"(sums[3]), "v"(sums[4]), "v"(sums[5]),
                     "v"(sums[6]), "v"(sums[7]));
    }
    return best;
#else
    return 0.0;
#endif
}

struct Work {
    MatrixShape shape;
    const std::byte * groups;
    std::span<const std::byte * const> from;
    std::span<float * const> to;
    std::int64_t n_chunks;
};

void run_chunk(void * work, std::int32_t chunk) {
    const Work & w = *static_cast<Work *>(work);
    const std::int64_t n = n_groups(w.shape);
    multiply(w.shape, w.groups, chunk * n / w.n_chunks, (chunk + 1) * n / w.n_chunks, w.from, w.to);
}

double measure(const MatrixShape & shape, std::size_t n, ThreadTeam & team) {
    const std::size_t bytes = group_bytes(shape);
    std::vector<float> source(static_cast<std::size_t>(shape.n_cols * group_rows));
    for (std::size_t i = 0; i < source.size(); ++i) {
        source[i] = static_cast<float>(i * 7919 % 1000) / 500.0F - 1.0F;
    }
    std::vector<std::byte> rows(ggml_row_size(shape.type, shape.n_cols) * group_rows);
    ggml_quantize_chunk(shape.type, source.data(), rows.data(), 0, group_rows, shape.n_cols, nullptr);
    std::vector<std::byte> groups(bytes * static_cast<std::size_t>(n_groups(shape)));
    for (std::int64_t g = 0; g < n_groups(shape); ++g) {
        pack_group(shape, rows, std::span(groups).subspan(static_cast<std::size_t>(g) * bytes, bytes));
    }
    const std::size_t activation = activation_bytes(shape.type, shape.n_cols);
    std::vector<std::byte> x(activation * n);
    std::vector<float> y(static_cast<std::size_t>(shape.n_rows) * n);
    std::vector<const std::byte *> from;
    std::vector<float *> to;
    for (std::size_t r = 0; r < n; ++r) {
        prepare_activation(shape.type, std::span(source).first(static_cast<std::size_t>(shape.n_cols)),
                           x.data() + r * activation);
        from.push_back(x.data() + r * activation);
        to.push_back(y.data() + r * static_cast<std::size_t>(shape.n_rows));
    }
    double best = 1e9;
    for (int turn = 0; turn < 7; ++turn) {
        const double start = seconds();
        Work work{shape, groups.data(), from, to, std::min<std::int64_t>(8 * team.n_threads(), n_groups(shape))};
        team.run(static_cast<std::int32_t>(work.n_chunks), run_chunk, &work);
        best = std::min(best, seconds() - start);
    }
    return static_cast<double>(shape.n_cols * shape.n_rows) * static_cast<double>(n) / best;
}

}  // namespace

int main(int argc, char ** argv) {
    ThreadTeam team(argc > 1 ? std::max(1, static_cast<std::int32_t>(std::strtol(argv[1], nullptr, 10))) : 1);
    const double top = peak();
    std::printf("peak of the dot product: %.0f GMAC/s\n%-8s %-12s", top / 1e9, "type", "shape");
    for (const int n : {1, 2, 4, 8, 16, 32}) {
        std::printf(" %6d", n);
    }
    std::printf("\n");
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K,
                                 GGML_TYPE_Q6_K, GGML_TYPE_IQ4_XS, GGML_TYPE_F16}) {
        for (const auto & [cols, out] : {std::pair{576, 1536}, {1536, 576}, {2048, 6144}, {576, 49152}}) {
            const MatrixShape shape{type, cols, out};
            if (!can_pack(shape)) {
                continue;
            }
            std::printf("%-8s %5dx%-6d", ggml_type_name(type), cols, out);
            for (const std::size_t n : {1, 2, 4, 8, 16, 32}) {
                std::printf(" %6.1f", measure(shape, n, team) / 1e9);
            }
            std::printf("\n");
        }
    }
}
