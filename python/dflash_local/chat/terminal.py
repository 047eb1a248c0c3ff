"""The line editor of the chat: history, completion, multi-line input."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from dflash_local.chat.commands import COMMANDS
from dflash_local.chat.repl import ReadMessage
from dflash_local.chat.screen import Screen


class CommandCompleter(Completer):
    """Completes slash commands and their arguments; leaves messages alone."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, argument = text.partition(" ")
        if not space:
            yield from (
                Completion(command.name, -len(text), display_meta=command.help)
                for command in COMMANDS.values()
                if command.name.startswith(text)
            )
        elif name == "/draft":
            yield from (Completion(word, -len(argument)) for word in ("auto", "off") if word.startswith(argument))
        elif name in ("/save", "/load"):
            yield from self._paths.get_completions(Document(argument, len(argument)), complete_event)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.current_line.endswith("\\") and buffer.document.is_cursor_at_the_end_of_line:
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _history(screen: Screen) -> History:
    path = Path(platformdirs.user_data_dir("dflash-local", appauthor=False)) / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        with path.open("ab"):
            pass
    except OSError as error:
        screen.note(f"no history is kept: {path}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(path))


def make_reader(screen: Screen) -> ReadMessage:
    """A reader of messages from the terminal."""
    session: PromptSession[str] = PromptSession(
        history=_history(screen),
        completer=CommandCompleter(),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_key_bindings(),
        prompt_continuation="  ",
    )
    return lambda: session.prompt("> ")
