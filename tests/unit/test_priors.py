"""Priors of acceptance: what is written, that nothing else changes, and that they are taken at load."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from dflash_local import ModelLoadError, _native
from dflash_local.pairs.priors import KEY, PriorsError, write_priors
from dflash_local.runtime import load_runtime
from gguf_factory import F32, U16, tiny_drafter, tiny_target
from support.engine_rig import Rig
from support.tiny_pair import TinyShape, random_pair, write_drafter

PRIORS = [1.0, 7.0, 0.25, 1.5, 0.125, -0.5, 1.25, -0.25, *(0.5 - slot / 8 for slot in range(14))]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_drafter(random_pair(TinyShape(), seed=1), tmp_path / "tiny.gguf")


def content(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Metadata and tensor bytes."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return fields, {tensor.name: tensor.data.tobytes() for tensor in reader.tensors}


def test_a_copy_has_the_priors_and_all_else_as_it_was(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    write_priors(tiny, out, PRIORS)
    before, after = content(tiny), content(out)
    assert after[0].pop(KEY) == PRIORS
    assert list(after[0].items()) == list(before[0].items())
    assert after[1] == before[1]
    assert _native.inspect(str(out))["acceptance_slots"] == 7
    assert _native.inspect(str(tiny))["acceptance_slots"] is None


def test_priors_in_place_replace_those_before(tiny: Path) -> None:
    write_priors(tiny, tiny, PRIORS)
    size = tiny.stat().st_size
    write_priors(tiny, tiny, [1.0, 7.0, *[0.5] * 20])
    assert tiny.stat().st_size == size
    assert content(tiny)[0][KEY] == [1.0, 7.0, *[0.5] * 20]
    assert list(tiny.parent.iterdir()) == [tiny]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([2.0, *PRIORS[1:]], "version 2"),
        (PRIORS[:-1], "21 values for 7"),
        ([*PRIORS[:3], math.nan, *PRIORS[4:]], "not a number from -64 to 64"),
        ([1.0, 8.0, *PRIORS[2:], 0.0, 0.0], "the priors are for 8 slots, the drafter has 7"),
    ],
)
def test_priors_that_no_planner_would_take(tiny: Path, tmp_path: Path, values: list[float], words: str) -> None:
    with pytest.raises(PriorsError, match=words):
        write_priors(tiny, tmp_path / "out.gguf", values)
    assert not (tmp_path / "out.gguf").exists()


def test_files_and_places_that_will_not_do(tiny: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(tiny_target().build())
    with pytest.raises(ModelLoadError, match="a target, expected a drafter"):
        write_priors(target, tmp_path / "out.gguf", PRIORS)
    with pytest.raises(PriorsError, match="cannot be written: No such file"):
        write_priors(tiny, tmp_path / "none" / "out.gguf", PRIORS)
    part = tmp_path / "part.gguf"
    part.write_bytes(tiny_drafter().put("split.count", U16, 1).build())
    with pytest.raises(PriorsError, match="one part of several: merge them first"):
        write_priors(part, tmp_path / "out.gguf", [1.0, 0.0, *PRIORS[2:8]])


def test_without_gguf_it_says_what_to_install(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(PriorsError, match="pip install"):
        write_priors(tiny, tmp_path / "out.gguf", PRIORS)


def test_the_planner_starts_from_them(smollm_path: str, drafter_path: str, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    write_priors(Path(drafter_path), out, PRIORS)
    rig = Rig(smollm_path, str(out), n_ctx=64)
    try:
        assert rig.engine.acceptance() == pytest.approx(PRIORS)
        assert rig.drafter is not None
        assert rig.drafter.acceptance_problem == ""
    finally:
        rig.close()


def test_priors_that_cannot_be_used_are_passed_over_with_a_word(
    smollm_path: str, drafter_path: str, tmp_path: Path
) -> None:
    good = tmp_path / "good.gguf"
    write_priors(Path(drafter_path), good, PRIORS)
    bad = tmp_path / "bad.gguf"
    at = np.array(PRIORS, np.float32).tobytes()
    data = good.read_bytes()
    assert data.count(at) == 1
    bad.write_bytes(data.replace(at, np.array([9.0, *PRIORS[1:]], np.float32).tobytes()))
    said: list[str] = []
    with load_runtime(smollm_path, bad, n_ctx=64, n_threads=1, flash_attn=False, notify=said.append) as runtime:
        assert runtime.draft_status == "engaged"
        assert runtime.engine.acceptance()[1] == 0.0
    (warning,) = [line for line in said if line.startswith("warning")]
    assert "priors of acceptance are not used: acceptance priors: found 22 values of version 9" in warning


def test_a_header_alone_is_enough_to_inspect(tmp_path: Path) -> None:
    path = tmp_path / "d.gguf"
    path.write_bytes(tiny_drafter().numbers(KEY, F32, [0.0] * 137).build())
    info = _native.inspect(str(path))
    assert (info["acceptance_slots"], info["problem"]) == (None, "")
    assert "no array of at most 136 numbers" in info["acceptance_problem"]


def test_calibration_learns_and_refuses() -> None:
    ids = np.array([[5, 6], [7, 8]], np.int32)
    log_probs = np.log(np.array([[0.7, 0.2], [0.6, 0.3]], np.float32))
    calibration = _native.DraftAcceptance()
    before = calibration.probs(ids, log_probs)
    assert len(before) == 4
    for _ in range(20):
        calibration.observe(ids, log_probs, 0, 5)
    assert calibration.probs(ids, log_probs)[0] > before[0]
    with pytest.raises(ValueError, match="no slot 2"):
        calibration.observe(ids, log_probs, 2, 5)
    with pytest.raises(ValueError, match="differ in shape"):
        calibration.probs(ids, log_probs[:1])
    with pytest.raises(ValueError, match="differ in shape"):
        calibration.probs(ids[:, :0], log_probs[:, :0])


def test_trees_and_timings_for_benchmarks_refuse_what_makes_no_sense() -> None:
    ids, probs = np.array([[5, 6], [7, 8]], np.int32), np.array([[0.7, 0.2], [0.6, 0.3]], np.float32)
    assert _native.grow_tree(ids, probs, max_nodes=3, max_leaves=1) == ([5, 7], [-1, 0])
    for wrong in ({"max_nodes": -1}, {"max_nodes": 3, "max_leaves": 0}):
        with pytest.raises(ValueError, match="expected max_nodes >= 0 and max_leaves >= 1"):
            _native.grow_tree(ids, probs, **wrong)
    with pytest.raises(ValueError, match="expected 1 to 128 slots"):
        _native.time_planning(n_slots=0)
