"""The loop between the user's lines and the conversation, on a terminal or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from dflash_local._errors import Error
from dflash_local.chat.commands import Leave, run_command
from dflash_local.chat.screen import Screen, show_answer
from dflash_local.chat.session import ChatSession

INTERRUPTED = 130
ReadMessage = Callable[[], str]
"""Gives the user's next message; raises EOFError at the end, KeyboardInterrupt on Ctrl-C."""


def _handle(session: ChatSession, message: str, screen: Screen) -> None:
    try:
        if message.startswith("/"):
            run_command(session, message, screen)
        elif message.strip():
            show_answer(session, message, screen)
    except (Error, ValueError) as error:
        screen.fail(str(error))


def chat_interactive(session: ChatSession, read: ReadMessage, screen: Screen) -> int:
    """Runs a chat at a terminal; returns the exit code. Ctrl-C stops an answer, twice in a row it leaves."""
    interrupted = False
    while True:
        try:
            message = read()
            interrupted = False
            _handle(session, message, screen)
        except (EOFError, Leave):
            return 0
        except KeyboardInterrupt:
            if interrupted:
                return INTERRUPTED
            interrupted = True
            screen.note("(Ctrl-C again leaves)")


def piped_messages(lines: TextIO) -> Iterator[str]:
    """Messages from a pipe: one a line, a backslash at the end of a line goes on in the next."""
    parts: list[str] = []
    for line in iter(lines.readline, ""):
        text = line.rstrip("\r\n")
        if text.endswith("\\"):
            parts.append(text[:-1])
            continue
        yield "\n".join([*parts, text])
        parts = []
    if parts:
        yield "\n".join(parts)


def chat_piped(session: ChatSession, lines: TextIO, screen: Screen) -> int:
    """Answers each message of a pipe; an interrupt passes through.

    Returns 0, or 1 where a message or a command failed, one that does not exist too: a script must be able to tell that
    something it asked for was not done."""
    messages = piped_messages(lines)
    while True:
        try:
            message = next(messages, None)
        except UnicodeDecodeError as error:
            screen.fail(f"the input is not UTF-8 text: {error.reason} at byte {error.start}")
            return 1
        if message is None:
            return 1 if screen.failures else 0
        try:
            _handle(session, message, screen)
        except Leave:
            return 1 if screen.failures else 0


def chat(session: ChatSession, screen: Screen | None = None) -> int:
    """Runs a chat on this process's terminal or pipe; returns the exit code."""
    screen = screen or Screen()
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return chat_piped(session, sys.stdin, screen)
    from dflash_local.chat.terminal import make_reader

    return chat_interactive(session, make_reader(screen), screen)
