"""The cost cache: what is stored comes back, and any damage is as if nothing were there."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dflash_local import costs
from dflash_local._errors import Cancelled, DecodeError
from dflash_local._native import check_costs
from dflash_local.pairs.resolve import resolve_pair

if TYPE_CHECKING:
    from dflash_local._native import CostTable

TABLE: CostTable = {
    "widths": [
        {"rows": 1, "base_ms": 10.0, "slope_ms": 0.001},
        {"rows": 4, "base_ms": 20.5, "slope_ms": 0.004},
    ],
    "draft_ms": 5.0,
    "draft_slot_ms": 0.2,
    "draft_slots": 7,
    "leaf_ms": 0.02,
    "rest_ms": 0.5,
}
KEY = costs.CostKey({"target": "a", "threads": 2})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(costs.ENVIRONMENT, str(tmp_path / "cache"))
    return tmp_path / "cache"


def file_of(folder: Path, key: costs.CostKey = KEY) -> Path:
    return folder / key.file_name


def test_a_stored_table_comes_back() -> None:
    assert costs.load(KEY) is None
    assert costs.store(KEY, TABLE) == ""
    assert costs.load(KEY) == TABLE
    assert costs.load(costs.CostKey({"target": "a", "threads": 1})) is None


def test_a_table_is_replaced_whole_and_leaves_nothing_else(folder: Path) -> None:
    costs.store(KEY, TABLE)
    changed = copy.deepcopy(TABLE)
    changed["draft_ms"] = 7.0
    costs.store(KEY, changed)
    assert costs.load(KEY) == changed
    assert [path.name for path in folder.iterdir()] == [KEY.file_name]


def rewrite(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        content = json.loads(data)
        change(content)
        return json.dumps(content).encode()

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "binary": lambda _: os.urandom(200),
    "not utf-8": lambda data: b"\xff\xfe" + data,
    "a list": lambda _: b"[]",
    "deep": lambda _: b"[" * 50000,
    "huge": lambda data: data + b" " * costs.MAX_FILE_BYTES,
    "old version": rewrite(lambda c: c.update(version=costs.VERSION - 1)),
    "no version": rewrite(lambda c: c.pop("version")),
    "another key": rewrite(lambda c: c["key"].update(threads=3)),
    "no table": rewrite(lambda c: c.pop("table")),
    "table of another kind": rewrite(lambda c: c.update(table=3)),
    "no widths": rewrite(lambda c: c["table"].update(widths=[])),
    "widths of another kind": rewrite(lambda c: c["table"].update(widths={"1": 2})),
    "a width of another kind": rewrite(lambda c: c["table"].update(widths=[1])),
    "rows missing": rewrite(lambda c: c["table"]["widths"][0].pop("rows")),
    "rows zero": rewrite(lambda c: c["table"]["widths"][0].update(rows=0)),
    "rows true": rewrite(lambda c: c["table"]["widths"][0].update(rows=True)),
    "rows a fraction": rewrite(lambda c: c["table"]["widths"][0].update(rows=1.5)),
    "rows too many": rewrite(lambda c: c["table"]["widths"][0].update(rows=10**30)),
    "rows descending": rewrite(lambda c: c["table"]["widths"].reverse()),
    "time zero": rewrite(lambda c: c["table"]["widths"][0].update(base_ms=0.0)),
    "time negative": rewrite(lambda c: c["table"]["widths"][0].update(base_ms=-1.0)),
    "time a text": rewrite(lambda c: c["table"]["widths"][0].update(base_ms="10")),
    "time infinite": rewrite(lambda c: c["table"]["widths"][0].update(base_ms=float("inf"))),
    "time too large": rewrite(lambda c: c["table"]["widths"][0].update(base_ms=10**400)),
    "slope negative": rewrite(lambda c: c["table"]["widths"][0].update(slope_ms=-0.1)),
    "draft time missing": rewrite(lambda c: c["table"].pop("draft_ms")),
    "draft time no number": rewrite(lambda c: c["table"].update(draft_ms=float("nan"))),
    "slots save too much": rewrite(lambda c: c["table"].update(draft_slot_ms=1.0)),
    "slots negative": rewrite(lambda c: c["table"].update(draft_slots=-1)),
    "leaf null": rewrite(lambda c: c["table"].update(leaf_ms=None)),
    "rest null": rewrite(lambda c: c["table"].update(rest_ms=None)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_ignored_and_rewritten(folder: Path, name: str) -> None:
    costs.store(KEY, TABLE)
    path = file_of(folder)
    path.write_bytes(DAMAGES[name](path.read_bytes()))
    assert costs.load(KEY) is None
    assert costs.store(KEY, TABLE) == ""
    assert costs.load(KEY) == TABLE


def test_a_folder_in_the_place_of_the_file_is_a_note(folder: Path) -> None:
    file_of(folder).mkdir(parents=True)
    assert costs.load(KEY) is None
    assert "measured costs are not kept" in costs.store(KEY, TABLE)
    assert [path.name for path in folder.iterdir()] == [KEY.file_name]


def test_a_folder_that_cannot_be_made_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(costs.ENVIRONMENT, str(tmp_path / "file" / "below"))
    assert costs.load(KEY) is None
    assert str(tmp_path / "file" / "below") in costs.store(KEY, TABLE)


def test_a_full_disk_is_a_note_and_keeps_the_old_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs.store(KEY, TABLE)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(costs.json, "dump", full)
        assert "No space left" in costs.store(KEY, TABLE)
    assert costs.load(KEY) == TABLE
    assert [path.name for path in folder.iterdir()] == [KEY.file_name]


def test_a_bad_table_is_never_stored(folder: Path) -> None:
    bad = copy.deepcopy(TABLE)
    bad["rest_ms"] = float("nan")
    with pytest.raises(ValueError, match="rest_ms is not a number"):
        costs.store(KEY, bad)
    assert not folder.exists()


def test_the_number_of_files_is_bounded_and_the_newest_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "MAX_FILES", 3)
    folder.mkdir()
    (folder / "notes.json").write_text("{}")
    keys = [costs.CostKey({"target": str(i)}) for i in range(5)]
    for age, key in enumerate(keys):
        costs.store(key, TABLE)
        os.utime(file_of(folder, key), (1000 + age, 1000 + age))
    costs.store(KEY, TABLE)
    assert [costs.load(key) is not None for key in (*keys, KEY)] == [False, False, False, True, True, True]
    assert (folder / "notes.json").exists()


def test_the_default_folder_is_the_platforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(costs.ENVIRONMENT)
    monkeypatch.setattr(costs.platformdirs, "user_cache_dir", lambda name, appauthor: f"cache of {name}")
    assert costs.cache_dir() == Path("cache of dflash-local")


class Params:
    n_threads, flash_attn_type, type_k, type_v = 2, 0, 1, 1


def test_a_key_names_files_by_content_and_settings(smollm_path: str, tmp_path: Path) -> None:
    pair = resolve_pair(smollm_path)
    link = tmp_path / "elsewhere.gguf"
    link.symlink_to(smollm_path)
    assert pair.drafter is not None
    moved = resolve_pair(link, pair.drafter)
    metadata = {"general.name": "x"}
    key = costs.key_of(pair, metadata, Params, tap_mode="callback")
    assert costs.key_of(moved, metadata, Params, tap_mode="callback").file_name == key.file_name
    assert all(isinstance(value, str | int) for value in key.parts.values())

    class MoreThreads(Params):
        n_threads = 4

    others = [
        costs.key_of(pair.declined("x"), metadata, Params, tap_mode="callback"),
        costs.key_of(pair, {"general.name": "y"}, Params, tap_mode="callback"),
        costs.key_of(pair, metadata, MoreThreads, tap_mode="callback"),
        costs.key_of(pair, metadata, Params, tap_mode="layer_input"),
        costs.key_of(pair, metadata, Params, tap_mode="callback", n_gpu_layers=9),
    ]
    assert len({key.file_name, *(other.file_name for other in others)}) == 6


class Engine:
    def __init__(self, failure: Exception | None = None) -> None:
        self.calls = 0
        self.failure = failure

    def time_costs(self, budget_ms: float) -> CostTable:
        self.calls += 1
        assert budget_ms == costs.BUDGET_MS
        if self.failure is not None:
            raise self.failure
        return TABLE


def test_the_prior_is_timed_once_and_then_read() -> None:
    engine, notes = Engine(), list[str]()
    for _ in range(2):
        assert costs.prior(engine, KEY, note=notes.append) == TABLE  # type: ignore[arg-type]
    assert engine.calls == 1
    assert notes == [f"costs: from {costs.cache_dir() / KEY.file_name}"]


def test_a_failing_measurement_is_a_warning() -> None:
    warnings: list[str] = []
    assert costs.prior(Engine(DecodeError("broken")), KEY, warn=warnings.append) is None  # type: ignore[arg-type]
    assert warnings == ["warning: the costs of rounds could not be measured: broken"]
    assert costs.load(KEY) is None


@pytest.mark.parametrize("stop", [Cancelled("cancelled"), KeyboardInterrupt()])
def test_an_interrupt_is_not_a_failed_measurement(stop: BaseException) -> None:
    with pytest.raises(type(stop)):
        costs.prior(Engine(stop), KEY)  # type: ignore[arg-type]


def test_an_unwritable_folder_does_not_cost_the_prior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(costs.ENVIRONMENT, str(tmp_path / "file"))
    notes: list[str] = []
    assert costs.prior(Engine(), KEY, note=notes.append) == TABLE  # type: ignore[arg-type]
    assert len(notes) == 1
    assert "not kept" in notes[0]


def test_checked_tables_are_copies() -> None:
    checked = check_costs(TABLE)
    assert checked == TABLE
    assert checked is not TABLE
    with pytest.raises(ValueError, match="draft_ms is not there"):
        check_costs({"widths": []})  # type: ignore[typeddict-item]
