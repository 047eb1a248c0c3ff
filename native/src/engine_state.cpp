// Saves and restores a conversation: the target's K/V and the session.
#include "byte_stream.h"
#include "dflash/engine.h"
#include "dflash/error.h"

namespace dflash {

namespace {

constexpr std::uint32_t engine_magic = 0x53454644U;  // "DFES"

/// What must agree between the model that saved a state and the one that restores it.
struct ModelMark {
    std::uint64_t n_params;
    std::uint64_t n_bytes;
    std::int32_t n_embd;
    std::int32_t n_layer;
    std::int32_t n_vocab;
    std::int32_t reserved;
    bool operator==(const ModelMark &) const = default;
};

ModelMark mark_of(const llama_model * model) {
    return {llama_model_n_params(model),
            llama_model_size(model),
            llama_model_n_embd(model),
            llama_model_n_layer(model),
            llama_vocab_n_tokens(llama_model_get_vocab(model)),
            0};
}

}  // namespace

std::vector<std::byte> Engine::save() {
    std::vector<std::uint8_t> memory(llama_state_seq_get_size(target_.get(), 0));
    memory.resize(llama_state_seq_get_data(target_.get(), memory.data(), memory.size(), 0));
    ByteWriter out;
    out.value(engine_magic);
    out.value(state_version);
    out.value(mark_of(target_.model()));
    out.array<std::uint8_t>(memory);
    out.array<std::byte>(session_.save());
    return out.take();
}

bool Engine::restore_memory(std::span<const std::uint8_t> memory) {
    target_.rewind(0);
    if (llama_state_seq_set_data(target_.get(), memory.data(), memory.size(), 0) == 0) {
        return false;
    }
    // What moved would sum in another order than a replay does: it is decoded anew with what comes.
    const std::int32_t in_place = positions_in_place(session_.records());
    if (in_place < session_.n_decoded()) {
        session_.keep_decoded(in_place);
        rewind_memories(in_place);
    }
    return true;
}

void Engine::restore(std::span<const std::byte> bytes) {
    ByteReader in(bytes);
    check_state_header(in, engine_magic);
    if (!(in.value<ModelMark>() == mark_of(target_.model()))) {
        throw Error(ErrorCode::invalid_argument, "the saved state belongs to another model than the one loaded");
    }
    const auto memory = in.array<std::uint8_t>();
    const auto session = in.array<std::byte>();
    in.finish();
    const std::vector<std::byte> before = save();
    session_.restore(session);
    if (session_.n_tokens() > target_.n_ctx() || !restore_memory(memory)) {
        ByteReader back(before);
        check_state_header(back, engine_magic);
        back.value<ModelMark>();
        const auto old_memory = back.array<std::uint8_t>();
        session_.restore(back.array<std::byte>());
        if (!restore_memory(old_memory)) {
            rewind_memories(0);
            session_.forget_decoded();
        }
        throw Error(ErrorCode::invalid_argument, "the saved state does not fit this context of " +
                                                     std::to_string(target_.n_ctx()) +
                                                     " tokens, its K/V type or its attention mode (--flash-attn); load "
                                                     "it with the settings it was saved with");
    }
    output_rows_.clear();
}

}  // namespace dflash
