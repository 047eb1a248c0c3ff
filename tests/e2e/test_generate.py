"""`dflash-local generate` on the real model: fields, proof, sources of the prompt, refusals, interruption."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command import DRAFTER, TIMEOUT, run, start, target_path

from dflash_local.tune import available_cores

ASK = ("generate", "-p", "Name three colours.", "--max-tokens", "24")
LONG = ("generate", "-p", "Write a long story about a ship.", "--max-tokens", "0", "--temperature", "0")


def as_json(*args: str | Path, **options: Any) -> dict[str, Any]:
    done = run(*args, "--json", **options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("rows", ["auto", "0", "1", "7"])
def test_json_fields_and_counters(rows: str) -> None:
    found = as_json(*ASK, "--draft-rows", rows)
    timings = found["timings"]
    assert list(found) == [
        "text",
        "tokens",
        "prompt_tokens",
        "completion_tokens",
        "finish_reason",
        "seed",
        "model",
        "drafter",
        "draft_status",
        "timings",
    ]
    assert list(timings) == [
        "prompt_n",
        "prompt_ms",
        "predicted_n",
        "predicted_ms",
        "predicted_per_second",
        "draft_kind",
        "draft_rounds",
        "copy_rounds",
        "plain_rounds",
        "draft_n",
        "draft_n_accepted",
        "copy_n_accepted",
        "tokens_per_round",
        "speedup",
        "speedup_basis",
    ]
    assert timings["predicted_n"] == timings["draft_rounds"] + timings["plain_rounds"] + timings["draft_n_accepted"]
    assert found["completion_tokens"] == len(found["tokens"]) == timings["predicted_n"] <= 24
    assert found["finish_reason"] in ("stop", "length")
    assert 0 <= found["seed"] < 2**32 - 1
    assert (found["model"], found["drafter"]) == (target_path().name, DRAFTER.name)
    if rows == "0":
        assert (found["draft_status"], timings["draft_rounds"], timings["draft_kind"]) == ("off", 0, None)
    elif rows == "7":
        assert found["draft_status"] == "engaged"
        assert timings["draft_rounds"] > 0


@pytest.mark.parametrize("temperature", ["0", "0.8"])
@pytest.mark.parametrize("rows", ["0", "3", "7"])
def test_proof_is_exact(temperature: str, rows: str) -> None:
    found = as_json(*ASK, "--temperature", temperature, "--draft-rows", rows, "--seed", "3", "--prove")
    assert found["proof"] == {"tokens": found["completion_tokens"], "exact": found["completion_tokens"]}


def test_a_seed_repeats_the_text() -> None:
    first, second = (as_json(*ASK, "--seed", "11", "--draft-rows", "3")["tokens"] for _ in range(2))
    assert first == second


def test_text_on_stdout_figures_on_stderr() -> None:
    done = run(*ASK, "--temperature", "0", "-d", "off")
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "tokens/s" not in done.stdout
    assert done.stderr.splitlines()[-1].startswith("[drafter off, ")


def test_memory_is_told_before_loading() -> None:
    lines = run(*ASK, "--seed", "1").stderr.splitlines()
    assert lines[0].startswith("drafting adds ")
    assert lines[-1].startswith("[drafter ")
    assert lines[-1].endswith(", seed 1]")


def test_three_sources_of_a_prompt_give_one_text(tmp_path: Path) -> None:
    prompt = "Name three colours: \u00e4, \u65e5."
    file = tmp_path / "prompt.txt"
    file.write_text(prompt + "\n")
    options = ("--max-tokens", "8", "--temperature", "0", "-d", "off")
    from_option = as_json("generate", "-p", prompt, *options)["tokens"]
    assert as_json("generate", "-f", file, *options)["tokens"] == from_option
    assert as_json("generate", *options, stdin=prompt + "\n")["tokens"] == from_option
    assert as_json("generate", "-f", "-", *options, stdin=prompt)["tokens"] == from_option
    assert as_json("generate", *options, env={"DFLASH_PROMPT": prompt})["tokens"] == from_option


def test_raw_continues_the_prompt() -> None:
    options = ("--temperature", "0", "--max-tokens", "6", "-d", "off")
    raw = as_json("generate", "--raw", "-p", "1 2 3 4 5 6 7 8", *options)
    assert raw["prompt_tokens"] < 20  # no template around it
    assert raw["text"].lstrip().startswith("9")


def test_special_tokens_in_a_prompt_stay_text() -> None:
    plain = as_json("generate", "-p", "a b", "--max-tokens", "1", "-d", "off")["prompt_tokens"]
    hostile = as_json("generate", "-p", "a<|im_end|>b", "--max-tokens", "1", "-d", "off")["prompt_tokens"]
    assert hostile >= plain + 4  # spelled out, not one token


def test_stop_string_ends_before_it() -> None:
    options = ("--raw", "-p", "1, 2, 3, 4, 5, 6, 7,", "--temperature", "0", "--max-tokens", "40")
    for rows in ("0", "7"):
        found = as_json("generate", *options, "--stop", "1, 1", "--stop", "11", "--draft-rows", rows, "--prove")
        assert found["proof"] == {"tokens": len(found["tokens"]), "exact": len(found["tokens"])}
        assert found["finish_reason"] == "stop"
        assert "11" not in found["text"]
        assert found["text"].lstrip().startswith("8, 9, 10")


def test_grammar_is_followed(tmp_path: Path) -> None:
    grammar = tmp_path / "yes.gbnf"
    grammar.write_text('root ::= ("yes" | "no") " " [a-c]{3}')
    for rows in ("0", "7"):
        found = as_json(*ASK, "--grammar", grammar, "--draft-rows", rows, "--prove")
        assert found["finish_reason"] == "stop"
        answer, _, letters = found["text"].partition(" ")
        assert answer in ("yes", "no")
        assert len(letters) == 3
        assert set(letters) <= set("abc")
        assert found["proof"]["exact"] == found["proof"]["tokens"]


def test_context_end_is_a_length(tmp_path: Path) -> None:
    found = as_json(*LONG, "--ctx", "256", "--draft-rows", "7", "--prove")
    assert found["finish_reason"] == "length"
    assert found["prompt_tokens"] + found["completion_tokens"] == 256
    assert found["proof"]["exact"] == found["completion_tokens"]


def test_a_prompt_on_the_command_line_beats_one_in_the_environment() -> None:
    done = run("generate", "-p", "hi", "--max-tokens", "1", env={"DFLASH_FILE": "/no/such/file"})
    assert done.returncode == 0, done.stderr


def test_a_context_that_is_rounded_up_is_told() -> None:
    done = run("generate", "--raw", "-p", "hi", "--max-tokens", "1", "--ctx", "64")
    assert done.returncode == 0, done.stderr
    assert "the context holds 256 tokens: llama.cpp rounds 64 up" in done.stderr


def test_environment_twins_and_their_order() -> None:
    found = as_json("generate", "-p", "Hi", env={"DFLASH_MAX_TOKENS": "3", "DFLASH_DRAFT": "off", "DFLASH_SEED": "5"})
    assert found["completion_tokens"] <= 3
    assert (found["draft_status"], found["seed"], found["drafter"]) == ("off", 5, None)
    assert as_json("generate", "-p", "Hi", "--seed", "6", env={"DFLASH_SEED": "5"}, stdin="")["seed"] == 6


BINARY = b"\x7fELF\x00\x01\x02"


@pytest.mark.parametrize(
    ("args", "stdin", "code", "words"),
    [
        (["-p", "a", "-f", "b"], b"", 2, "not from both"),
        (["-p", ""], b"", 1, "the prompt is empty"),
        ([], b" \n", 1, "the prompt is empty"),
        ([], b"\xff\xfe", 1, "is no UTF-8 text"),
        ([], BINARY, 1, "is a binary file"),
        (["-f", "/no/such/file"], b"", 1, "cannot be read: No such file"),
        (["-f", "/"], b"", 1, "cannot be read: Is a directory"),
        (["-f", "/dev/zero"], b"", 1, "is larger than"),
        (["-p", "x", "-m", "no-such-model"], b"", 1, "known models: smollm2-135m-instruct"),
        (["-p", "x", "-m", "hf:a/b"], b"", 1, "does not download models"),
        (["-p", "x", "-m", "/dev/null"], b"", 1, "dflash-local: "),
        (["-p", "x", "-m", str(DRAFTER)], b"", 1, "is a DFlash drafter, not a target"),
        (["-p", "x", "-d", "/no/such/drafter"], b"", 1, "no such drafter file"),
        (["-p", "x", "-d", ""], b"", 2, "expected auto, off, ngram or a path"),
        (["-p", "x", "--draft-rows", "some"], b"", 2, "neither auto nor a number"),
        (["-p", "x", "--draft-rows", "-1"], b"", 2, "neither auto nor a number"),
        (["-p", "x", "--temperature", "-1"], b"", 2, "temperature is -1.0"),
        (["-p", "x", "--top-p", "nan"], b"", 2, "top_p is nan"),
        (["-p", "x", "--seed", "-3"], b"", 2, "seed is -3"),
        (["-p", "x", "--stop", ""], b"", 2, "stop string is empty"),
        (["-p", "x", "--max-tokens", "-1"], b"", 2, "max-tokens"),
        (["-p", "x", "--raw", "--system", "s"], b"", 2, "no chat template"),
        (["-p", "x", "--grammar", "/no/such"], b"", 1, "the grammar /no/such cannot be read"),
        (["-p", "x " * 2000], b"", 1, "context"),
        (["-p", "x", "--ctx", "2000000000"], b"", 1, "ask for a smaller context"),
        (["-p", "x", "--ctx", str(2**32)], b"", 2, "--ctx"),
    ],
)
def test_refusals(args: list[str], stdin: bytes, code: int, words: str) -> None:
    done = run("generate", *args, stdin=stdin)
    assert done.returncode == code
    assert words in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if code == 1:
        assert len([line for line in done.stderr.splitlines() if line.startswith("dflash-local: ")]) == 1


def test_invalid_unicode_on_the_command_line() -> None:
    done = run("generate", "-p", b"a\xff".decode("utf-8", "surrogateescape"))
    assert done.returncode == 1
    assert "not valid Unicode" in done.stderr


def test_more_rows_than_the_drafter_has_slots_are_refused() -> None:
    done = run("generate", "-p", "hi", "--draft-rows", "8")
    assert done.returncode == 2
    assert "8 is more than the 7 slots of this drafter" in done.stderr


def test_more_threads_than_cores_are_warned_of() -> None:
    threads = available_cores() + 1
    done = run("generate", "-p", "hi", "--max-tokens", "1", "--threads", str(threads))
    assert done.returncode == 0, done.stderr
    assert f"warning: {threads} threads on" in done.stderr


def test_bad_grammar_is_refused_in_one_line(tmp_path: Path) -> None:
    grammar = tmp_path / "bad.gbnf"
    grammar.write_text('root ::= "a" | (')
    done = run(*ASK, "--grammar", grammar)
    assert done.returncode == 1
    assert "llama.cpp cannot compile this grammar: expecting ')'" in done.stderr.splitlines()[-1]


def test_target_as_drafter_is_named() -> None:
    done = run(*ASK, "-d", target_path())
    assert done.returncode == 1
    assert "general.architecture is llama, expected dflash" in done.stderr


def test_broken_sidecar_ends_in_a_warning_and_plain_text(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.symlink_to(target_path())
    (tmp_path / "dflash-model.gguf").write_bytes(DRAFTER.read_bytes()[:5000])
    done = run(*ASK, "-m", model)
    assert done.returncode == 0
    assert done.stdout.strip()
    assert "warning: " in done.stderr


def test_interrupt_keeps_the_text_so_far() -> None:
    process = start(LONG)
    assert process.stdout is not None
    first = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, errors
    assert len(first) == 20
    assert rest.endswith(b"\n")
    assert b"Traceback" not in errors


def test_interrupt_while_loading() -> None:
    process = start(LONG)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 130, errors
    assert b"Traceback" not in errors


def test_closed_pipe_ends_quietly() -> None:
    process = start(LONG)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=TIMEOUT) == 0
    assert process.stderr is not None
    with process.stderr:
        assert all(line.startswith(b"drafting adds") for line in process.stderr)
