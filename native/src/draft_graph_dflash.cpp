// Builds the DFlash v1 graph: features of tapped rows into the ring, a block of one anchor and masks, the head.
#include "dflash/draft_graph_dflash.h"

#include <algorithm>
#include <cmath>

namespace dflash {

namespace {

constexpr std::size_t nodes_per_layer = 72;
constexpr std::size_t nodes_besides = 64;
}  // namespace

std::size_t mask_kind(const DrafterSpec & spec, std::int32_t layer) {
    const bool sliding = spec.sliding_window > 0 && spec.layer_sliding[static_cast<std::size_t>(layer)];
    return 2 * static_cast<std::size_t>(sliding) + static_cast<std::size_t>(spec.layer_causal(layer));
}

DraftGraph::DraftGraph(const DrafterSpec & spec, const DraftWeights & weights, const KvTensors & kv,
                       const DraftShape & shape, std::int32_t top_k, bool fused_topk)
    : spec_(spec),
      weights_(weights),
      kv_(kv),
      shape_(shape),
      n_embd_kv_(static_cast<std::int64_t>(spec.head_dim) * spec.n_head_kv),
      use_fused_topk_(fused_topk) {
    topk_.top_k = top_k;
    const std::size_t n_nodes = weights.layers.size() * nodes_per_layer + nodes_besides;
    ctx_.reset(
        ggml_init({n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false), nullptr, true}));
    graph_ = ggml_new_graph_custom(ctx_.get(), n_nodes, false);
    if (shape_.n_inject > 0) {
        build_inject();
    }
    if (shape_.n_slots > 0) {
        build_block();
    }
}

ggml_tensor * DraftGraph::input(ggml_type type, std::int64_t ne0, std::int64_t ne1) {
    ggml_tensor * const tensor = ggml_new_tensor_2d(ctx_.get(), type, ne0, ne1);
    ggml_set_input(tensor);
    return tensor;
}

ggml_tensor * DraftGraph::norm(ggml_tensor * x, ggml_tensor * weight) {
    return ggml_mul(ctx_.get(), ggml_rms_norm(ctx_.get(), x, spec_.rms_eps), weight);
}

ggml_tensor * DraftGraph::rope(ggml_tensor * x, ggml_tensor * pos) {
    const RopeSpec & r = spec_.rope;
    return ggml_rope_ext(ctx_.get(), x, pos, nullptr, r.n_rot, GGML_ROPE_TYPE_NEOX, r.n_ctx_orig, r.freq_base,
                         r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast, r.beta_slow);
}

void DraftGraph::build_inject() {
    ggml_context * const ctx = ctx_.get();
    const std::int64_t n = shape_.n_inject;
    taps = input(GGML_TYPE_F32, weights_.fc->ne[0], n);
    inject_pos = input(GGML_TYPE_I32, n);
    k_cells = input(GGML_TYPE_I64, n);
    v_cells = input(GGML_TYPE_I64, n * n_embd_kv_);

    // attn_norm belongs to block tokens only: features go to the projections as they are.
    ggml_tensor * const features = norm(ggml_mul_mat(ctx, weights_.fc, taps), weights_.enc_norm);
    for (std::size_t il = 0; il < weights_.layers.size(); ++il) {
        const DraftLayer & layer = weights_.layers[il];
        ggml_tensor * const v = ggml_mul_mat(ctx, layer.attn_v, features);
        ggml_tensor * k =
            ggml_reshape_3d(ctx, ggml_mul_mat(ctx, layer.attn_k, features), spec_.head_dim, spec_.n_head_kv, n);
        k = rope(norm(k, layer.attn_k_norm), inject_pos);
        ggml_build_forward_expand(graph_,
                                  ggml_set_rows(ctx, kv_.k[il], ggml_reshape_2d(ctx, k, n_embd_kv_, n), k_cells));
        ggml_tensor * const v_column = ggml_reshape_2d(ctx, kv_.v[il], 1, kv_.n_cells * n_embd_kv_);
        ggml_build_forward_expand(graph_,
                                  ggml_set_rows(ctx, v_column, ggml_reshape_2d(ctx, v, 1, n_embd_kv_ * n), v_cells));
    }
}

void DraftGraph::build_block() {
    ggml_context * const ctx = ctx_.get();
    const std::int64_t n_block = spec_.block_size;
    block_embd = input(GGML_TYPE_F32, spec_.n_embd, n_block);
    block_pos = input(GGML_TYPE_I32, n_block);
    for (std::int32_t il = 0; il < spec_.n_layer; ++il) {
        ggml_tensor *& mask = masks[mask_kind(spec_, il)];
        if (mask == nullptr) {
            mask = input(GGML_TYPE_F32, n_block + shape_.n_kv, n_block);
        }
    }

    // Slot 0 is the anchor, which predicts nothing: after the last attention only the rows that the head needs go on.
    const std::int64_t n_slots = shape_.n_slots;
    const std::int64_t n_head_rows =
        std::min(n_block, (n_slots + head_row_multiple - 1) / head_row_multiple * head_row_multiple);
    const std::int64_t first_row = std::min<std::int64_t>(1, n_block - n_head_rows);
    ggml_tensor * x = block_embd;
    for (std::int32_t il = 0; il < spec_.n_layer; ++il) {
        const DraftLayer & layer = weights_.layers[static_cast<std::size_t>(il)];
        ggml_tensor * attn = attention(il, norm(x, layer.attn_norm));
        if (il + 1 == spec_.n_layer && n_head_rows < n_block) {
            const auto skipped = static_cast<std::size_t>(first_row);
            attn = ggml_view_2d(ctx, attn, spec_.n_embd, n_head_rows, attn->nb[1], skipped * attn->nb[1]);
            x = ggml_view_2d(ctx, x, spec_.n_embd, n_head_rows, x->nb[1], skipped * x->nb[1]);
        }
        x = ggml_add(ctx, attn, x);
        x = ggml_add(ctx, feed_forward(layer, norm(x, layer.ffn_norm)), x);
    }
    topk_ = TopkPlan::make(topk_.top_k, static_cast<std::int32_t>(weights_.head->ne[1]),
                           static_cast<std::int32_t>(1 - first_row), static_cast<std::int32_t>(n_slots));
    build_candidates(norm(x, weights_.output_norm));
}

ggml_tensor * DraftGraph::attention(std::int32_t il, ggml_tensor * x) {
    ggml_context * const ctx = ctx_.get();
    const DraftLayer & layer = weights_.layers[static_cast<std::size_t>(il)];
    ggml_tensor * const k_cache = kv_.k[static_cast<std::size_t>(il)];
    ggml_tensor * const v_cache = kv_.v[static_cast<std::size_t>(il)];
    const std::int64_t n_block = spec_.block_size;
    const std::int64_t n_seen = n_block + shape_.n_kv;
    const std::int64_t head_dim = spec_.head_dim;

    ggml_tensor * q = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, layer.attn_q, x), head_dim, spec_.n_head, n_block);
    ggml_tensor * k = ggml_reshape_3d(ctx, ggml_mul_mat(ctx, layer.attn_k, x), head_dim, spec_.n_head_kv, n_block);
    ggml_tensor * const v = ggml_mul_mat(ctx, layer.attn_v, x);
    q = rope(norm(q, layer.attn_q_norm), block_pos);
    k = rope(norm(k, layer.attn_k_norm), block_pos);

    // The block's own K/V goes to the cells before the ring, adjacent to it: one view serves the whole attention.
    ggml_build_forward_expand(graph_, ggml_cpy(ctx, ggml_reshape_2d(ctx, k, n_embd_kv_, n_block),
                                               ggml_view_2d(ctx, k_cache, n_embd_kv_, n_block, k_cache->nb[1], 0)));
    ggml_build_forward_expand(graph_, ggml_cpy(ctx, ggml_transpose(ctx, v),
                                               ggml_view_2d(ctx, v_cache, n_block, n_embd_kv_, v_cache->nb[1], 0)));
    ggml_tensor * const k_seen = ggml_view_3d(ctx, k_cache, head_dim, n_seen, spec_.n_head_kv, k_cache->nb[1],
                                              ggml_row_size(k_cache->type, head_dim), 0);
    ggml_tensor * const v_seen = ggml_view_3d(ctx, v_cache, n_seen, head_dim, spec_.n_head_kv, v_cache->nb[1],
                                              v_cache->nb[1] * static_cast<std::size_t>(head_dim), 0);

    ggml_tensor * scores = ggml_mul_mat(ctx, k_seen, ggml_permute(ctx, q, 0, 2, 1, 3));  // [n_seen, n_block, n_head]
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    const float scale =
        spec_.attention_scale != 0.0F ? spec_.attention_scale : 1.0F / std::sqrt(static_cast<float>(spec_.head_dim));
    scores = ggml_soft_max_ext(ctx, scores, masks[mask_kind(spec_, il)], scale, 0.0F);
    ggml_tensor * out = ggml_permute(ctx, ggml_mul_mat(ctx, v_seen, scores), 0, 2, 1, 3);
    out = ggml_mul_mat(ctx, layer.attn_output, ggml_cont_2d(ctx, out, head_dim * spec_.n_head, n_block));
    return spec_.value_scale != 0.0F ? ggml_scale(ctx, out, spec_.value_scale) : out;
}

ggml_tensor * DraftGraph::feed_forward(const DraftLayer & layer, ggml_tensor * x) {
    ggml_context * const ctx = ctx_.get();
    ggml_tensor * const gate = ggml_mul_mat(ctx, layer.ffn_gate, x);
    ggml_tensor * const up = ggml_mul_mat(ctx, layer.ffn_up, x);
    ggml_tensor * const hidden = spec_.ffn_gelu ? ggml_geglu_split(ctx, gate, up) : ggml_swiglu_split(ctx, gate, up);
    return ggml_mul_mat(ctx, layer.ffn_down, hidden);
}

void DraftGraph::build_candidates(ggml_tensor * hidden) {
    ggml_context * const ctx = ctx_.get();
    ggml_tensor * logits = ggml_mul_mat(ctx, weights_.head, hidden);
    if (spec_.logit_scale != 0.0F) {
        logits = ggml_scale(ctx, logits, spec_.logit_scale);
    }
    if (spec_.logit_softcap > 0.0F) {
        logits = ggml_tanh(ctx, ggml_scale(ctx, logits, 1.0F / spec_.logit_softcap));
        logits = ggml_scale(ctx, logits, spec_.logit_softcap);
    }
    if (use_fused_topk_) {
        topk_parts = build_topk_parts(ctx, logits, topk_);
        ggml_set_output(topk_parts);
        ggml_build_forward_expand(graph_, topk_parts);
        return;
    }
    ggml_tensor * const slots = ggml_view_2d(ctx, logits, logits->ne[0], topk_.n_rows, logits->nb[1],
                                             static_cast<std::size_t>(topk_.first_row) * logits->nb[1]);
    topk_ids = ggml_top_k(ctx, slots, topk_.top_k);
    ggml_tensor * const probs = ggml_reshape_3d(ctx, ggml_soft_max(ctx, slots), 1, slots->ne[0], slots->ne[1]);
    topk_log_probs = ggml_log(ctx, ggml_get_rows(ctx, probs, topk_ids));
    ggml_set_output(topk_ids);
    ggml_set_output(topk_log_probs);
    ggml_build_forward_expand(graph_, topk_ids);
    ggml_build_forward_expand(graph_, topk_log_probs);
}

}  // namespace dflash
