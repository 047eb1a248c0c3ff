"""Taps: both ways against each other and against llama.cpp's own callback, on a llama and a gemma3 target."""

from __future__ import annotations

from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from dflash_local._errors import IncompatibleDrafter, Unsupported
from support.engine_rig import Rig, address, greedy
from support.eval_oracle import layer_outputs
from support.random_drafter import GEMMA_TAPS, write_random_drafter


@pytest.mark.parametrize("mode", ["callback", "layer_input"])
def test_taps_of_smollm_are_the_layer_outputs(smollm_path: str, drafter_path: str, mode: str) -> None:
    rig = Rig(smollm_path, drafter_path, tap_mode=mode)
    tokens = rig.prompt("Why do cats purr?")
    rig.engine.eval(tokens, all_logits=True)
    ours = rig.engine.taps()
    rig.engine.close()
    expected = layer_outputs(rig.model, rig.params, tokens, [1, 8, 14, 20, 26])
    assert ours.shape == (len(tokens), 5 * 576)
    np.testing.assert_array_equal(ours, expected)
    rig.close()


def test_taps_of_gemma_are_the_layer_outputs(gemma_path: str, gemma_drafter: str) -> None:
    rig = Rig(gemma_path, gemma_drafter)
    assert rig.engine.tap_mode == "callback"
    tokens = list(rig.model.tokenize(b"Cats purr because", True, False))
    rig.engine.eval(tokens, all_logits=True)
    ours = rig.engine.taps()
    rig.engine.close()
    expected = layer_outputs(rig.model, rig.params, tokens, [layer - 1 for layer in GEMMA_TAPS])
    np.testing.assert_array_equal(ours, expected)
    rig.close()


def test_gemma_drafts_and_replays(gemma_path: str, gemma_drafter: str) -> None:
    rig = Rig(gemma_path, gemma_drafter)
    rig.engine.begin(list(rig.model.tokenize(b"Cats purr because", True, False)))
    out = rig.run(greedy(), 12, 3)
    assert rig.engine.stats()["draft_rounds"] > 0
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == proof["tokens"] == len(out)
    rig.close()


def test_layer_inputs_are_refused_where_llama_cpp_would_abort(gemma_path: str, gemma_drafter: str) -> None:
    with pytest.raises(Unsupported, match="gemma3 does not export layer inputs"):
        Rig(gemma_path, gemma_drafter, tap_mode="layer_input")


@pytest.mark.parametrize("tap", [30, 31, 1000])
def test_taps_past_the_last_layer_are_refused(smollm_path: str, tmp_path: Path, tap: int) -> None:
    path = write_random_drafter(tmp_path / "d.gguf", n_embd=576, taps=[2, tap], mask_token_id=16)
    with pytest.raises(IncompatibleDrafter, match="target_layers"):
        Rig(smollm_path, str(path))


def test_no_taps_without_a_drafter(smollm_path: str) -> None:
    rig = Rig(smollm_path, None)
    rig.engine.eval([1, 2, 3])
    assert rig.engine.taps().size == 0
    assert rig.params.n_ctx == llama_cpp.llama_n_ctx(rig.engine.ctx)
    rig.close()
