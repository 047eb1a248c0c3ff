"""`dflash-local chat` on the real model: from a pipe, and at a terminal."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from command import COMMAND, TIMEOUT, environment, run

OPTIONS = ("--temperature", "0", "--max-tokens", "16")
FIGURES = r"\[drafter [^\]]*tokens/s[^\]]*\]"
PROMPT = r"\x1b\[\?2004h.*?>"  # bracketed paste on, then the prompt
SENT = r"\x1b\[\?2004l"  # the line editor has let the terminal go


def test_each_line_of_a_pipe_is_answered() -> None:
    done = run("chat", *OPTIONS, stdin="Hello\n\nName a colour.\\\nAnd an animal.\n")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(FIGURES, done.stdout)) == 2


def test_commands_from_a_pipe(tmp_path: Path) -> None:
    file = tmp_path / "chat.zip"
    lines = ["/help", "/system be brief", "Hi", "/stats", "/draft off", f"/save {file}", "/reset", f"/load {file}"]
    done = run("chat", *OPTIONS, stdin="\n".join([*lines, "More", "/exit", "never"]))
    assert done.returncode == 0, done.stderr
    for words in ("/system TEXT", "system prompt set", "1 answers", "drafting is off", "2 messages saved"):
        assert words in done.stdout
    assert "2 messages loaded\n" in done.stdout
    assert len(re.findall(FIGURES, done.stdout)) >= 2
    assert "drafter off" in done.stdout
    assert zipfile.is_zipfile(file)


def test_what_goes_wrong_is_said_and_the_chat_goes_on(tmp_path: Path) -> None:
    bad = tmp_path / "bad.zip"
    bad.write_bytes(b"nonsense")
    lines = ["/nope", "/save", "/draft maybe", "/exit now", f"/load {bad}", "/load /no/such", "word " * 1500, "Hi"]
    done = run("chat", *OPTIONS, stdin="\n".join(lines))
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 7
    assert "Traceback" not in done.stderr
    assert len(re.findall(FIGURES, done.stdout)) == 1


def test_input_that_is_no_text() -> None:
    done = run("chat", *OPTIONS, stdin=b"\xff\xfe\n")
    assert done.returncode == 1
    assert "not UTF-8" in done.stderr


def test_second_question_decodes_only_what_is_new() -> None:
    done = run("chat", *OPTIONS, "--verbose", stdin="Hello there, my friend\n/stats\nAnd now?\n/stats\n")
    assert done.returncode == 0
    first, second = (int(n) for n in re.findall(r"context: (\d+) of", done.stdout))
    assert second > first


Spawn = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    children: list[pexpect.spawn[str]] = []

    def start(*args: str) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "chat", *args],
            env=environment(tmp_path, TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1"),  # type: ignore[arg-type]
            encoding="utf-8",
            timeout=TIMEOUT,
            dimensions=(40, 200),
        )
        children.append(child)
        child.expect("/help lists the commands")
        child.expect(PROMPT)
        return child

    yield start
    for child in children:
        child.close(force=True)


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pexpect needs a Unix terminal")


def exit_code(child: pexpect.spawn[str]) -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus


def test_terminal_answers_and_leaves(spawn: Spawn) -> None:
    child = spawn(*OPTIONS)
    child.send("Hello\r")
    child.expect(FIGURES)
    child.expect(PROMPT)
    child.send("/st\t")
    child.expect("ats")
    child.send("\r")
    child.expect("1 answers, ")
    child.expect(PROMPT)
    child.send("/exit\r")
    assert exit_code(child) == 0


def test_end_of_input_leaves(spawn: Spawn) -> None:
    child = spawn(*OPTIONS)
    child.send("\x04")
    assert exit_code(child) == 0


def test_interrupt_stops_the_answer_and_twice_leaves(spawn: Spawn) -> None:
    child = spawn("--temperature", "0", "--max-tokens", "0")
    child.send("Write a very long story about a ship.\r")
    child.expect(SENT)
    child.expect(r"\w+ \w+ \w+ \w+")
    child.send("\x03")
    child.expect(FIGURES)
    child.expect("Ctrl-C again leaves")
    child.expect(PROMPT)
    child.send("/stats\r")
    child.expect("1 answers, ")
    child.expect(PROMPT)
    child.send("\x03")
    child.expect("Ctrl-C again leaves")
    child.expect(PROMPT)
    child.send("\x03")
    assert exit_code(child) == 130


@pytest.mark.parametrize("keys", ["one\\\rtwo\r", "one\x1b\rtwo\r", "\x1b[200~one\ntwo\x1b[201~\r"])
def test_lines_of_one_message(spawn: Spawn, tmp_path: Path, keys: str) -> None:
    child = spawn(*OPTIONS)
    child.send(keys)
    child.expect(FIGURES)
    child.expect(PROMPT)
    child.send(f"/save {tmp_path}/c.zip\r")
    child.expect("2 messages saved")
    child.expect(PROMPT)
    child.send("\x04")
    assert exit_code(child) == 0
    with zipfile.ZipFile(tmp_path / "c.zip") as archive:
        assert '"one\\ntwo"' in archive.read("chat.json").decode()


def test_two_chats_do_not_disturb_each_other(spawn: Spawn, tmp_path: Path) -> None:
    first, second = spawn(*OPTIONS), spawn(*OPTIONS)
    first.send("Hello from one\r")
    second.send("Hello from two\r")
    for child in (first, second):
        child.expect(FIGURES)
        child.expect(PROMPT)
        child.send("\x04")
        assert exit_code(child) == 0
    history = (tmp_path / "dflash-local" / "history").read_text()
    assert "+Hello from one" in history
    assert "+Hello from two" in history
