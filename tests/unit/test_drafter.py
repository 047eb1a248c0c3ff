"""The drafter as Python sees it, on the packaged pair: answers, memory, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dflash_local import _native
from dflash_local._errors import DecodeError, IncompatibleDrafter, ModelLoadError
from support.llama_drafter import load_model
from support.tiny_pair import TinyShape, random_pair, write_drafter, write_target

Taps = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def model(smollm_path: str) -> int:
    return load_model(Path(smollm_path))


@pytest.fixture(scope="module")
def drafter(drafter_path: str, smollm_path: str, model: int) -> _native.Drafter:
    return _native.Drafter(drafter_path, smollm_path, model)


def random_taps(n: int, seed: int = 0) -> Taps:
    return np.random.default_rng(seed).standard_normal((n, 2880)).astype(np.float32)


def test_says_what_it_is(drafter: _native.Drafter) -> None:
    assert drafter.block_size == 8
    assert drafter.feature_size == 5 * 576
    assert drafter.name.startswith("smollm2-135m-dflash")
    assert drafter.device == "CPU"


def test_goes_where_the_head_is(drafter_path: str, smollm_path: str, model: int) -> None:
    assert _native.Drafter(drafter_path, smollm_path, model, device="auto").device == "CPU"


def test_candidates_are_distinct_and_sorted(drafter: _native.Drafter) -> None:
    ids, log_probs = drafter.propose(0, random_taps(40), 123)
    assert ids.shape == log_probs.shape == (7, 8)
    assert ids.dtype == np.int32
    assert log_probs.dtype == np.float32
    assert np.all(np.diff(log_probs, axis=1) <= 0)
    assert np.all((ids >= 0) & (ids < 49152))
    assert all(len(set(row)) == 8 for row in ids.tolist())
    assert np.all(np.exp(log_probs).sum(axis=1) <= 1)


@pytest.mark.parametrize(("asked", "given"), [(1, 4), (3, 4), (4, 4), (5, 7), (7, 7), (100, 7)])
def test_fewer_slots_are_the_first_of_all(drafter: _native.Drafter, asked: int, given: int) -> None:
    ids, log_probs = drafter.propose(0, random_taps(40), 123)
    some_ids, some_log_probs = drafter.propose(0, random_taps(40), 123, n_slots=asked)
    assert some_ids.shape == (given, 8)
    assert np.array_equal(some_ids, ids[:given])
    np.testing.assert_allclose(some_log_probs, log_probs[:given], atol=1e-5)


def test_no_slots_are_refused(drafter: _native.Drafter) -> None:
    with pytest.raises(ValueError, match="n_slots is 0"):
        drafter.propose(0, random_taps(4), 123, n_slots=0)


@pytest.mark.parametrize("n", [0, 1, 8, 9, 127, 300])
def test_same_input_same_bits(drafter: _native.Drafter, n: int) -> None:
    first = drafter.propose(5, random_taps(n), 123)
    drafter.propose(0, random_taps(20, seed=9), 7)
    again = drafter.propose(5, random_taps(n), 123)
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])


def test_answers_do_not_depend_on_threads_or_top_k(
    drafter: _native.Drafter, drafter_path: str, smollm_path: str, model: int
) -> None:
    other = _native.Drafter(drafter_path, smollm_path, model, n_threads=2, top_k=3)
    ids, log_probs = drafter.propose(0, random_taps(30), 11)
    ids3, log_probs3 = other.propose(0, random_taps(30), 11)
    assert np.array_equal(ids[:, :3], ids3)
    np.testing.assert_allclose(log_probs[:, :3], log_probs3, atol=1e-5)


def test_only_the_last_positions_count(drafter_path: str, smollm_path: str, model: int) -> None:
    small = _native.Drafter(drafter_path, smollm_path, model, n_ctx=64)
    taps = random_taps(200)
    ids, log_probs = small.propose(0, taps, 11)
    ids_tail, log_probs_tail = small.propose(136, taps[136:], 11)
    assert np.array_equal(ids, ids_tail)
    np.testing.assert_allclose(log_probs, log_probs_tail, atol=1e-4)


@pytest.mark.parametrize("n_ctx", [0, 300])
def test_estimate_is_what_is_taken(drafter_path: str, smollm_path: str, model: int, n_ctx: int) -> None:
    estimate = _native.estimate_memory(drafter_path, smollm_path, n_ctx=n_ctx, n_batch=100)
    drafter = _native.Drafter(drafter_path, smollm_path, model, n_ctx=n_ctx)
    for n in (0, 1, 50, 400):
        drafter.propose(0, random_taps(n), 1)
    taken = drafter.memory()  # the context of a proposal is gone again
    assert taken["context"] == 0
    assert estimate["weights"] == taken["weights"]
    assert estimate["compute"] == pytest.approx(taken["compute"], rel=0.1)
    cells = {0: 4096 + 32, 300: 320 + 32}[n_ctx]  # whole buckets; block and scratch cells, padded
    assert estimate["context"] == cells * 2 * 2 * 192 * 2  # two layers, K and V, 192 channels of F16
    assert estimate["taps"] == 5 * 576 * (100 + 2 * 32) * 4  # a batch, and what waits for its injection
    assert estimate["total"] == sum(estimate[part] for part in ("weights", "context", "compute", "taps"))


@pytest.mark.parametrize(
    ("pos0", "n_columns", "anchor", "word"),
    [
        (0, 2879, 1, "multiple of 2880"),
        (-1, 2880, 1, "position -1"),
        (2**31 - 8, 2880, 1, "outside"),
        (0, 2880, 49152, "49152"),
    ],
)
def test_propose_refuses(drafter: _native.Drafter, pos0: int, n_columns: int, anchor: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        drafter.propose(pos0, np.zeros((3, n_columns), np.float32), anchor)


def test_propose_refuses_taps_that_are_no_numbers(drafter: _native.Drafter) -> None:
    taps = random_taps(3)
    taps[2, 100] = np.nan
    with pytest.raises(DecodeError, match="not numbers"):
        drafter.propose(0, taps, 1)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"n_ctx": -1}, "n_ctx is -1"),
        ({"n_threads": 0}, "n_threads is 0"),
        ({"top_k": 65}, "top_k is 65"),
        ({"device": "abacus"}, 'no ggml device "abacus"; there are: .*CPU'),
    ],
)
def test_constructor_refuses(
    drafter_path: str, smollm_path: str, model: int, options: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        _native.Drafter(drafter_path, smollm_path, model, **options)
    with pytest.raises(ValueError, match="model is 0"):
        _native.Drafter(drafter_path, smollm_path, 0)


def test_files_are_checked(drafter_path: str, smollm_path: str, model: int, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"missing\.gguf"):
        _native.Drafter(str(tmp_path / "missing.gguf"), smollm_path, model)
    pair = random_pair(TinyShape(), seed=1)
    stranger = str(write_drafter(pair, tmp_path / "stranger.gguf"))
    with pytest.raises(IncompatibleDrafter) as refusal:
        _native.Drafter(stranger, smollm_path, model)
    assert refusal.value.field
    with pytest.raises(IncompatibleDrafter):
        _native.estimate_memory(stranger, smollm_path)
    target = str(write_target(pair, tmp_path / "target.gguf"))
    assert _native.estimate_memory(stranger, target)["weights"] > 0
