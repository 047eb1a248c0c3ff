"""The scripts in benchmarks/: each runs on a tiny input, and their arithmetic on numbers made by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash_local import _native
from support.tiny_pair import TinyShape, random_pair, write_drafter, write_target

SCRIPTS = Path(__file__).parents[2] / "benchmarks"
TIMEOUT = 120


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name a random tiny pair and two prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    pair = random_pair(TinyShape(), seed=3)
    prompts = folder / "prompts.jsonl"
    lines = [{"id": name, "category": name, "max_tokens": 64, "prompt": f"{name} abab"} for name in ("one", "two")]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return [
        *("--target", str(write_target(pair, folder / "target.gguf"))),
        *("--drafter", str(write_drafter(pair, folder / "drafter.gguf"))),
        *("--prompts", str(prompts), "--threads", "1", "--n-ctx", "256"),
    ]


def run(script: str, *options: str, out: Path | None = None) -> tuple[str, Any]:
    """Output and report of a script."""
    json_options = ["--json", str(out)] if out else []
    # llama_cpp leaves two files on /dev/null open to the end.
    command = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", str(SCRIPTS / script)]
    done = subprocess.run([*command, *options, *json_options], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(out.read_text("utf-8")) if out else None


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def test_trees(tiny: list[str], tmp_path: Path) -> None:
    shapes = ("--shapes", "3x1,7x1,7x4", "--repeat", "2", "--replay", "--max-tokens", "12")
    text, report = run("trees.py", *tiny, *shapes, out=tmp_path / "out.json")
    assert "| 7x4" in text
    assert set(report["summary"]) == {"one", "two", "all"}
    for row in report["rows"]:
        for runs in row["runs"].values():
            assert len(runs) == 2
            assert 1 <= runs[0]["replay_exact"] == runs[0]["replay_tokens"] == runs[0]["tokens"] <= 12


def test_planning(tiny: list[str], tmp_path: Path) -> None:
    fast = ("--rounds", "50", "--repeat", "1", "--budget-ms", "20")
    text, report = run("planning.py", *tiny, *fast, out=tmp_path / "out.json")
    assert "prior costs of target.gguf" in text
    assert all(figure > 0 for case in report["decisions"].values() for figure in case.values())
    assert report["proposals"]["grammar, forced"]["calls"] > 10
    assert report["proposals"]["copy of up to 63 tokens"]["calls"] > 2


def test_copies(tiny: list[str], tmp_path: Path) -> None:
    text, report = run("copies.py", *tiny, "--edits", "0", out=tmp_path / "out.json")
    assert "2 answers, 0 edits" in text
    assert "| 32 and more" in text
    assert sum(line["copies"] for line in report["rates"]["answers"].values()) > 0


def test_acceptance_priors(tiny: list[str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    options = ("--out", str(copy), "--temperatures", "0", "--passes", "2")
    text, report = run("acceptance_priors.py", *tiny, *options, out=tmp_path / "out.json")
    assert "held out" in text
    assert _native.inspect(str(copy))["acceptance_slots"] == 7
    assert len(report["priors"]) == 8 + 2 * 7


@pytest.mark.parametrize("same", [(), ("--same",)])
def test_hostile(tmp_path: Path, same: tuple[str, ...]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    line = {"id": "list", "category": "list", "max_tokens": 100, "prompt": "Tell me the history of Rome, at length."}
    prompts.write_text(json.dumps(line) + "\n", "utf-8")
    options = ("--prompts", str(prompts), "--threads", "1", "--n-ctx", "512", "--max-tokens", "100", "--period", "32")
    text, report = run("hostile_load.py", *options, "--repeat", "1", *same, out=tmp_path / "out.json")
    (row,) = report["rows"]
    assert row["tokens"] == 100
    # Every stretch of 64 tokens is longer than a period; they start at tokens 1, 17 and 33.
    assert list(row["medians"]) == ["mixed 1", "mixed 17", "mixed 33"]
    assert ("plain against plain" in text) == bool(same)
    assert "mixed: 3 stretches" in text


@pytest.mark.parametrize(
    ("script", "options", "words"),
    [
        ("trees.py", ("--shapes", "7x64"), "this target takes trees of 32 leaves at most"),
        ("trees.py", ("--shapes", "7x0"), "0: expected 1 or more"),
        ("acceptance_priors.py", ("--out", "never.gguf", "--max-tokens", "1"), "no answer is long enough"),
    ],
)
def test_refusals(tiny: list[str], tmp_path: Path, script: str, options: tuple[str, ...], words: str) -> None:
    command = [sys.executable, "-W", "ignore::ResourceWarning", str(SCRIPTS / script), *tiny, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=tmp_path)
    assert done.returncode != 0
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("scripts")
def test_shapes_are_read_and_paired() -> None:
    import argparse

    import trees

    shapes = trees.shape_list("3x1,7x1,7x4,5x2,2x2")
    assert [trees.chain_for(shape, shapes) for shape in shapes[2:]] == [(7, 1), (3, 1), None]
    for wrong in ("7x0", "0x1", "7x1,7x1"):
        with pytest.raises(argparse.ArgumentTypeError):
            trees.shape_list(wrong)
    for wrong in ("7", "7x1x1"):
        with pytest.raises(TypeError):  # argparse names the option and the value
            trees.shape_list(wrong)


@pytest.mark.usefixtures("scripts")
def test_a_block_is_judged_up_to_its_first_miss() -> None:
    import acceptance_priors as priors
    import numpy as np

    ids = np.array([[4, 9], [5, 9], [6, 9]], np.int32)
    assert priors.judged(ids, [4, 9, 6]) == [4, 9]
    assert priors.judged(ids, [4]) == [4]
    log_probs = np.log(np.full((3, 2), 0.25, np.float32))
    answers = [[priors.Block(ids, log_probs, [4, 9])], []]
    # One right at a quarter, one wrong at three quarters.
    assert priors.own_loss(answers) == pytest.approx((np.log(4) + np.log(4 / 3)) / 2)
    learned, before = priors.learn(answers, None, 3)
    assert (learned[:2], len(learned)) == ([1.0, 3.0], 8 + 2 * 3)
    again = priors.fit(answers, 3, passes=50)
    assert priors.learn(answers, again, 3)[1] < before
    own, neutral, fitted, alone, fitted_alone = priors.losses(answers, again, 3)
    assert own == priors.own_loss(answers)
    assert (neutral, fitted) == (alone, fitted_alone)


@pytest.mark.usefixtures("scripts")
def test_stretches_are_told_apart_by_their_load() -> None:
    import hostile_load as hostile

    class Answer:
        n_tokens = 0

    def clock(ms_per_token: float, step: int) -> Any:
        found, answer = hostile.Clock(), Answer()
        for n in range(1, 258, step):
            answer.n_tokens = n
            found.note(answer, ms_per_token * (n - 1), n > 129)
        return found

    # Rounds of four tokens at 10 ms against single tokens at 20.
    ratios = hostile.stretches(clock(20.0, 1), clock(10.0, 4))
    assert set(ratios.values()) == {2.0}
    assert [start for kind, start in ratios if kind == "quiet"] == [1, 17, 33, 49, 65]
    assert [start for kind, start in ratios if kind == "loaded"] == [129, 145, 161, 177, 193]
    assert hostile.worst({("quiet", 1): 0.9, ("quiet", 17): 0.8, ("mixed", 1): 0.1}, "quiet") == "0.80 at 17"
    assert hostile.worst({}, "quiet") == "-"
    repeats = [{("quiet", 1): 1.0, ("mixed", 17): 5.0}, {("quiet", 1): 3.0}, {("quiet", 1): 2.0}]
    assert hostile.medians(repeats) == {("quiet", 1): 2.0}


@pytest.mark.usefixtures("scripts")
def test_load_comes_and_goes() -> None:
    import hostile_load as hostile

    with hostile.load(2) as load:
        load.switch(True)
        running = list(load._running)
        assert [process.poll() for process in running] == [None, None]
        load.switch(True)
        assert load._running == running
        load.switch(False)
        assert all(process.poll() is not None for process in running)
        load.switch(True)
        last = list(load._running)
    assert all(process.poll() is not None for process in last)


@pytest.mark.usefixtures("scripts")
def test_copies_are_judged_as_far_as_they_hold() -> None:
    import copies

    assert [copies.bucket(n) for n in (1, 6, 7, 8, 32, 64)] == [
        "1",
        "6 to 7",
        "6 to 7",
        "8 to 11",
        "32 and more",
        "32 and more",
    ]
    # After "c" the prompt goes on with a b y, of which a b come true; after "b x" there is nothing to copy.
    found = list(copies.follow(copies.Text([3, 1, 2, 7, 5], [3, 1, 2, 9])))
    assert found == [copies.Proposed(1, 3, 2)]
    rates = copies.rates([copies.Proposed(1, 3, 2), copies.Proposed(1, 3, 0), copies.Proposed(1, 2, 2)])
    # Further: one of two and one of one.
    assert rates["1"] == {"copies": 3, "first": pytest.approx(2 / 3), "further": pytest.approx(2 / 3)}
