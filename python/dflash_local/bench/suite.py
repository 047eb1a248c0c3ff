"""Prompt suites: JSONL files, checked line by line, and which of their prompts to take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_local._errors import Error

if TYPE_CHECKING:
    from dflash_local.chat.template import Message

BUILTIN = Path(__file__).parent / "suite.jsonl"
MAX_BYTES = 64 * 2**20
MAX_TOKENS = 65536
MAX_REPEAT = 10_000
ROLES = ("system", "user", "assistant")
SOURCES = ("prompt", "messages", "parts")
FIELDS = frozenset({"id", "category", "max_tokens", *SOURCES, "grammar", "json_schema"})


class SuiteError(Error):
    """A suite that is missing, malformed or holds none of the wanted prompts."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to be answered. At most one of `grammar` (GBNF) and `json_schema` is set."""

    id: str
    category: str
    max_tokens: int
    messages: tuple[Message, ...]
    grammar: str | None = None
    json_schema: Mapping[str, Any] | None = None


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


class _Line:
    """One line of a suite; every refusal names file, line and field."""

    def __init__(self, source: str, number: int) -> None:
        self._where = f"suite {source}, line {number}"

    def error(self, field: str, why: str) -> SuiteError:
        return SuiteError(f"{self._where}: {field}: {why}", field)

    def object(self, text: str) -> dict[str, Any]:
        def refuse(name: str) -> float:
            raise ValueError(f"{name} is no JSON number")

        try:
            found = json.loads(text, parse_constant=refuse)
        except (ValueError, RecursionError) as error:
            raise SuiteError(f"{self._where} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise SuiteError(f"{self._where} is {_shown(found)}, expected an object")
        return found

    def text(self, fields: Mapping[str, Any], name: str) -> str:
        value = fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, "missing" if name not in fields else f"is {_shown(value)}, expected a text")
        return value

    def number(self, fields: Mapping[str, Any], name: str, top: int, default: int | None = None) -> int:
        value = fields.get(name, default)
        if type(value) is not int or not 1 <= value <= top:
            why = "missing" if name not in fields else f"is {_shown(value)}"
            raise self.error(name, f"{why}, expected a whole number from 1 to {top}")
        return value

    def prompt(self, line: str) -> Prompt:
        fields = self.object(line)
        for name in fields:
            if name not in FIELDS:
                raise self.error(name, f"unknown, expected one of {', '.join(sorted(FIELDS))}")
        given = [name for name in SOURCES if name in fields]
        if len(given) != 1:
            raise self.error("prompt", f"expected one of {', '.join(SOURCES)}, found {' and '.join(given) or 'none'}")
        if "grammar" in fields and "json_schema" in fields:
            raise self.error("grammar", "a prompt has a grammar or a json_schema, not both")
        schema = fields.get("json_schema")
        if "json_schema" in fields and not isinstance(schema, dict):
            raise self.error("json_schema", f"is {_shown(schema)}, expected an object")
        return Prompt(
            id=self.text(fields, "id"),
            category=self.text(fields, "category"),
            max_tokens=self.number(fields, "max_tokens", MAX_TOKENS),
            messages=self.messages(fields, given[0]),
            grammar=self.text(fields, "grammar") if "grammar" in fields else None,
            json_schema=schema,
        )

    def messages(self, fields: Mapping[str, Any], source: str) -> tuple[Message, ...]:
        if source == "prompt":
            return ({"role": "user", "content": self.text(fields, "prompt")},)
        items = fields[source]
        if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
            raise self.error(source, f"is {_shown(items)}, expected a list of objects")
        if source == "parts":
            return ({"role": "user", "content": "".join(map(self.part, items))},)
        found: list[Message] = []
        for item in items:
            role = item.get("role")
            if role not in ROLES:
                raise self.error("messages.role", f"is {_shown(role)}, expected one of {', '.join(ROLES)}")
            content = item.get("content")
            if not isinstance(content, str) or not content:
                raise self.error("messages.content", f"is {_shown(content)}, expected a text")
            found.append({"role": role, "content": content})
        if found[-1]["role"] != "user":
            raise self.error("messages", "the last one is not the user's, so there is nothing to answer")
        return tuple(found)

    def part(self, fields: Mapping[str, Any]) -> str:
        """A piece of a long prompt, perhaps repeated; in each repetition {n} is its number."""
        text, repeat = fields.get("text"), self.number(fields, "repeat", MAX_REPEAT, 1)
        if not isinstance(text, str) or not text:
            raise self.error("parts.text", f"is {_shown(text)}, expected a text")
        if "repeat" not in fields:
            return text
        if len(text) * repeat > MAX_BYTES:
            raise self.error("parts.repeat", f"is {repeat}, which makes the prompt larger than {MAX_BYTES >> 20} MiB")
        return "".join(text.replace("{n}", str(i)) for i in range(1, repeat + 1))


def parse_suite(text: str, source: str) -> list[Prompt]:
    """The prompts of a suite's text; empty lines are passed over. Raises SuiteError."""
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        checked = _Line(source, number)
        prompt = checked.prompt(line)
        if prompt.id in seen:
            raise checked.error("id", f"{_shown(prompt.id)} is that of line {seen[prompt.id]} too")
        seen[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise SuiteError(f"suite {source} holds no prompt")
    return prompts


def read_suite(path: Path) -> list[Prompt]:
    """The prompts of a suite file. Raises SuiteError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise SuiteError(f"suite {path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise SuiteError(f"suite {path} is larger than {MAX_BYTES >> 20} MiB")
    try:
        return parse_suite(data.decode("utf-8-sig"), path.name)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SuiteError(f"suite {path.name}, line {line} is no UTF-8 text: {error.reason}") from error


def choose(prompts: Sequence[Prompt], categories: Sequence[str] = (), limit: int = 0) -> list[Prompt]:
    """Those of the named categories (none named: all), of each the first `limit` (0: all). Raises SuiteError."""
    there = list(dict.fromkeys(prompt.category for prompt in prompts))
    for name in categories:
        if name not in there:
            raise SuiteError(f"no prompt of category {name!r}, this suite has {', '.join(there)}", "category")
    taken: dict[str, int] = {}
    kept: list[Prompt] = []
    for prompt in prompts:
        taken[prompt.category] = taken.get(prompt.category, 0) + 1
        if (not categories or prompt.category in categories) and (not limit or taken[prompt.category] <= limit):
            kept.append(prompt)
    return kept
