// What a device is asked about types, loaded tensors and graphs, on the CPU.
#include "dflash/draft_device.h"

#include <doctest/doctest.h>

#include <string>

#include "dflash/error.h"

using namespace dflash;

namespace {

ggml_context_ptr small_context() {
    return ggml_context_ptr(ggml_init({16 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

}  // namespace

TEST_CASE("types that cannot be a weight have no buffer") {
    const DraftDevice cpu(nullptr);
    CHECK(cpu.is_cpu());
    CHECK(cpu.keeps_graphs());
    CHECK(cpu.weight_buffer_type(GGML_TYPE_Q8_0, 64, 64) != nullptr);
    CHECK(cpu.weight_buffer_type(GGML_TYPE_I32, 64, 64) == nullptr);
}

TEST_CASE("a tensor that lies nowhere cannot be multiplied with") {
    const DraftDevice cpu(nullptr);
    const ggml_context_ptr ctx = small_context();
    ggml_tensor * const weight = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 32, 32);
    CHECK_FALSE(cpu.can_multiply(weight));
    const ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), cpu.buffer_type()));
    CHECK(cpu.can_multiply(weight));
}

TEST_CASE("a graph with an operation that the device lacks is refused by name") {
    const DraftDevice cpu(nullptr);
    const ggml_context_ptr ctx = small_context();
    ggml_tensor * const x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, 256, 4);
    ggml_cgraph * const usual = ggml_new_graph_custom(ctx.get(), 8, false);
    ggml_build_forward_expand(usual, ggml_top_k(ctx.get(), ggml_soft_max(ctx.get(), x), 3));
    CHECK_NOTHROW(cpu.require(usual));

    // Rows of this type can only be made with an importance matrix.
    ggml_tensor * const narrow = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_IQ2_XXS, 256, 4);
    ggml_cgraph * const odd = ggml_new_graph_custom(ctx.get(), 8, false);
    ggml_build_forward_expand(odd, ggml_cpy(ctx.get(), x, narrow));
    try {
        cpu.require(odd);
        FAIL("the copy was accepted");
    } catch (const Error & error) {
        CHECK(error.code() == ErrorCode::unsupported);
        CHECK(error.field() == "device");
        CHECK_MESSAGE(std::string(error.what()).find("CPU does not support the operation CPY") != std::string::npos,
                      error.what());
    }
}
