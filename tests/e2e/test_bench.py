"""`dflash-local bench` on the real pair: report, table, picture, sweep, oracle, peers, refusals, Ctrl-C."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from command import COMMAND, DRAFTER, TIMEOUT, environment, run, start, target_path

from support.peer_server import Script, peer_server

QUICK = ("--repeat", "2", "--max-tokens", "12")
PROMPTS = [
    {"id": "one", "category": "count", "max_tokens": 9, "prompt": "Count from one to nine."},
    {"id": "two", "category": "copy", "max_tokens": 20, "prompt": "Write these words twice: red green blue red green."},
    {
        "id": "three",
        "category": "copy",
        "max_tokens": 9,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A person, please."}],
        "json_schema": {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
    },
]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS), "utf-8")
    return path


def load(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def test_report_and_table(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run("bench", "--suite", suite, *QUICK, "--json", out)
    assert done.returncode == 0, done.stderr
    report = load(out)
    assert list(report) == [
        "model",
        "drafter",
        "device",
        "threads",
        "build",
        "suite",
        "settings",
        "partial",
        "rows",
        "summary",
    ]
    assert (report["model"], report["drafter"], report["suite"]) == (target_path().name, DRAFTER.name, "mine.jsonl")
    assert (report["threads"], report["partial"]) == (1, False)
    assert [row["id"] for row in report["rows"]] == ["one", "two", "three"]
    for row in report["rows"]:
        assert 1 <= row["predicted_n"] <= 12
        assert len(row["plain_tps_all"]) == len(row["draft_tps_all"]) == 2
        assert row["plain_tps"] > 0
        assert row["draft_tps"] > 0
        assert row["speedup"] > 0
        assert row["identical"] == (row["first_divergence_margin"] is None)
        for i in range(2):
            made = row["draft_rounds"][i] + row["plain_rounds"][i] + row["draft_n_accepted"][i]
            assert made == row["predicted_n"]
    assert report["rows"][2]["text"].lstrip().startswith("{")
    assert set(report["summary"]["by_category"]) == {"count", "copy"}
    assert "| category" in done.stdout
    assert "| all" in done.stdout
    assert "3 prompts, 2 repeats: speed-up" in done.stdout
    assert "measuring adds 1 context of" in done.stderr


def test_fixed_width_differs_from_plain_and_shows_its_margin(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run(
        "bench",
        "--suite",
        suite,
        "--category",
        "count",
        "--repeat",
        "1",
        "--max-tokens",
        "48",
        "--draft-rows",
        "7",
        "--json",
        out,
    )
    assert done.returncode == 0, done.stderr
    (row,) = load(out)["rows"]
    assert row["tokens_per_round"] >= 1
    assert row["draft_status"] == "engaged"
    rounds, nodes, accepted = row["slots"][0]
    assert rounds == nodes >= accepted
    assert set(row["sources"]) == {"drafter"}
    assert "Chains and trees by slot" in done.stdout
    if row["first_divergence_margin"] is not None:
        assert 0 <= row["first_divergence_margin"] < 5


def test_sweep_oracle_and_picture(suite: Path, tmp_path: Path) -> None:
    out, picture = tmp_path / "report.json", tmp_path / "report.png"
    done = run(
        *("bench", "--suite", suite, "--category", "count", "--repeat", "1", "--max-tokens", "8"),
        *("--sweep", "--oracle", "--baseline", "best", "--json", out, "--plot", picture),
    )
    assert done.returncode == 0, done.stderr
    report = load(out)
    assert [row["id"] for row in report["rows"]] == ["one"]
    for row in report["rows"]:
        assert list(row["fixed"]) == [str(width) for width in range(1, 8)]
        assert row["baseline"] in ("plain", "plain, other attention")
        oracle = row["oracle"]
        assert oracle["tps"] > 0
        assert {"1", "8", "16"} <= set(oracle["target_ms"])
        assert {"4", "8"} <= set(oracle["tree_ms"])
        assert sum(oracle["rounds"].values()) <= row["predicted_n"]
        assert oracle["perfect_speedup"] >= oracle["speedup"] * 0.99
    assert 0 <= report["summary"]["best_fixed"] <= 7
    assert report["summary"]["oracle_share"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Speed-up over plain by drafted rows" in done.stdout
    assert "of an oracle" in done.stdout
    assert "What is left" in done.stdout
    assert "measuring adds 3 contexts" in done.stderr


def test_sampling_takes_the_seed(suite: Path, tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        out = tmp_path / name
        args = ("--suite", suite, *QUICK, "--limit", "1", "--temperature", "0.9", "--seed", "5", "--json", out)
        done = run("bench", *args, "--draft-rows", "3")
        assert done.returncode == 0, done.stderr
        report = load(out)
        assert report["settings"]["seed"] == 5
        assert all(row["first_divergence_margin"] is None for row in report["rows"])
        texts.append([row["text"] for row in report["rows"]])
    assert texts[0] == texts[1]


def test_peers_stand_in_the_same_table(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    timings = {"predicted_n": 11, "predicted_ms": 50.0, "prompt_ms": 1.0, "draft_n": 20, "draft_n_accepted": 5}
    with peer_server(Script(timings=timings)) as first, peer_server(Script()) as second:
        done = run("bench", "--suite", suite, *QUICK, "--peer", f"left={first}", "--peer", second, "--json", out)
    assert done.returncode == 0, done.stderr
    report = load(out)
    left = report["summary"]["peers"]["left"]
    assert (left["prompts"], left["tps"], left["tokens_per_round"]) == (3, pytest.approx(200.0), pytest.approx(2.0))
    assert len(report["summary"]["peers"]) == 2
    assert "left t/s" in done.stdout


def test_a_peer_that_dies_ends_with_1_and_the_rest_is_kept(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    # Good for the first request and the warm-up, then it breaks off.
    with peer_server(Script(close_after=2)) as address:
        done = run("bench", "--suite", suite, *QUICK, "--peer", f"far={address}", "--json", out)
    assert done.returncode == 1
    assert done.stderr.count("it broke the connection off") == 2
    assert "warning: going on without it" in done.stderr
    report = load(out)
    assert (report["partial"], len(report["rows"])) == (False, 3)
    assert "broke the connection off" in report["peer_errors"]["far"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("-d", "off"), 2, "drafting cannot be off"),
        (("--draft-rows", "0"), 2, "drafting cannot be off"),
        (("--sweep", "--draft-rows", "3"), 2, "takes no --draft-rows"),
        (("--plot", "out.svg"), 2, "does not end in .png"),
        (("--peer", "nowhere"), 2, "no address of a server"),
        (("--peer", "a=http://h", "--peer", "a=http://i"), 2, "two are named 'a'"),
        (("--repeat", "0"), 2, "--repeat"),
        (("--suite", "nothing"), 1, "no suite 'nothing'"),
        (("--category", "nothing"), 1, "no prompt of category 'nothing'"),
        (("--json", "none/out.json"), 1, "folder is missing or read-only"),
        (("--plot", "none/out.png"), 1, "folder is missing or read-only"),
        (("--limit", "1", "--category", "long", "--ctx", "256"), 1, "the context holds 256: raise --ctx"),
    ],
)
def test_refusals(args: tuple[str, ...], code: int, words: str) -> None:
    done = run("bench", *args)
    assert done.returncode == code, done.stderr
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_schema_that_cannot_be_compiled_names_its_prompt(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(PROMPTS[0] | {"json_schema": {"$ref": "#/none"}}), "utf-8")
    done = run("bench", "--suite", path)
    assert done.returncode == 1
    assert "prompt one: " in done.stderr
    path.write_text(json.dumps(PROMPTS[0] | {"grammar": "root ::= ("}), "utf-8")
    done = run("bench", "--suite", path)
    assert done.returncode == 1
    assert "prompt one: llama.cpp cannot compile this grammar" in done.stderr


def test_ctrl_c_keeps_what_is_done(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    process = start(["bench", "--suite", str(suite), "--repeat", "25", "--max-tokens", "4", "--json", str(out)])
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    try:
        while not out.exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    finally:
        timer.cancel()
    assert process.returncode == 130, stderr.decode()
    report = load(out)
    assert report["partial"] is True
    assert report["rows"][0]["id"] == "one"
    assert len(report["rows"]) < 3
    assert b"interrupted, prompts are missing" in stdout
    assert b"Traceback" not in stderr


def test_ctrl_c_at_a_terminal_reaches_the_group_and_leaves_nothing_behind(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    command = shlex.join([*COMMAND, "bench", "--suite", str(suite), "--oracle", "--repeat", "25", "--json", str(out)])
    # Beneath a shell that stays, all in one group.
    process = subprocess.Popen(
        ["sh", "-c", f"trap : INT; {command}; echo code $?"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    timer = threading.Timer(TIMEOUT, os.killpg, (process.pid, signal.SIGKILL))
    timer.start()
    try:
        while not out.exists() and process.poll() is None:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate()
    finally:
        timer.cancel()
    assert b"Traceback" not in stderr
    assert stdout.endswith(b"code 130\n"), stderr.decode()
    assert b"interrupted, prompts are missing" in stdout
    assert load(out)["partial"] is True
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
