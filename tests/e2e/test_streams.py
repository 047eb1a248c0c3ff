"""Commands whose standard streams are closed, full or left by their reader."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from command import COMMAND, DRAFTER, TIMEOUT, environment

GENERATE = "generate -p Hello --max-tokens 6 --temperature 0"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Runs `dflash-local LINE` in a shell that applies the redirections in it."""
    command = f"{shlex.join(COMMAND)} {line}"
    return subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=environment(),
    )


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_unusable_stderr_does_not_cost_the_answer(redirection: str) -> None:
    done = shell(f"{GENERATE} {redirection}")
    assert done.returncode == 0
    assert done.stdout.strip()


@pytest.mark.parametrize("line", [f"{GENERATE} >&-", "chat --max-tokens 4 <&-", f"{GENERATE} <&-"])
def test_a_closed_stream_is_no_traceback(line: str) -> None:
    done = shell(line)
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 1)


@pytest.mark.parametrize("line", [GENERATE, "--help", "inspect " + shlex.quote(str(DRAFTER))])
def test_a_full_stdout_is_one_line(line: str) -> None:
    done = shell(f"{line} >/dev/full")
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_is_no_failure() -> None:
    done = shell(f"inspect {shlex.quote(str(DRAFTER))} | head -c 5; exit ${{PIPESTATUS[0]}}")
    assert done.returncode == 0
    assert done.stderr == ""


def test_an_empty_model_name_says_so() -> None:
    done = shell("generate -m '' -p x")
    assert done.returncode == 1
    assert "no model is named" in done.stderr
