"""Copies and forced text on the real model: they engage where text repeats itself, and every token is the target's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run, target_path

from dflash_local.llama import Llama

LINE = "The quick brown fox jumps over the lazy dog near the old river bank. "
REPEATED = LINE * 6 + "The quick brown fox"
SHORT = ("--max-tokens", "48")
PERSON = r"""
root ::= "{\"first_name\": \"" word "\", \"last_name\": \"" word "\", \"favourite_colour\": \"" word "\"}"
word ::= [A-Z] [a-z] [a-z]? [a-z]? [a-z]? [a-z]?
"""


def as_json(*args: str | Path) -> dict[str, Any]:
    done = run("generate", *args, "--json", "--prove")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["proof"]["exact"] == found["proof"]["tokens"] == len(found["tokens"])
    timings = found["timings"]
    assert timings["predicted_n"] == timings["draft_rounds"] + timings["plain_rounds"] + timings["draft_n_accepted"]
    return found


@pytest.mark.parametrize("temperature", ["0", "0.5"])
@pytest.mark.parametrize("draft", ["ngram", "auto"])
def test_repeated_text_is_proved(draft: str, temperature: str) -> None:
    found = as_json("--raw", "-p", REPEATED, "-d", draft, "--temperature", temperature, "--seed", "3", *SHORT)
    timings = found["timings"]
    assert timings["draft_kind"] == ("ngram" if draft == "ngram" else "dflash+ngram")
    assert (found["drafter"] is None) == (draft == "ngram")
    if draft == "ngram":
        assert timings["copy_rounds"] == timings["draft_rounds"]
        assert (found["draft_status"] == "engaged") == (timings["copy_rounds"] > 0)


def test_fixed_rows_without_a_drafter_are_copies() -> None:
    found = as_json("--raw", "-p", REPEATED, "-d", "ngram", "--draft-rows", "4", "--temperature", "0", *SHORT)
    timings = found["timings"]
    assert timings["copy_rounds"] == timings["draft_rounds"] > 0
    assert timings["copy_n_accepted"] == timings["draft_n_accepted"] > 4
    assert timings["draft_n"] <= 4 * timings["draft_rounds"]
    assert found["draft_status"] == "engaged"


@pytest.mark.parametrize("rows", ["auto", "7"])
@pytest.mark.parametrize("draft", ["ngram", "auto"])
def test_forced_text_is_drafted_and_proved(tmp_path: Path, draft: str, rows: str) -> None:
    grammar = tmp_path / "person.gbnf"
    grammar.write_text(PERSON)
    options = ("-d", draft, "--draft-rows", rows, "--grammar", grammar, "--temperature", "0")
    found = as_json("-p", "Name a person as JSON.", *options)
    assert list(json.loads(found["text"])) == ["first_name", "last_name", "favourite_colour"]
    if (draft, rows) == ("ngram", "7"):
        assert found["timings"]["draft_n_accepted"] > 8


def test_llama_copies_without_a_drafter() -> None:
    llm = Llama(str(target_path()), draft="ngram", draft_rows=4, n_threads=1, flash_attn=False, verbose=False)
    try:
        llm(REPEATED, max_tokens=48, temperature=0)
        stats = llm.draft_stats
        assert stats["copy_n_accepted"] == stats["draft_n_accepted"] > 4
        assert (stats["draft_status"], stats["draft_context"]) == ("engaged", 0)
    finally:
        llm.close()


def test_a_drafter_beside_ngram_is_refused() -> None:
    with pytest.raises(ValueError, match="draft='ngram' uses no drafter"):
        Llama(str(target_path()), draft="ngram", draft_model_path="x.gguf", verbose=False)
