// Decodes target batches and reads taps; checks beforehand whatever llama.cpp would abort on.
#include "dflash/llama_bridge.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "dflash/cpu_backend.h"
#include "dflash/error.h"
#include "dflash/llama_symbols.h"
#include "leaf_sequences.h"

namespace dflash {

namespace {

// Graph files that assign t_layer_inp in the pinned llama.cpp, by general.architecture.
constexpr std::array exporting_architectures{
    std::string_view{"bailingmoe3"},  std::string_view{"deepseek4"},  std::string_view{"gemma4"},
    std::string_view{"hunyuan-vl"},   std::string_view{"lfm2"},       std::string_view{"llama"},
    std::string_view{"mimo2"},        std::string_view{"minimax-01"}, std::string_view{"minimax-m2"},
    std::string_view{"muse-glimmer"}, std::string_view{"nanbeige"},   std::string_view{"nemotron-h"},
    std::string_view{"gpt-oss"},      std::string_view{"qwen3"},      std::string_view{"qwen35"},
    std::string_view{"qwen35moe"},    std::string_view{"qwen3moe"},   std::string_view{"qwen3next"},
    std::string_view{"qwen4exp"},
};

constexpr std::string_view tap_prefix = "l_out-";
constexpr auto interrupt_poll_interval = std::chrono::milliseconds(50);

std::string meta_string(const llama_model * model, const char * key) {
    std::array<char, 128> buffer{};
    const std::int32_t n = llama_model_meta_val_str(model, key, buffer.data(), buffer.size());
    return n < 0 ? std::string{} : std::string(buffer.data());
}

bool all_on_cpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) == nullptr &&
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU) == nullptr;
}

ggml_backend_dev_t device_of(const ggml_tensor * tensor) {
    return tensor->buffer == nullptr ? nullptr
                                     : ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
}

bool any_layer_offloaded(const llama_model * model) {
    return !all_on_cpu() && std::ranges::any_of(llama_symbols::model_tensors(model), [](const auto & entry) {
        return entry.first.starts_with("blk.") && is_gpu(device_of(entry.second));
    });
}

}  // namespace

bool is_gpu(ggml_backend_dev_t device) {
    return device != nullptr && (ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU ||
                                 ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_IGPU);
}

ggml_backend_dev_t head_device(const llama_model * model) {
    // A tied head is a second tensor of the embedding's name: the embeddings themselves stay in host memory.
    for (const std::string_view head : {"output.weight", "token_embd.weight"}) {
        for (const auto & [name, tensor] : llama_symbols::model_tensors(model)) {
            ggml_backend_dev_t const device = name == head ? device_of(tensor) : nullptr;
            if (is_gpu(device) || (device != nullptr && device == cpu_backend_device())) {
                return device;
            }
        }
    }
    return nullptr;
}

bool exports_layer_inputs(const std::string & architecture) {
    return std::ranges::find(exporting_architectures, std::string_view{architecture}) != exporting_architectures.end();
}

struct TargetContext::Impl {
    struct ContextDeleter {
        void operator()(llama_context * context) const noexcept { llama_free(context); }
    };

    llama_model * model = nullptr;
    std::unique_ptr<llama_context, ContextDeleter> ctx;
    std::vector<std::int32_t> tap_inputs;
    TapMode mode = TapMode::callback;
    std::int32_t n_embd = 0;
    std::int32_t feature_size = 0;
    bool last_layer_tapped = false;
    bool layer_input_on = false;

    // State of the decode in progress, read by the callback.
    bool tapping = false;
    std::int32_t n_rows = 0;
    std::uint32_t taps_seen = 0;
    std::vector<float> taps;
    std::vector<float> staging;  // one tap of one batch, where the backend's memory is not the host's

    std::atomic<bool> cancelled{false};
    bool interrupted = false;
    InterruptPoll poll;
    std::chrono::steady_clock::time_point last_poll;

    // Batch arrays, reused.
    std::vector<llama_token> tokens;
    std::vector<llama_pos> positions;
    std::vector<std::int32_t> n_seq_ids;
    std::vector<llama_seq_id> seq_id_data;
    std::vector<llama_seq_id *> seq_ids;
    std::vector<std::int8_t> logits;
    LeafSequences leaves;

    [[nodiscard]] std::int32_t tap_index(const ggml_tensor * tensor) const {
        const std::string_view name{tensor->name};
        if (!name.starts_with(tap_prefix)) {
            return -1;
        }
        std::int32_t layer = -1;
        const std::string_view digits = name.substr(tap_prefix.size());
        const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
        if (status != std::errc{} || end != digits.data() + digits.size()) {
            return -1;
        }
        const auto it = std::ranges::find(tap_inputs, layer + 1);
        return it == tap_inputs.end() ? -1 : static_cast<std::int32_t>(it - tap_inputs.begin());
    }

    void scatter(std::int32_t tap, const float * rows) {
        for (std::int32_t row = 0; row < n_rows; ++row) {
            const std::size_t dst = (static_cast<std::size_t>(row) * tap_inputs.size() + tap) * n_embd;
            std::memcpy(taps.data() + dst, rows + static_cast<std::size_t>(row) * n_embd, sizeof(float) * n_embd);
        }
        ++taps_seen;
    }

    static bool eval_callback(ggml_tensor * tensor, bool ask, void * data) {
        auto & self = *static_cast<Impl *>(data);
        if (!self.tapping) {
            return !ask;
        }
        const std::int32_t tap = self.tap_index(tensor);
        if (ask) {
            return tap >= 0;
        }
        const bool usable = tap >= 0 && tensor->type == GGML_TYPE_F32 && tensor->ne[0] == self.n_embd &&
                            tensor->ne[1] == self.n_rows && ggml_is_contiguous(tensor);
        if (usable) {
            if (tensor->buffer != nullptr && ggml_backend_buffer_is_host(tensor->buffer)) {
                self.scatter(tap, static_cast<const float *>(tensor->data));
            } else {
                ggml_backend_tensor_get(tensor, self.staging.data(), 0, self.staging.size() * sizeof(float));
                self.scatter(tap, self.staging.data());
            }
        }
        return true;
    }

    static bool abort_callback(void * data) {
        auto & self = *static_cast<Impl *>(data);
        if (self.cancelled.load(std::memory_order_relaxed)) {
            return true;
        }
        if (!self.poll) {
            return false;
        }
        const auto now = std::chrono::steady_clock::now();
        if (now - self.last_poll < interrupt_poll_interval) {
            return self.interrupted;
        }
        self.last_poll = now;
        self.interrupted = self.interrupted || self.poll();
        return self.interrupted;
    }

    void set_layer_input(bool on) {
        if (on == layer_input_on) {
            return;
        }
        for (const std::int32_t layer : tap_inputs) {
            llama_symbols::set_embeddings_layer_inp(ctx.get(), static_cast<std::uint32_t>(layer), on);
        }
        layer_input_on = on;
    }

    void gather_layer_inputs() {
        for (std::size_t tap = 0; tap < tap_inputs.size(); ++tap) {
            const auto layer = static_cast<std::uint32_t>(tap_inputs[tap]);
            scatter(static_cast<std::int32_t>(tap), llama_symbols::get_embeddings_layer_inp(ctx.get(), layer));
        }
    }

    void fill(std::span<const Row> rows, bool all_logits) {
        const std::size_t n = rows.size();
        tokens.resize(n);
        positions.resize(n);
        n_seq_ids.resize(n);
        seq_ids.resize(n);
        logits.resize(n);
        seq_id_data.clear();
        for (std::size_t i = 0; i < n; ++i) {
            tokens[i] = rows[i].token;
            positions[i] = rows[i].pos;
            logits[i] = static_cast<std::int8_t>(rows[i].logits || all_logits);
            n_seq_ids[i] = std::popcount(rows[i].seqs);
            for (std::uint32_t rest = rows[i].seqs; rest != 0; rest &= rest - 1) {
                seq_id_data.push_back(std::countr_zero(rest));
            }
        }
        llama_seq_id * next = seq_id_data.data();
        for (std::size_t i = 0; i < n; ++i) {
            seq_ids[i] = next;
            next += n_seq_ids[i];
        }
    }

    void check_taps() const {
        if (taps_seen == tap_inputs.size()) {
            return;
        }
        throw Error(ErrorCode::incompatible_drafter,
                    "the drafter reads the hidden states of " + std::to_string(tap_inputs.size()) +
                        " target layers, but this target shows only " + std::to_string(taps_seen) +
                        " of them while it runs; use a drafter made for this architecture, or run without one",
                    "dflash.target_layers");
    }

    void dry_decode(TargetContext & self) {
        const llama_vocab * vocab = llama_model_get_vocab(model);
        const llama_token bos = llama_vocab_bos(vocab);
        const std::array rows{Row{bos >= 0 ? bos : 0, 0, true}, Row{bos >= 0 ? bos : 0, 1, true}};
        self.decode(std::span(rows).first(static_cast<std::size_t>(std::min(2, self.n_chunk()))), !tap_inputs.empty());
        llama_memory_clear(llama_get_memory(ctx.get()), false);
        taps.clear();
    }
};

TargetContext::TargetContext(llama_model * model, llama_context_params params, std::vector<std::int32_t> tap_inputs,
                             TapMode mode)
    : impl_(std::make_unique<Impl>()) {
    Impl & self = *impl_;
    self.model = model;
    self.n_embd = llama_model_n_embd(model);
    const std::string architecture = meta_string(model, "general.architecture");
    const std::int32_t n_layer = llama_model_n_layer(model);
    for (const std::int32_t layer : tap_inputs) {
        if (layer < 1 || layer > n_layer) {
            throw Error(ErrorCode::incompatible_drafter,
                        "the drafter reads the input of target layer " + std::to_string(layer) +
                            ", but this target has layers 1 to " + std::to_string(n_layer) +
                            "; use a drafter made for this target",
                        "dflash.target_layers");
        }
    }
    self.last_layer_tapped = std::ranges::find(tap_inputs, n_layer) != tap_inputs.end();
    if (mode == TapMode::automatic) {
        const bool exported = exports_layer_inputs(architecture) && !self.last_layer_tapped;
        mode = exported && any_layer_offloaded(model) ? TapMode::layer_input : TapMode::callback;
    }
    if (mode == TapMode::layer_input && !tap_inputs.empty()) {
        if (!exports_layer_inputs(architecture)) {
            throw Error(ErrorCode::unsupported,
                        "architecture " + architecture + " does not export layer inputs; use tap_mode=\"callback\"",
                        "tap_mode");
        }
        if (self.last_layer_tapped) {
            throw Error(ErrorCode::unsupported,
                        "the last layer's output cannot be tapped as a layer input of " + architecture +
                            "; use tap_mode=\"callback\"",
                        "tap_mode");
        }
    }
    self.mode = mode;
    self.tap_inputs = std::move(tap_inputs);
    self.feature_size = self.n_embd * static_cast<std::int32_t>(self.tap_inputs.size());

    const bool use_callback = mode == TapMode::callback && !self.tap_inputs.empty();
    params.cb_eval = use_callback ? &Impl::eval_callback : nullptr;
    params.cb_eval_user_data = use_callback ? impl_.get() : nullptr;
    params.abort_callback = &Impl::abort_callback;
    params.abort_callback_data = impl_.get();
    // Elsewhere each sequence costs a recurrent state or a window of its own.
    const bool trees = params.kv_unified && has_dense_memory(model, architecture);
    // llama.cpp reserves for a row per sequence.
    const std::uint32_t chunk = params.n_ubatch == 0 ? params.n_batch : std::min(params.n_batch, params.n_ubatch);
    const std::uint32_t most = trees ? std::min<std::uint32_t>(chunk, max_sequences) : 1;
    params.n_seq_max = std::max(1U, std::min(params.n_seq_max, most));
    self.leaves.set_most(static_cast<std::int32_t>(params.n_seq_max));
    self.ctx.reset(llama_init_from_model(model, params));
    if (!self.ctx) {
        throw Error(
            ErrorCode::out_of_memory,
            "llama.cpp could not make a context of " + std::to_string(params.n_ctx) +
                " cells for this model: not enough memory, or a K/V type or attention mode that it does not support; "
                "try a smaller context (--ctx)");
    }
    if (llama_get_memory(self.ctx.get()) == nullptr) {
        return;  // an embedding model without K/V
    }
    self.dry_decode(*this);
}

TargetContext::~TargetContext() = default;

llama_context * TargetContext::get() const noexcept { return impl_->ctx.get(); }
const llama_model * TargetContext::model() const noexcept { return impl_->model; }
TapMode TargetContext::tap_mode() const noexcept { return impl_->mode; }
std::int32_t TargetContext::feature_size() const noexcept { return impl_->feature_size; }
std::span<const float> TargetContext::taps() const noexcept { return impl_->taps; }

std::int32_t TargetContext::n_ctx() const noexcept { return static_cast<std::int32_t>(llama_n_ctx(get())); }

std::int32_t TargetContext::n_chunk() const noexcept {
    return static_cast<std::int32_t>(std::min(llama_n_batch(get()), llama_n_ubatch(get())));
}

std::size_t TargetContext::tap_bytes() const noexcept {
    const std::size_t own = (impl_->taps.capacity() + impl_->staging.capacity()) * sizeof(float);
    const bool staged = impl_->mode == TapMode::layer_input && impl_->feature_size > 0;
    const std::size_t upstream = staged ? sizeof(float) * impl_->feature_size * llama_n_batch(get()) : 0;
    return own + upstream;
}

void TargetContext::decode(std::span<const Row> rows, bool tap) {
    Impl & self = *impl_;
    if (rows.empty() || static_cast<std::int32_t>(rows.size()) > n_chunk()) {
        throw Error(ErrorCode::invalid_argument,
                    "a decode takes 1 to " + std::to_string(n_chunk()) + " rows, not " + std::to_string(rows.size()));
    }
    self.leaves.check(rows);
    self.interrupted = false;
    if (Impl::abort_callback(&self)) {
        clear_cancel();
        throw Error(ErrorCode::cancelled, "cancelled");
    }
    tap = tap && !self.tap_inputs.empty();
    // The last layer's l_out holds output rows only.
    self.fill(rows, tap && self.last_layer_tapped);
    self.tapping = tap;
    self.n_rows = static_cast<std::int32_t>(rows.size());
    self.taps_seen = 0;
    if (tap) {
        self.taps.resize(rows.size() * self.feature_size);
        if (self.mode == TapMode::callback && !all_on_cpu()) {
            self.staging.resize(rows.size() * self.n_embd);
        }
    }
    if (self.mode == TapMode::layer_input) {
        self.set_layer_input(tap);
    }

    const llama_batch batch{self.n_rows,           self.tokens.data(),  nullptr,           self.positions.data(),
                            self.n_seq_ids.data(), self.seq_ids.data(), self.logits.data()};
    const std::int32_t status = llama_decode(get(), batch);
    llama_synchronize(get());
    self.tapping = false;
    switch (status) {
        case 0: break;
        case 1:
            throw Error(ErrorCode::context_overflow, "the context of " + std::to_string(n_ctx()) +
                                                         " tokens is full; start anew or use a larger one (--ctx)");
        case 2: clear_cancel(); throw Error(ErrorCode::cancelled, "cancelled");
        default:
            throw Error(ErrorCode::decode_failed, "llama.cpp failed to decode a batch of " +
                                                      std::to_string(rows.size()) + " rows (status " +
                                                      std::to_string(status) + ")");
    }
    if (tap) {
        if (self.mode == TapMode::layer_input) {
            self.gather_layer_inputs();
        }
        self.check_taps();
    }
}

bool TargetContext::rewind(llama_pos pos) {
    llama_memory_t memory = llama_get_memory(get());
    impl_->leaves.rewind(memory, pos);
    if (llama_memory_seq_rm(memory, 0, pos, -1)) {
        const llama_pos window = llama_model_n_swa(impl_->model);
        const llama_pos oldest = llama_memory_seq_pos_min(memory, 0);
        if (pos == 0 || window == 0 || oldest <= std::max(0, pos - window)) {
            return true;
        }
    }
    llama_memory_clear(memory, false);
    impl_->leaves.forget();
    return pos == 0;
}

std::int32_t TargetContext::max_leaves() const noexcept { return impl_->leaves.most(); }

void TargetContext::share_prefix(std::int32_t n_leaves, llama_pos pos) {
    impl_->leaves.share(llama_get_memory(get()), n_leaves, pos);
}

void TargetContext::keep_leaf(std::int32_t leaf, llama_pos pos, llama_pos end) {
    impl_->leaves.keep(llama_get_memory(get()), leaf, pos, end);
}

void TargetContext::cancel() noexcept { impl_->cancelled.store(true, std::memory_order_relaxed); }
void TargetContext::clear_cancel() noexcept { impl_->cancelled.store(false, std::memory_order_relaxed); }
void TargetContext::set_interrupt_poll(InterruptPoll poll) { impl_->poll = std::move(poll); }

}  // namespace dflash
