"""Our draft graph against the authors' PyTorch model: log-probabilities in F32 within 1e-3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from dflash.model import DFlashDraftModel
from transformers.models.qwen3.modeling_qwen3 import Qwen3Config

from dflash_local import _native
from support.llama_drafter import loaded_target
from support.tiny_pair import (
    MASK_ID,
    N_VOCAB,
    TinyPair,
    TinyShape,
    log_softmax,
    random_pair,
    write_drafter,
    write_target,
)

Floats = npt.NDArray[np.float32]

N_TOP = 64  # the most that a drafter gives: nearly all probability of a vocabulary of 320

SHAPES = {
    "full": TinyShape(),
    "sliding": TinyShape(sliding_window=24, layer_sliding=(True, True, True)),
    "mixed": TinyShape(sliding_window=24, layer_sliding=(True, False, True)),
    "mixed-bidirectional": TinyShape(sliding_window=24, layer_sliding=(False, True, True), causal=False),
    "all-causal": TinyShape(sliding_window=24, layer_sliding=(False, True, False), causal=True),
    "window-below-block": TinyShape(sliding_window=5, layer_sliding=(True, True, False), causal=False),
    "one-head-each": TinyShape(n_layer=1, n_head=2, n_head_kv=2, block_size=16, tap_layers=(3,)),
    "five-layers": TinyShape(n_layer=5, n_head_kv=1, n_ff=160, sliding_window=48, layer_sliding=(True,) * 4 + (False,)),
}


class Reference:
    """The PyTorch drafter with a pair's weights, run on the whole context at once."""

    def __init__(self, pair: TinyPair) -> None:
        shape = pair.shape
        config = Qwen3Config(
            vocab_size=N_VOCAB,
            hidden_size=shape.n_embd,
            intermediate_size=shape.n_ff,
            num_hidden_layers=shape.n_layer,
            num_attention_heads=shape.n_head,
            num_key_value_heads=shape.n_head_kv,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.rms_eps,
            rope_theta=shape.rope_base,
            max_position_embeddings=4096,
            attention_bias=False,
            use_sliding_window=shape.sliding_window > 0,
            sliding_window=shape.sliding_window or None,
            layer_types=[
                "sliding_attention" if sliding else "full_attention"
                for sliding in shape.layer_sliding or (False,) * shape.n_layer
            ],
        )
        config.dflash_config = {
            "target_layer_ids": list(shape.tap_layers),
            "mask_token_id": MASK_ID,
            "block_size": shape.block_size,
        }
        config.num_target_layers = shape.target_layers
        if shape.causal is not None:
            config.is_causal = shape.causal
        config._attn_implementation = "sdpa"
        self.pair = pair
        self.model = DFlashDraftModel(config).float().eval()
        weights = {name: torch.from_numpy(data) for name, data in pair.weights.items()}
        self.model.load_state_dict(weights, strict=True)

    @torch.inference_mode()
    def log_probs(self, taps: Floats, anchor: int, pos0: int) -> Floats:
        """[block_size - 1, N_VOCAB]; the positions of sliding layers are relative, so pos0 moves only the rotation."""
        block = self.pair.shape.block_size
        tokens = [anchor] + [MASK_ID] * (block - 1)
        hidden = self.model(
            target_hidden=torch.from_numpy(taps)[None],
            noise_embedding=torch.from_numpy(self.pair.embeddings[tokens])[None],
            position_ids=torch.arange(pos0, pos0 + len(taps) + block)[None],
        )
        return log_softmax(hidden[0, 1:].numpy() @ self.pair.head.T)


@pytest.mark.parametrize("name", SHAPES)
def test_log_probabilities_equal_pytorch(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    pair = random_pair(shape, seed=11)
    drafter = str(write_drafter(pair, tmp_path / "drafter.gguf"))
    target = str(write_target(pair, tmp_path / "target.gguf"))
    reference = Reference(pair)
    rng = np.random.default_rng(3)
    with loaded_target(Path(target)) as (model, _):
        ours = _native.Drafter(drafter, target, model, n_threads=1, top_k=N_TOP)
        # Contexts shorter and longer than the window, of one and of several injections (at most 128 rows each).
        for n in (1, 3, 17, 23, 24, 25, 40, 60, 130, 300, 600):
            pos0 = int(rng.integers(0, 1000))
            taps = rng.standard_normal((n, shape.feature_size)).astype(np.float32)
            anchor = int(rng.integers(N_VOCAB))
            expected = reference.log_probs(taps, anchor, pos0)
            ids, log_probs = ours.propose(pos0, taps, anchor)
            np.testing.assert_allclose(log_probs, np.take_along_axis(expected, ids, axis=-1), atol=1e-3, err_msg=str(n))
            assert np.array_equal(ids[:, 0], expected.argmax(axis=-1))
