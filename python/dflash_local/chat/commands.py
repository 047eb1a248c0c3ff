"""The slash commands of the chat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from dflash_local.chat.screen import Screen
from dflash_local.chat.session import ChatSession
from dflash_local.chat.store import load_chat, save_chat
from dflash_local.generation import AUTO_ROWS, status_line


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    argument: str  # as shown in /help, "" for none
    help: str
    run: Callable[[ChatSession, str, Screen], None]


class UsageError(ValueError):
    """A command used wrongly; the chat says so and goes on."""


class Leave(Exception):
    """The user wants to leave the chat."""


def _help(_session: ChatSession, _argument: str, screen: Screen) -> None:
    for command in COMMANDS.values():
        screen.note(f"{f'{command.name} {command.argument}':<18}{command.help}")
    screen.note("Alt-Enter, or a backslash at the end of a line, begins a new line; a space before / sends it as text.")
    screen.note("Ctrl-C stops an answer, twice leaves.")


def _reset(session: ChatSession, _argument: str, screen: Screen) -> None:
    session.reset()
    screen.note("the conversation is forgotten, the system prompt stays")


def _system(session: ChatSession, argument: str, screen: Screen) -> None:
    if argument:
        session.system = None if argument == '""' else argument
        screen.note("system prompt set" if session.system else "system prompt removed")
    else:
        screen.note(f"system prompt: {session.system}" if session.system else "no system prompt of yours")


def _stats(session: ChatSession, _argument: str, screen: Screen) -> None:
    totals, runtime = session.totals, session.runtime
    drafter = runtime.drafter_name
    why = "" if drafter is not None else f" ({runtime.draft_status})"
    screen.note(f"model {runtime.name}, drafter {drafter or 'none'}{why}")
    screen.note(f"context: {runtime.engine.n_tokens} of {runtime.n_ctx} tokens, {len(session.messages)} messages")
    per_second = totals.predicted_n / totals.predicted_ms * 1e3 if totals.predicted_ms > 0 else 0.0
    screen.note(f"{totals.answers} answers, {totals.predicted_n} tokens, {per_second:.1f} tokens/s")
    rounds = totals.draft_rounds
    mean = f", {(rounds + totals.draft_n_accepted) / rounds:.2f} tokens per round" if rounds else ""
    screen.note(
        f"{rounds} draft rounds, {totals.plain_rounds} plain rounds; "
        f"{totals.draft_n} rows drafted, {totals.draft_n_accepted} accepted{mean}"
    )
    if session.last is not None:
        screen.note(f"last answer: {status_line(session.last)}")


def _path(argument: str) -> Path:
    if not argument:
        raise UsageError("name a file")
    try:
        return Path(argument).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{argument}: there is no such home directory") from error


def _save(session: ChatSession, argument: str, screen: Screen) -> None:
    path = _path(argument)
    save_chat(session, path)
    screen.note(f"{len(session.messages)} messages saved to {path}")


def _load(session: ChatSession, argument: str, screen: Screen) -> None:
    screen.note(load_chat(session, _path(argument)))


def _draft(session: ChatSession, argument: str, screen: Screen) -> None:
    if argument == "off":
        session.draft_rows = 0
    elif argument == "auto":
        session.draft_rows = AUTO_ROWS
    elif argument:
        raise UsageError(f"{argument!r} is neither auto nor off")
    drafter = session.runtime.drafter_name
    if drafter is None:
        screen.note(f"no drafter: {session.runtime.draft_status}")
    elif session.draft_rows == 0:
        screen.note(f"drafting is off (drafter {drafter})")
    else:
        rows = "auto" if session.draft_rows == AUTO_ROWS else f"{session.draft_rows} rows each round"
        screen.note(f"drafting is on, {rows} (drafter {drafter})")


def _exit(_session: ChatSession, _argument: str, _screen: Screen) -> None:
    raise Leave


_ALL = (
    Command("/help", "", "this list", _help),
    Command("/reset", "", "forget the conversation", _reset),
    Command("/system", "TEXT", 'set the system prompt ("" removes it), or show it', _system),
    Command("/stats", "", "figures of this chat", _stats),
    Command("/save", "FILE", "save the conversation and its state", _save),
    Command("/load", "FILE", "go on with a saved conversation", _load),
    Command("/draft", "auto|off", "switch drafting", _draft),
    Command("/exit", "", "leave (Ctrl-D too)", _exit),
)
COMMANDS = {command.name: command for command in _ALL}


def run_command(session: ChatSession, line: str, screen: Screen) -> None:
    """Runs a line that begins with a slash. Raises UsageError, Leave, and what the command raises."""
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = get_close_matches(name, COMMANDS, n=1)
        meant = f", did you mean {near[0]}?" if near else ";"
        raise UsageError(f"no command {name}{meant} /help lists them, a space before / sends the line as text")
    if argument.strip() and not command.argument:
        raise UsageError(f"{name} takes nothing after it")
    command.run(session, argument.strip(), screen)
