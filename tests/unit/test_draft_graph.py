"""Our draft graph against llama.cpp's own on the same files: random tiny pairs and the packaged pair."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from dflash_local import _native
from support.llama_drafter import LlamaDrafter, loaded_target, tapped_prompt, tokenize
from support.tiny_pair import N_VOCAB, TinyShape, log_softmax, random_pair, write_drafter, write_target

Kind = gguf.GGMLQuantizationType
Floats = npt.NDArray[np.float32]

# llama.cpp has one causality for all layers, so it is written wherever a layer slides.
SHAPES = {
    "full": TinyShape(),
    "sliding-causal": TinyShape(sliding_window=24, layer_sliding=(True, True, True), causal=True),
    "mixed-bidirectional": TinyShape(sliding_window=24, layer_sliding=(True, False, True), causal=False),
    "narrow-window": TinyShape(sliding_window=5, layer_sliding=(True, True, False), causal=True),
}
MARGIN = 0.05  # top-2 distance below which rounding may decide


@dataclass
class Both:
    ours: _native.Drafter
    theirs: LlamaDrafter
    shape: TinyShape

    def slots(
        self, rng: np.random.Generator, n_contexts: int
    ) -> Iterator[tuple[npt.NDArray[np.int32], Floats, Floats]]:
        """Per random context: our ids and log-probabilities, llama.cpp's log-probabilities."""
        for _ in range(n_contexts):
            n = int(rng.integers(0, 150))
            pos0 = int(rng.integers(0, 400))
            taps = rng.standard_normal((n, self.shape.feature_size)).astype(np.float32)
            anchor = int(rng.integers(N_VOCAB))
            ids, log_probs = self.ours.propose(pos0 if n else 0, taps, anchor)
            yield ids, log_probs, log_softmax(self.theirs.logits(taps, anchor, pos0 if n else 0))


@contextmanager
def both_of(shape: TinyShape, kind: gguf.GGMLQuantizationType, folder: Path) -> Iterator[Both]:
    pair = random_pair(shape, seed=7)
    drafter = write_drafter(pair, folder / "drafter.gguf", kind)
    target = write_target(pair, folder / "target.gguf", kind)
    with loaded_target(target) as (model, ctx):
        ours = _native.Drafter(str(drafter), str(target), model, n_threads=1, top_k=4)
        theirs = LlamaDrafter(
            drafter, ctx, block_size=shape.block_size, causal=bool(shape.causal), f32_context=kind == Kind.F32
        )
        yield Both(ours, theirs, shape)
        theirs.close()


@pytest.mark.parametrize("name", SHAPES)
def test_f32_log_probabilities_equal_llama_cpp(name: str, tmp_path: Path) -> None:
    with both_of(SHAPES[name], Kind.F32, tmp_path) as both:
        for ids, log_probs, reference in both.slots(np.random.default_rng(1), 12):
            assert np.array_equal(ids[:, 0], reference.argmax(axis=-1))
            np.testing.assert_allclose(log_probs, np.take_along_axis(reference, ids, axis=-1), atol=1e-3)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", SHAPES)
def test_quantized_argmax_equals_llama_cpp(name: str, kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    equal, total = 0, 0
    with both_of(SHAPES[name], kind, tmp_path) as both:
        for ids, _, reference in both.slots(np.random.default_rng(2), 30):
            best, second = -np.partition(-reference, 1, axis=-1)[:, :2].T
            same = ids[:, 0] == reference.argmax(axis=-1)
            assert np.all(same | (best - second < MARGIN))
            equal, total = equal + int(same.sum()), total + len(same)
    assert equal / total >= 0.99


def test_packaged_drafter_on_real_taps(smollm_path: str, drafter_path: str) -> None:
    """llama.cpp loads the packaged drafter and its graph picks the same tokens from the target's own hidden states."""
    text = b"The three primary colours are red, yellow and blue. Painters mix them to get every other colour."
    with loaded_target(Path(smollm_path), n_ctx=128) as (model, ctx):
        tokens = tokenize(model, text)
        taps = tapped_prompt(ctx, tokens, [2, 9, 15, 21, 27], 576)
        ours = _native.Drafter(drafter_path, smollm_path, model, n_threads=1)
        theirs = LlamaDrafter(Path(drafter_path), ctx, block_size=ours.block_size, causal=False)
        for n in (5, len(tokens) - 1):
            ids, log_probs = ours.propose(0, taps[:n], tokens[n])
            reference = log_softmax(theirs.logits(taps[:n], tokens[n]))
            assert np.array_equal(ids[:, 0], reference.argmax(axis=-1))
            np.testing.assert_allclose(log_probs, np.take_along_axis(reference, ids, axis=-1), atol=1e-3)
        theirs.close()
