// Which types have a packed layout, and its sizes.
#include "packed_layout.h"

#include <array>

namespace dflash::cpu {

namespace {

// Values of IQ4_NL and MXFP4 plus 128, as unsigned bytes.
constexpr std::array<std::int8_t, 16> shifted(std::array<int, 16> values) {
    std::array<std::int8_t, 16> out{};
    for (std::size_t i = 0; i < values.size(); ++i) {
        out[i] = static_cast<std::int8_t>(values[i] + 128);
    }
    return out;
}
constexpr std::array<std::int8_t, 16> nl_table =
    shifted({-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113});
constexpr std::array<std::int8_t, 16> mxfp4_table = shifted({0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});

constexpr Layout q4_0{Codes::nibbles, Scales::half, 8, 32, 256, 32, 32};
constexpr Layout q4_1{Codes::nibbles, Scales::half_pair, 0, 32, 256, 64, 32};
constexpr Layout q5_0{Codes::fives, Scales::half, 16, 32, 320, 32, 32};
constexpr Layout q5_1{Codes::fives, Scales::half_pair, 0, 32, 320, 64, 32};
constexpr Layout q8_0{Codes::bytes, Scales::half, 128, 32, 512, 32, 32};
constexpr Layout q4_k{Codes::nibbles, Scales::super_pair, 0, 256, 256, 320, 256};
constexpr Layout q5_k{Codes::fives, Scales::super_pair, 0, 256, 320, 320, 256};
constexpr Layout q6_k{Codes::sixes, Scales::super_16, 32, 256, 384, 288, 256};
constexpr Layout iq4_nl{Codes::table, Scales::half, 128, 32, 256, 32, 32, nl_table.data()};
constexpr Layout iq4_xs{Codes::table, Scales::super_32, 128, 256, 256, 160, 256, nl_table.data()};
constexpr Layout mxfp4{Codes::table, Scales::exponent, 128, 32, 256, 16, 32, mxfp4_table.data()};
constexpr Layout f16{Codes::halves, Scales::none, 0, 32, 1024, 0, 32};
constexpr Layout bf16{Codes::bfloats, Scales::none, 0, 32, 1024, 0, 32};

}  // namespace

const Layout * layout_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return &q4_0;
        case GGML_TYPE_Q4_1: return &q4_1;
        case GGML_TYPE_Q5_0: return &q5_0;
        case GGML_TYPE_Q5_1: return &q5_1;
        case GGML_TYPE_Q8_0: return &q8_0;
        case GGML_TYPE_Q4_K: return &q4_k;
        case GGML_TYPE_Q5_K: return &q5_k;
        case GGML_TYPE_Q6_K: return &q6_k;
        case GGML_TYPE_IQ4_NL: return &iq4_nl;
        case GGML_TYPE_IQ4_XS: return &iq4_xs;
        case GGML_TYPE_MXFP4: return &mxfp4;
        case GGML_TYPE_F16: return &f16;
        case GGML_TYPE_BF16: return &bf16;
        default: return nullptr;
    }
}

}  // namespace dflash::cpu
