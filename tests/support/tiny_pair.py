"""Random tiny pairs: a llama-architecture target and a DFlash drafter that fits it, written as GGUF files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

N_VOCAB = 320
MASK_ID = 300


@dataclass(frozen=True)
class TinyShape:
    """Grouped-query attention with several layers; sizes are multiples of 32, so that every type can hold them."""

    n_layer: int = 3
    n_embd: int = 64
    n_ff: int = 96
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    block_size: int = 8
    rms_eps: float = 1e-6
    rope_base: float = 10000.0
    tap_layers: tuple[int, ...] = (0, 2, 3)  # outputs of these target layers
    target_layers: int = 6
    sliding_window: int = 0
    layer_sliding: tuple[bool, ...] = ()
    causal: bool | None = None  # written only if given

    @property
    def feature_size(self) -> int:
        return len(self.tap_layers) * self.n_embd


@dataclass
class TinyPair:
    """Weights in the names of the PyTorch reference, [out, in]; embeddings and head are the target's."""

    shape: TinyShape
    weights: dict[str, Array]
    embeddings: Array  # [N_VOCAB, n_embd]
    head: Array  # [N_VOCAB, n_embd]


def log_softmax(logits: Array) -> Array:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return (wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))).astype(np.float32)


def random_pair(shape: TinyShape, seed: int) -> TinyPair:
    """Weights of a size that keeps activations near one and the answers peaked."""
    rng = np.random.default_rng(seed)

    def matrix(n_out: int, n_in: int, gain: float = 1.0) -> Array:
        return (rng.standard_normal((n_out, n_in)) * gain / np.sqrt(n_in)).astype(np.float32)

    def norm(n: int) -> Array:
        return (1.0 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    n_q, n_kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim
    weights = {
        "fc.weight": matrix(shape.n_embd, shape.feature_size),
        "hidden_norm.weight": norm(shape.n_embd),
        "norm.weight": norm(shape.n_embd),
    }
    for i in range(shape.n_layer):
        prefix = f"layers.{i}."
        weights |= {
            prefix + "input_layernorm.weight": norm(shape.n_embd),
            prefix + "post_attention_layernorm.weight": norm(shape.n_embd),
            prefix + "self_attn.q_norm.weight": norm(shape.head_dim),
            prefix + "self_attn.k_norm.weight": norm(shape.head_dim),
            prefix + "self_attn.q_proj.weight": matrix(n_q, shape.n_embd),
            prefix + "self_attn.k_proj.weight": matrix(n_kv, shape.n_embd),
            prefix + "self_attn.v_proj.weight": matrix(n_kv, shape.n_embd, 2.0),
            prefix + "self_attn.o_proj.weight": matrix(shape.n_embd, n_q, 2.0),
            prefix + "mlp.gate_proj.weight": matrix(shape.n_ff, shape.n_embd),
            prefix + "mlp.up_proj.weight": matrix(shape.n_ff, shape.n_embd),
            prefix + "mlp.down_proj.weight": matrix(shape.n_embd, shape.n_ff),
        }
    return TinyPair(shape, weights, matrix(N_VOCAB, shape.n_embd, 4.0), matrix(N_VOCAB, shape.n_embd, 4.0))


_GGUF_NAMES = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] != "layers":
        return f"{_GGUF_NAMES['.'.join(parts)]}.weight"
    return f"blk.{parts[1]}.{_GGUF_NAMES['.'.join(parts[2:])]}.weight"


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """A byte-level vocabulary that llama.cpp takes: 256 bytes, one merge, numbered rest."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [n for n in range(256) if n not in printable]
    tokens = [chr(n) for n in printable] + [chr(256 + i) for i in range(len(others))]
    tokens.append("ab")
    tokens += [f"<{i}>" for i in range(len(tokens), N_VOCAB)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 257 + [3] * (N_VOCAB - 257))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(N_VOCAB - 1)
    writer.add_bos_token_id(N_VOCAB - 2)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(writer: gguf.GGUFWriter, name: str, data: Array, kind: gguf.GGMLQuantizationType) -> None:
    if data.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, gguf.quants.quantize(data, kind), raw_dtype=kind)


def write_drafter(
    pair: TinyPair, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32, name: str = "tiny"
) -> Path:
    shape = pair.shape
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name(name)
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(4096)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_uint32("dflash.block_size", shape.block_size)
    writer.add_array("dflash.target_layers", [layer + 1 for layer in shape.tap_layers])
    writer.add_uint32("tokenizer.ggml.mask_token_id", MASK_ID)
    if shape.sliding_window:
        writer.add_sliding_window(shape.sliding_window)
        writer.add_array("dflash.attention.sliding_window_pattern", list(shape.layer_sliding))
    if shape.causal is not None:
        writer.add_bool("dflash.attention.causal", shape.causal)
    _add_tokenizer(writer)
    for torch_name, data in pair.weights.items():
        _add_tensor(writer, _gguf_name(torch_name), data, kind)
    _finish(writer)
    return path


def write_target(pair: TinyPair, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
    """Its layers are zeros: only embeddings and head matter here."""
    shape = pair.shape
    n_embd, n_ff = shape.n_embd, 32
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny target")
    writer.add_block_count(shape.target_layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 2)
    writer.add_vocab_size(N_VOCAB)
    _add_tokenizer(writer)
    _add_tensor(writer, "token_embd.weight", pair.embeddings, kind)
    _add_tensor(writer, "output.weight", pair.head, kind)
    writer.add_tensor("output_norm.weight", np.ones(n_embd, np.float32))
    square = np.zeros((n_embd, n_embd), np.float32)
    for i in range(shape.target_layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(n_embd, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{i}.{part}.weight", square)
        for part in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"blk.{i}.{part}.weight", np.zeros((n_ff, n_embd), np.float32))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", np.zeros((n_embd, n_ff), np.float32))
    _finish(writer)
    return path
