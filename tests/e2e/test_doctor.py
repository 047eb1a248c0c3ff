"""`dflash-local doctor` on the real pair: fields, exit codes, refusals, interruption."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command import DRAFTER, TIMEOUT, run, start, target_path

from support.random_drafter import write_random_drafter

SMALL = {"DFLASH_CTX": "600"}
SMOLLM_TAPS = [2, 9, 15, 21, 27]


def as_json(*args: str | Path, **options: Any) -> dict[str, Any]:
    done = run("doctor", *args, "--json", **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return as_json(env=SMALL)


def test_json_fields(found: dict[str, Any]) -> None:
    assert list(found) == [
        "machine",
        "build",
        "devices",
        "target",
        "drafter",
        "draft_status",
        "on_gpu",
        "threads",
        "flash",
        "tuning",
        "kernels",
        "attention",
        "thread_times",
        "types",
        "curves",
        "skipped",
        "draft_ms",
        "rest_ms",
        "trials",
        "seconds",
        "advice",
        "break_even",
        "copies",
    ]
    assert found["machine"]["cores"] >= 1
    assert (found["threads"], found["flash"], found["on_gpu"]) == (1, "off", False)
    assert found["target"]["tensor_bytes"]["q4_1"] > 0
    assert found["target"]["thinks"] is False
    assert found["drafter"]["block_size"] == 8
    assert found["draft_status"] == "engaged"
    assert found["advice"]
    kernels = found["kernels"]
    assert kernels["ours"] == (kernels["ours_ms"] is not None)
    assert not kernels["ours"] or kernels["ours_ms"] > 0.0 < kernels["ggml_ms"]


def test_whose_kernels_are_in_use(found: dict[str, Any]) -> None:
    done = run("doctor", "--cpu-backend", "ggml", env=SMALL)
    assert "CPU kernels" in done.stdout, done.stderr
    assert "those of ggml; there are none of ours for this machine, or they are switched off" in done.stdout


def test_every_figure_is_measured(found: dict[str, Any]) -> None:
    assert found["thread_times"][0]["threads"] == 1
    assert all(time["one_ms"] > 0.0 < time["four_ms"] for time in found["thread_times"])
    assert {(time["cells"], time["rows"]) for time in found["attention"]} == {
        (c, r) for c in (256, 768) for r in (1, 4)
    }
    assert {"q4_1", "q4_0", "q8_0"} <= {kind["name"] for kind in found["types"]}
    assert all(list(kind["ms"]) == ["1", "2", "4", "8"] for kind in found["types"])
    assert all(ms > 0.0 for kind in found["types"] for ms in kind["ms"].values())
    assert found["curves"][0]["cells"] == 512
    assert {"1", "2"} <= set(found["curves"][0]["ms"])
    assert found["draft_ms"] > 0.0
    assert found["rest_ms"] > 0.0


def test_acceptance_and_expectations_follow_from_the_trials(found: dict[str, Any]) -> None:
    assert [trial["category"] for trial in found["trials"]] == ["prose", "code", "facts"]
    for trial in found["trials"]:
        assert trial["rounds"] > 0
        assert len(trial["accepted"]) == len(trial["reach"]) <= 7
        assert trial["reach"] == sorted(trial["reach"], reverse=True)
        assert trial["tokens_per_round"] == pytest.approx(1.0 + sum(trial["reach"]), abs=1e-3)
        assert trial["expected"]["speedup"] >= 1.0
        assert trial["expected"]["rows"] == 1 or trial["expected"]["speedup"] > 1.0
    curve, even = found["curves"][0]["ms"], found["break_even"]["512"]
    assert even["2"] == pytest.approx((found["draft_ms"] + curve["2"]) / curve["1"], rel=1e-2)


def test_in_words_without_a_drafter() -> None:
    done = run("doctor", "-d", "off", env={"DFLASH_CTX": "256"})
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for words in ("machine", "Q4_1 69%", "Threads", "Attention", "Rounds", "Copies", "Do this\n- "):
        assert words in done.stdout
    assert "Acceptance" not in done.stdout


def test_a_drafter_that_knows_nothing_is_a_wrong_pair(tmp_path: Path) -> None:
    drafter = write_random_drafter(tmp_path / "d.gguf", n_embd=576, taps=SMOLLM_TAPS, mask_token_id=5)
    found = as_json("-d", drafter, env=SMALL)
    assert any("made for another target" in sentence for sentence in found["advice"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-m", "nothing.gguf"), "neither a file nor a known model"),
        (("-d", "nothing.gguf"), "no such drafter file"),
        (("-m", DRAFTER), "is a DFlash drafter, not a target"),
        (("-d", target_path()), "is no DFlash drafter"),
    ],
)
def test_bad_files_are_one_line(args: tuple[str | Path, ...], words: str) -> None:
    done = run("doctor", *args)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("args", [("--threads", "0"), ("--ctx", "-1"), ("--flash-attn", "maybe"), ("extra",)])
def test_wrong_usage(args: tuple[str, ...]) -> None:
    done = run("doctor", *args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_interrupt_while_measuring() -> None:
    process = start(("doctor", "--verbose"))
    assert process.stderr is not None
    for line in process.stderr:
        if b"batches by rows" in line:
            break
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, errors
    assert rest == b""
    assert b"Traceback" not in errors
