"""What the chat prints: answers as they come, made safe, and lines about them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import TextIO

from dflash_local.chat.sanitize import Sanitizer, clean_line
from dflash_local.chat.session import ChatSession
from dflash_local.generation import Chunk, status_line

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """Answers and notes on `out`, failures on `err`; notes are dimmed on a terminal unless NO_COLOR is set."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._colour = self._out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.failures = 0

    def write(self, text: str) -> None:
        """Answer text, as it is."""
        if text:
            self._out.write(text)
            self._out.flush()

    def note(self, text: str) -> None:
        """One line about the chat."""
        line = clean_line(text)
        self.write(f"{_DIM}{line}{_PLAIN}\n" if self._colour else f"{line}\n")

    def fail(self, text: str) -> None:
        """One line about something that went wrong; the chat goes on."""
        self.failures += 1
        self._out.flush()
        self._err.write(f"error: {clean_line(text)}\n")
        self._err.flush()


def show_answer(session: ChatSession, text: str, screen: Screen) -> None:
    """Asks and prints the answer, what there is to say about it, and the line of figures.

    Raises what `ask` raises; after an interrupt the figures of what was said are printed first."""
    before = session.last
    try:
        _stream(session.ask(text), screen)
    finally:
        for notice in session.notices:
            screen.note(f"[{notice}]")
        session.notices.clear()
        if session.last is not None and session.last is not before and session.last.tokens:
            screen.note(f"[{status_line(session.last)}]")


def _stream(chunks: Iterator[Chunk], screen: Screen) -> None:
    sanitizer = Sanitizer()
    shown = False
    with closing(chunks):  # type: ignore[type-var]
        try:
            for chunk in chunks:
                shown = shown or bool(chunk.text)
                screen.write(sanitizer.feed(chunk.text))
        finally:
            screen.write(sanitizer.finish() + ("\n" if shown else ""))
