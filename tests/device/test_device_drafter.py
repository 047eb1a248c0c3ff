"""The drafter on a second device against the drafter on the CPU: candidates, borrowed heads, memory, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from dflash_local import _native
from support.engine_rig import Rig, address, greedy
from support.llama_drafter import load_model
from support.tiny_pair import N_VOCAB, TinyShape, random_pair, write_drafter, write_target

Kind = gguf.GGMLQuantizationType
Taps = npt.NDArray[np.float32]

ALL_LAYERS = 1000
MARGIN = 0.05  # top-2 distance below which rounding may decide
TEXT = "The three primary colours are red, yellow and blue. Painters mix them to get every other colour."
SHAPES = {
    "full": TinyShape(),
    "mixed": TinyShape(sliding_window=24, layer_sliding=(True, False, True)),
    "causal": TinyShape(sliding_window=5, layer_sliding=(True, True, True), causal=True),
    "odd-block": TinyShape(block_size=5),
}


@contextmanager
def loaded(smollm_path: str, n_gpu_layers: int) -> Iterator[int]:
    rig = Rig(smollm_path, None, n_gpu_layers=n_gpu_layers)
    yield address(rig.model.model)
    rig.close()


@pytest.fixture(scope="module")
def real_taps(smollm_path: str, drafter_path: str) -> tuple[Taps, list[int]]:
    """Hidden states of a text, [n, feature_size], and its tokens."""
    rig = Rig(smollm_path, drafter_path)
    tokens = rig.prompt(TEXT)
    rig.engine.eval(tokens)
    taps = rig.engine.taps()
    rig.close()
    return taps, tokens


def check_equal(cpu: _native.Drafter, other: _native.Drafter, pos0: int, taps: Taps, anchor: int, atol: float) -> None:
    ids, log_probs = cpu.propose(pos0, taps, anchor)
    other_ids, other_log_probs = other.propose(pos0, taps, anchor)
    assert other_ids.shape == ids.shape
    assert np.all(np.diff(other_log_probs, axis=1) <= 0)
    clear = log_probs[:, 0] - log_probs[:, 1] > MARGIN
    assert np.array_equal(ids[clear, 0], other_ids[clear, 0])
    np.testing.assert_allclose(other_log_probs, log_probs, atol=atol)


@pytest.mark.parametrize("n_gpu_layers", [0, ALL_LAYERS], ids=["target-on-cpu", "target-on-device"])
def test_packaged_drafter_on_real_taps(
    smollm_path: str, drafter_path: str, device: str, n_gpu_layers: int, real_taps: tuple[Taps, list[int]]
) -> None:
    """The head is the target's loaded one or, where it lies elsewhere, a copy from its file."""
    taps, tokens = real_taps
    with loaded(smollm_path, n_gpu_layers) as model:
        cpu, other = (_native.Drafter(drafter_path, smollm_path, model, device=name) for name in ("", device))
        assert (cpu.device, other.device) == ("CPU", device)
        for n in range(1, len(tokens) - 1, 3):
            check_equal(cpu, other, 0, taps[:n], tokens[n], atol=0.2)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0, Kind.Q4_0], ids=lambda kind: kind.name)
def test_random_drafters(device: str, name: str, kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    shape = SHAPES[name]
    pair = random_pair(shape, seed=7)
    drafter, target = (
        str(write_drafter(pair, tmp_path / "drafter.gguf", kind)),
        str(write_target(pair, tmp_path / "target.gguf", kind)),
    )
    model = load_model(Path(target))
    cpu, other = (_native.Drafter(drafter, target, model, top_k=4, device=name) for name in ("", device))
    rng = np.random.default_rng(1)
    for n in (0, 1, 7, 40, 150):
        pos0 = int(rng.integers(0, 400)) if n else 0
        taps = rng.standard_normal((n, shape.feature_size)).astype(np.float32)
        atol = {Kind.F32: 1e-3, Kind.F16: 0.05}.get(kind, 0.3)
        check_equal(cpu, other, pos0, taps, int(rng.integers(N_VOCAB)), atol)


@pytest.mark.parametrize("top_k", [1, 64])
def test_top_k(smollm_path: str, drafter_path: str, device: str, top_k: int, real_taps: tuple[Taps, list[int]]) -> None:
    taps, tokens = real_taps
    with loaded(smollm_path, ALL_LAYERS) as model:
        whole = _native.Drafter(drafter_path, smollm_path, model, device=device, top_k=8)
        other = _native.Drafter(drafter_path, smollm_path, model, device=device, top_k=top_k)
        ids, log_probs = whole.propose(0, taps, tokens[-1])
        other_ids, other_log_probs = other.propose(0, taps, tokens[-1])
    n = min(top_k, 8)
    assert np.array_equal(ids[:, :n], other_ids[:, :n])
    np.testing.assert_array_equal(log_probs[:, :n], other_log_probs[:, :n])
    assert all(len(set(row)) == top_k for row in other_ids.tolist())


def test_same_input_same_bits(smollm_path: str, drafter_path: str, device: str) -> None:
    rng = np.random.default_rng(3)
    with loaded(smollm_path, ALL_LAYERS) as model:
        drafter = _native.Drafter(drafter_path, smollm_path, model, device=device, n_ctx=64)
        for n in (1, 9, 127, 200):
            taps = rng.standard_normal((n, drafter.feature_size)).astype(np.float32)
            first = drafter.propose(5, taps, 123)
            drafter.propose(0, taps[: n // 2], 7)
            again = drafter.propose(5, taps, 123)
            np.testing.assert_array_equal(first[0], again[0])
            np.testing.assert_array_equal(first[1], again[1])


@pytest.mark.parametrize("n_ctx", [0, 300])
def test_estimate_is_what_is_taken(smollm_path: str, drafter_path: str, device: str, n_ctx: int) -> None:
    estimate = _native.estimate_memory(drafter_path, smollm_path, n_ctx=n_ctx, n_batch=128, device=device)
    rig = Rig(smollm_path, None, n_gpu_layers=ALL_LAYERS)
    model = address(rig.model.model)
    drafter = _native.Drafter(drafter_path, smollm_path, model, n_ctx=n_ctx, device=device)
    for n in (0, 1, 50, 400):
        drafter.propose(0, np.ones((n, drafter.feature_size), np.float32), 1)
    taken = drafter.memory()
    assert estimate["weights"] == pytest.approx(taken["weights"], rel=0.01)
    assert estimate["compute"] == pytest.approx(taken["compute"], rel=0.1)
    rig.close()


def test_estimate_of_an_engine_on_the_device(rig: Rig, smollm_path: str, drafter_path: str) -> None:
    assert rig.drafter is not None
    device = "" if rig.drafter.device == "CPU" else rig.drafter.device
    estimate = _native.estimate_memory(
        drafter_path, smollm_path, n_batch=rig.engine.n_batch, device=device, layers_on_device=True
    )
    rig.engine.begin(rig.prompt("word " * 300), reuse=False)
    rig.run(greedy(), 24, 7)
    taken = rig.engine.draft_memory()
    assert estimate["total"] == pytest.approx(taken["total"], rel=0.1)
