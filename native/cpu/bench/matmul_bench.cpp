// Products by type and rows in billions of multiply-adds a second, ours and those of ggml's CPU backend, against the
// peak of the dot product and the rate at which memory is read. Arguments: threads, types, "cold" for weights in no
// cache.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "../packed_matrix.h"
#include "../thread_team.h"
#include "ggml_product.h"

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

struct Span {
    const std::uint64_t * words;
    std::size_t n;
    std::int32_t n_chunks;
    std::vector<std::uint64_t> * sums;
};

void read_chunk(void * work, std::int32_t chunk) {
    const Span & s = *static_cast<Span *>(work);
    const std::size_t part = s.n / static_cast<std::size_t>(s.n_chunks);
    const std::uint64_t * const p = s.words + static_cast<std::size_t>(chunk) * part;
    std::uint64_t sums[64] = {};
    for (std::size_t i = 0; i + 64 <= part; i += 64) {
        for (std::size_t k = 0; k < 64; ++k) {
            sums[k] += p[i + k];
        }
    }
    for (const std::uint64_t sum : sums) {
        (*s.sums)[static_cast<std::size_t>(chunk)] += sum;
    }
}

/// Bytes a second, of memory in no cache.
double reading(ThreadTeam & team) {
    const std::vector<std::uint64_t> memory((std::size_t{256} << 20U) / 8, 1);
    double best = 0.0;
    for (int turn = 0; turn < 5; ++turn) {
        std::vector<std::uint64_t> sums(64);
        Span span{memory.data(), memory.size(), 64, &sums};
        const double start = seconds();
        team.run(64, read_chunk, &span);
        best = std::max(best, 8.0 * static_cast<double>(memory.size()) / (seconds() - start));
        if (sums[0] == 0) {
            return 0.0;
        }
    }
    return best;
}

struct Work {
    MatrixShape shape;
    const std::byte * groups;
    std::span<const float> values;  // of the activations
    std::vector<std::byte> & activations;
    std::span<const std::byte * const> from;
    std::span<float * const> to;
    std::int64_t n_chunks;
};

void prepare_chunk(void * work, std::int32_t chunk) {
    const Work & w = *static_cast<Work *>(work);
    const auto n = static_cast<std::int64_t>(w.from.size());
    const auto cols = static_cast<std::size_t>(w.shape.n_cols);
    const std::size_t bytes = activation_bytes(w.shape.type, w.shape.n_cols);
    for (std::int64_t r = chunk * n / w.n_chunks; r < (chunk + 1) * n / w.n_chunks; ++r) {
        const auto row = static_cast<std::size_t>(r);
        prepare_activation(w.shape.type, w.values.subspan(row * cols, cols), w.activations.data() + row * bytes);
    }
}

void multiply_chunk(void * work, std::int32_t chunk) {
    const Work & w = *static_cast<Work *>(work);
    const std::int64_t n = n_groups(w.shape);
    multiply(w.shape, w.groups, chunk * n / w.n_chunks, (chunk + 1) * n / w.n_chunks, w.from, w.to);
}

std::vector<float> noise(std::size_t n) {
    std::vector<float> out(n);
    for (std::size_t i = 0; i < n; ++i) {
        out[i] = static_cast<float>(i * 7919 % 1000) / 500.0F - 1.0F;
    }
    return out;
}

/// A matrix of 16 rows said again and again, packed `copies` times.
class Case {
  public:
    Case(const MatrixShape & shape, std::size_t copies) : shape_(shape), copies_(copies) {
        const std::vector<float> source = noise(static_cast<std::size_t>(shape.n_cols * group_rows));
        rows_.resize(ggml_row_size(shape.type, shape.n_cols) * group_rows);
        ggml_quantize_chunk(shape.type, source.data(), rows_.data(), 0, group_rows, shape.n_cols, nullptr);
        const std::size_t bytes = group_bytes(shape);
        groups_.resize(bytes * static_cast<std::size_t>(n_groups(shape)) * copies);
        const double start = seconds();
        for (std::size_t at = 0; at < groups_.size(); at += bytes) {
            pack_group(shape, rows_, std::span(groups_).subspan(at, bytes));
        }
        packing_ = static_cast<double>(groups_.size()) / (seconds() - start);
    }
    [[nodiscard]] const std::vector<std::byte> & rows() const { return rows_; }
    [[nodiscard]] double packing() const { return packing_; }  // bytes a second

    double measure(std::size_t n, ThreadTeam & team) {
        const std::size_t activation = activation_bytes(shape_.type, shape_.n_cols);
        const std::vector<float> values = noise(static_cast<std::size_t>(shape_.n_cols) * n);
        std::vector<std::byte> x(activation * n);
        std::vector<float> y(static_cast<std::size_t>(shape_.n_rows) * n);
        std::vector<const std::byte *> from;
        std::vector<float *> to;
        for (std::size_t r = 0; r < n; ++r) {
            from.push_back(x.data() + r * activation);
            to.push_back(y.data() + r * static_cast<std::size_t>(shape_.n_rows));
        }
        double best = 1e9;
        for (std::size_t turn = 0; turn < 7; ++turn) {
            const double start = seconds();
            for (std::size_t copy = 0; copy < copies_; ++copy) {
                const std::byte * const groups = groups_.data() + groups_.size() / copies_ * copy;
                Work work{shape_, groups, values, x, from, to, n >= 8 ? team.n_threads() : 1};
                team.run(static_cast<std::int32_t>(work.n_chunks), prepare_chunk, &work);
                work.n_chunks =
                    std::min<std::int64_t>(team.n_threads() > 1 ? 4 * team.n_threads() : 1, n_groups(shape_));
                team.run(static_cast<std::int32_t>(work.n_chunks), multiply_chunk, &work);
            }
            best = std::min(best, seconds() - start);
        }
        return static_cast<double>(shape_.n_cols * shape_.n_rows) * static_cast<double>(n * copies_) / best;
    }

  private:
    MatrixShape shape_;
    std::size_t copies_;
    std::vector<std::byte> rows_;
    std::vector<std::byte> groups_;
    double packing_ = 0.0;
};

}  // namespace

int main(int argc, char ** argv) {
    const std::int32_t n_threads =
        argc > 1 ? std::max(1, static_cast<std::int32_t>(std::strtol(argv[1], nullptr, 10))) : 1;
    const std::string wanted = argc > 2 ? std::string(",") + argv[2] + "," : "";
    const bool cold = argc > 3 && std::string_view(argv[3]) == "cold";
    ThreadTeam team(n_threads);
    std::printf("%d threads; peak of one core's dot product: %.0f GMAC/s; memory: %.1f GB/s read\n", n_threads,
                peak() / 1e9, reading(team) / 1e9);
    std::printf("%-7s %-11s %5s", "type", "matrix", "pack");
    constexpr std::size_t counts[] = {1, 2, 4, 8, 16, 32, 128};
    for (const std::size_t n : counts) {
        std::printf(" %12zu", n);
    }
    std::printf("   (GMAC/s, ours/ggml; packing in GB/s)\n");
    for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q8_0, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
                                 GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
                                 GGML_TYPE_MXFP4, GGML_TYPE_F16, GGML_TYPE_BF16}) {
        if (!wanted.empty() && wanted.find(std::string(",") + ggml_type_name(type) + ",") == std::string::npos) {
            continue;
        }
        for (const auto & [cols, out] : {std::pair{576, 1536}, {1536, 576}, {2048, 6144}, {576, 49152}}) {
            const MatrixShape shape{type, cols, out};
            if (!can_pack(shape)) {
                continue;
            }
            const std::size_t size = group_bytes(shape) * static_cast<std::size_t>(n_groups(shape));
            const std::size_t copies = cold ? std::max<std::size_t>(1, (std::size_t{96} << 20U) / size) : 1;
            Case ours(shape, copies);
            GgmlProduct theirs(shape, ours.rows(), copies, n_threads);
            std::printf("%-7s %4dx%-6d %5.1f", ggml_type_name(type), cols, out, ours.packing() / 1e9);
            for (const std::size_t n : counts) {
                const double a = ours.measure(n, team) / 1e9;
                const double b =
                    theirs.measure(noise(static_cast<std::size_t>(cols) * n), static_cast<std::int64_t>(n)) / 1e9;
                std::printf(" %5.1f/%-6.1f", a, b);
                std::fflush(stdout);
            }
            std::printf("\n");
        }
    }
}
