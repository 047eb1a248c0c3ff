"""A drafter of random weights for any target: drafts nonsense, exercises everything else."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

GEMMA_TAPS = [2, 6, 10, 14]  # of gemma_drafter in conftest.py


def write_random_drafter(
    path: Path,
    *,
    n_embd: int,
    taps: list[int],
    mask_token_id: int,
    block_size: int = 8,
    n_layer: int = 1,
    seed: int = 0,
) -> Path:
    """Writes a DFlash v1 drafter in F32 with embeddings and head borrowed; `taps`: layer inputs as in the GGUF."""
    rng = np.random.default_rng(seed)
    n_head, n_head_kv, head_dim, n_ff = 4, 2, 32, 64
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_name("random drafter")
    writer.add_block_count(n_layer)
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_head_kv)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head_dim)
    writer.add_uint32("dflash.block_size", block_size)
    writer.add_array("dflash.target_layers", taps)
    writer.add_uint32("tokenizer.ggml.mask_token_id", mask_token_id)

    def matrix(name: str, n_out: int, n_in: int) -> None:
        writer.add_tensor(name, (rng.standard_normal((n_out, n_in)) / np.sqrt(n_in)).astype(np.float32))

    def norm(name: str, n: int) -> None:
        writer.add_tensor(name, np.ones(n, dtype=np.float32))

    matrix("fc.weight", n_embd, n_embd * len(taps))
    norm("enc.output_norm.weight", n_embd)
    norm("output_norm.weight", n_embd)
    for i in range(n_layer):
        for name, n in (
            ("attn_norm", n_embd),
            ("ffn_norm", n_embd),
            ("attn_q_norm", head_dim),
            ("attn_k_norm", head_dim),
        ):
            norm(f"blk.{i}.{name}.weight", n)
        matrix(f"blk.{i}.attn_q.weight", n_head * head_dim, n_embd)
        matrix(f"blk.{i}.attn_k.weight", n_head_kv * head_dim, n_embd)
        matrix(f"blk.{i}.attn_v.weight", n_head_kv * head_dim, n_embd)
        matrix(f"blk.{i}.attn_output.weight", n_embd, n_head * head_dim)
        matrix(f"blk.{i}.ffn_gate.weight", n_ff, n_embd)
        matrix(f"blk.{i}.ffn_up.weight", n_ff, n_embd)
        matrix(f"blk.{i}.ffn_down.weight", n_embd, n_ff)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
