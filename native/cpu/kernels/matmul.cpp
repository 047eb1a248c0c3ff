// Products of a packed group with activation rows: tiles of 1 to 8 rows by the instruction set compiled for.
#include <array>
#include <utility>

#if defined(__AVX512VNNI__)
#include "matmul_avx512.h"
#elif defined(__AVX2__)
#include "matmul_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "matmul_neon.h"
#else
#include "matmul_generic.h"
#endif

namespace dflash::cpu::DFLASH_ISA {

namespace {

using Tile = void (*)(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
                      float * const * y, std::int32_t n_valid);
using Tiles = std::array<Tile, most_rows>;

template <Codes C, Scales S, int R>
void any_tile(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
              float * const * y, std::int32_t n_valid) {
    if constexpr (is_float(C)) {
        float_tile<C, R>(n_cols, group, x, y, n_valid);
    } else {
        tile<C, S, R>(layout, n_cols, group, x, y, n_valid);
    }
}

template <Codes C, Scales S, int... I>
constexpr Tiles tiles_of(std::integer_sequence<int, I...> /*rows less one*/) {
    return {any_tile<C, S, I + 1>...};
}

/// By rows less one.
template <Codes C, Scales S>
constexpr Tiles tiles = tiles_of<C, S>(std::make_integer_sequence<int, most_rows>{});

const Tiles & tiles_for(const Layout & layout) {
    const auto with = [&]<Codes C>() -> const Tiles & {
        return layout.scales == Scales::half        ? tiles<C, Scales::half>
               : layout.scales == Scales::half_pair ? tiles<C, Scales::half_pair>
                                                    : tiles<C, Scales::super_pair>;
    };
    switch (layout.codes) {
        case Codes::nibbles: return with.template operator()<Codes::nibbles>();
        case Codes::fives: return with.template operator()<Codes::fives>();
        case Codes::sixes: return tiles<Codes::sixes, Scales::super_16>;
        case Codes::bytes: return tiles<Codes::bytes, Scales::half>;
        case Codes::table:
            return layout.scales == Scales::half       ? tiles<Codes::table, Scales::half>
                   : layout.scales == Scales::exponent ? tiles<Codes::table, Scales::exponent>
                                                       : tiles<Codes::table, Scales::super_32>;
        case Codes::halves: return tiles<Codes::halves, Scales::none>;
        default: return tiles<Codes::bfloats, Scales::none>;
    }
}

}  // namespace

void multiply(const Layout & layout, std::int64_t n_cols, const std::byte * group, const std::byte * const * x,
              float * const * y, std::int32_t n_x, std::int32_t n_valid) {
    const Tiles & by_rows = tiles_for(layout);
    for (std::int32_t left = n_x; left > 0;) {
        // Tiles of about one size: a single row left over would cost as much as several.
        const std::int32_t n_tiles = (left + most_rows - 1) / most_rows;
        const std::int32_t n = (left + n_tiles - 1) / n_tiles;
        by_rows[static_cast<std::size_t>(n - 1)](layout, n_cols, group, x, y, n_valid);
        x += n;
        y += n;
        left -= n;
    }
}

}  // namespace dflash::cpu::DFLASH_ISA
