"""Runs hostile GGUF files through a child process and checks that each ends in one of our errors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf_factory import Gguf, tiny_drafter, tiny_target

CHILD = Path(__file__).with_name("gguf_child.py")
MAX_SECONDS = 2.0  # for one file: reading a header takes milliseconds


@dataclass(frozen=True)
class Bad:
    """A file's bytes, and what its refusal must contain."""

    data: Gguf | bytes
    words: str
    field: str | None = None
    error: str = "ModelLoadError"


def run_child(attempts: list[dict[str, Any]], as_nobody: bool = False) -> list[dict[str, Any]]:
    """One report per attempt. Fails where the child crashed, hung or printed a traceback."""
    job = json.dumps({"attempts": attempts, "as_nobody": as_nobody})
    done = subprocess.run([sys.executable, CHILD], input=job, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-2000:]}"
    assert not done.stderr, done.stderr[-2000:]
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    for report in reports:
        assert report["seconds"] < MAX_SECONDS, report
        assert "\n" not in report["message"], report
        assert report["message"].isprintable(), report
    return reports


def write(folder: Path, name: str, data: Gguf | bytes) -> str:
    path = folder / name
    path.write_bytes(data.build() if isinstance(data, Gguf) else data)
    return str(path)


def attempts_on_both_sides(folder: Path, bad: str) -> list[dict[str, Any]]:
    """The bad file as target alone, as target of a good drafter, and as drafter of a good target."""
    good_target = write(folder, "good-target.gguf", tiny_target())
    good_drafter = write(folder, "good-drafter.gguf", tiny_drafter())
    return [
        {"target": bad, "drafter": None},
        {"target": bad, "drafter": good_drafter},
        {"target": good_target, "drafter": bad},
    ]


def check_both_sides(folder: Path, bads: dict[str, Bad]) -> None:
    """Every file is refused whatever part it is given, with its words and field."""
    attempts: list[dict[str, Any]] = []
    for name, bad in bads.items():
        attempts += attempts_on_both_sides(folder, write(folder, f"{name}.gguf", bad.data))
    reports = run_child(attempts)
    for index, report in enumerate(reports):
        name, bad = list(bads.items())[index // 3]
        assert report["error"] == bad.error, (name, report)
        assert bad.words in report["message"], (name, report)
        if bad.field is not None:
            assert report["field"] == bad.field, (name, report)


def check_drafters(folder: Path, bads: dict[str, Bad]) -> None:
    """Every drafter is refused beside a good target, with its words and field."""
    target = write(folder, "target.gguf", tiny_target())
    paths = [write(folder, f"{name}.gguf", bad.data) for name, bad in bads.items()]
    reports = run_child([{"target": target, "drafter": path} for path in paths])
    for (name, bad), report in zip(bads.items(), reports, strict=True):
        assert report["error"] == "IncompatibleDrafter", (name, report)
        assert bad.words in report["message"], (name, report)
        assert report["field"] == bad.field, (name, report)
