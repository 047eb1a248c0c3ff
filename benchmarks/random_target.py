"""Makes a target of a given shape with random weights, for timings only: what it writes is nonsense.

    python benchmarks/random_target.py [Q8_0 Q4_0 Q4_K_M ...] [--dir DIR]

The shape is that of Qwen3-1.7B. Prints one path a line and the types of its tensors. Files are made once and kept in
the user's cache directory: 1.8 GB for Q8_0, of which the others are made.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import gguf
import numpy as np
from targets import FTYPES, cache_dir, quantized

N_LAYER, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_VOCAB = 28, 2048, 6144, 16, 8, 128, 151936
NAME = "random-qwen3-1.7b"


def random_q8_0(rng: np.random.Generator, n_out: int, n_in: int) -> np.ndarray:
    """[n_out, bytes of a row]: codes of every value, scales that keep activations near one."""
    blocks = n_in // 32
    out = np.empty((n_out, blocks, 34), np.uint8)
    scale = np.float16(1.0 / (73.0 * np.sqrt(n_in)))  # 73: standard deviation of the codes
    out[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    out[:, :, 2:] = rng.integers(0, 255, (n_out, blocks, 32), np.uint8)
    return out.reshape(n_out, blocks * 34)


def write(path: Path) -> None:
    """The Q8_0 file."""
    writer = gguf.GGUFWriter(str(path), "qwen3")
    writer.add_name(NAME)
    writer.add_block_count(N_LAYER)
    writer.add_context_length(40960)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("none")
    rng = np.random.default_rng(1)

    def matrix(name: str, n_out: int, n_in: int) -> None:
        writer.add_tensor(name, random_q8_0(rng, n_out, n_in), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def norm(name: str, n: int) -> None:
        writer.add_tensor(name, np.ones(n, np.float32))

    matrix("token_embd.weight", N_VOCAB, N_EMBD)
    norm("output_norm.weight", N_EMBD)
    for layer in range(N_LAYER):
        block = f"blk.{layer}"
        norm(f"{block}.attn_norm.weight", N_EMBD)
        norm(f"{block}.ffn_norm.weight", N_EMBD)
        norm(f"{block}.attn_q_norm.weight", HEAD_DIM)
        norm(f"{block}.attn_k_norm.weight", HEAD_DIM)
        matrix(f"{block}.attn_q.weight", N_HEAD * HEAD_DIM, N_EMBD)
        matrix(f"{block}.attn_k.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
        matrix(f"{block}.attn_v.weight", N_HEAD_KV * HEAD_DIM, N_EMBD)
        matrix(f"{block}.attn_output.weight", N_EMBD, N_HEAD * HEAD_DIM)
        matrix(f"{block}.ffn_gate.weight", N_FF, N_EMBD)
        matrix(f"{block}.ffn_up.weight", N_FF, N_EMBD)
        matrix(f"{block}.ffn_down.weight", N_EMBD, N_FF)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_target(name: str, folder: Path | None = None) -> Path:
    """The file of this type."""
    folder = folder or cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{NAME}.Q8_0.gguf"
    if not source.is_file():
        partial = source.with_suffix(".part")
        write(partial)
        partial.replace(source)
    return source if name == "Q8_0" else quantized(name, folder, source)


def main() -> None:
    """Makes what the command line names."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", default=["Q8_0", "Q4_0", "Q4_K_M"], help=", ".join(FTYPES))
    options.add_argument("--dir", type=Path, default=None, help=f"instead of {cache_dir()}")
    args = options.parse_args()
    for name in args.names:
        path = random_target(name, args.dir)
        types = Counter(tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors)
        print(path, ", ".join(f"{n} {kind}" for kind, n in types.most_common()))


if __name__ == "__main__":
    main()
