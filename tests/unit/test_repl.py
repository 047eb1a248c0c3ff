"""The chat's loop and commands on the scripted engine."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fake_engine import FakeEngine, FakeRuntime, text_tokens

from dflash_local import DecodeError, SamplingParams
from dflash_local.chat.commands import COMMANDS
from dflash_local.chat.repl import chat_interactive, chat_piped, piped_messages
from dflash_local.chat.screen import Screen
from dflash_local.chat.session import ChatSession

GREEDY = SamplingParams(temperature=0.0)


class Chat:
    """A session with its screen in memory."""

    def __init__(self, answers: Sequence[str] = ("hello",) * 9, **fields: object) -> None:
        self.engine = FakeEngine([text_tokens(answer) for answer in answers], (3,))
        self.session = ChatSession(FakeRuntime(self.engine, **fields), GREEDY)  # type: ignore[arg-type]
        self.out, self.err = io.StringIO(), io.StringIO()
        self.screen = Screen(self.out, self.err)

    def pipe(self, text: str) -> int:
        return chat_piped(self.session, io.StringIO(text), self.screen)

    def type(self, *keys: str | type[BaseException]) -> int:
        """Runs the terminal loop on these messages; an exception stands for the key that raises it."""
        left = list(keys)

        def read() -> str:
            key = left.pop(0) if left else EOFError
            if isinstance(key, str):
                return key
            raise key

        return chat_interactive(self.session, read, self.screen)


def at_round(number: int, fault: type[BaseException]) -> Callable[[int], None]:
    def on_round(now: int) -> None:
        if now == number:
            raise fault("broken")

    return on_round


def test_piped_lines_are_messages() -> None:
    lines = io.StringIO("one\n\ntwo\\\nthree\r\nlast\\\n")
    assert list(piped_messages(lines)) == ["one", "", "two\nthree", "last"]


def test_answers_end_with_their_figures() -> None:
    chat = Chat(["hello"])
    assert chat.pipe("hi\n") == 0
    answer, figures = chat.out.getvalue().splitlines()
    assert answer == "hello"
    assert figures.startswith("[drafter engaged, ")
    assert re.search(r"tokens per round, [\d.]+ tokens/s, gain [\d.]+x \(estimate\)\]$", figures)


def test_answer_cannot_drive_the_terminal() -> None:
    chat = Chat(["\x1b[2J\x1b]0;x\x07 ok \u202e"])
    chat.pipe("hi\n")
    assert chat.out.getvalue().splitlines()[0] == "\u241b[2J\u241b]0;x\u2407 ok <U+202E>"


def test_declined_drafter_is_told_with_its_reason() -> None:
    chat = Chat(["hello"], drafter_name=None, draft_status="declined: no drafter known")
    chat.pipe("hi\n")
    assert chat.out.getvalue().splitlines()[-1].startswith("[drafter declined: no drafter known, ")


def test_failure_is_one_line_and_the_chat_goes_on() -> None:
    chat = Chat(["a", "b"])
    chat.engine.on_round = at_round(1, DecodeError)
    assert chat.pipe("one\n/nope\n/help me\n/save\n/draft maybe\n") == 1
    assert chat.err.getvalue().splitlines() == [
        "error: broken",
        "error: no command /nope; /help lists them, a space before / sends the line as text",
        "error: /help takes nothing after it",
        "error: name a file",
        "error: 'maybe' is neither auto nor off",
    ]


def test_a_mistyped_command_in_a_pipe_is_said_and_told_by_the_exit_code() -> None:
    chat = Chat(["a", "b"])
    assert chat.pipe("one\n/sav file\ntwo\n") == 1
    assert chat.err.getvalue() == (
        "error: no command /sav, did you mean /save? /help lists them, a space before / sends the line as text\n"
    )
    assert chat.session.totals.answers == 2
    assert chat.type("/sav file", "/exit") == 0


def test_slash_after_a_space_is_text() -> None:
    chat = Chat(["a"])
    assert chat.pipe(" /help\n") == 0
    assert chat.session.messages[0]["content"] == " /help"


def test_exit_leaves_a_pipe_early() -> None:
    chat = Chat(["a"])
    assert chat.pipe("/exit\nnever\n") == 0
    assert chat.session.messages == []


def test_interrupt_in_a_pipe_ends_it() -> None:
    chat = Chat(["hello"])
    chat.engine.on_round = at_round(1, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        chat.pipe("hi\n")
    assert chat.out.getvalue().startswith("h\n[drafter ")


def test_interrupt_stops_the_answer_and_another_leaves() -> None:
    chat = Chat(["hello", "again"])
    chat.engine.on_round = at_round(1, KeyboardInterrupt)
    assert chat.type("hi", KeyboardInterrupt) == 130
    assert chat.session.messages[-1] == {"role": "assistant", "content": "h"}
    assert "(Ctrl-C again leaves)" in chat.out.getvalue()


def test_input_between_two_interrupts_stays() -> None:
    chat = Chat()
    assert chat.type(KeyboardInterrupt, "hi", KeyboardInterrupt, "/stats", KeyboardInterrupt, KeyboardInterrupt) == 130
    assert chat.session.totals.answers == 1


@pytest.mark.parametrize("leave", ["/exit", EOFError])
def test_leaving_at_the_terminal(leave: str | type[BaseException]) -> None:
    assert Chat().type("hi", leave, "never") == 0


def test_help_names_every_command() -> None:
    chat = Chat()
    chat.pipe("/help\n")
    assert all(name in chat.out.getvalue() for name in COMMANDS)


def test_system_and_draft_and_stats() -> None:
    chat = Chat(["a", "bcdefgh"])
    lines = ["/system", "/system be brief", "/system", '/system ""', "/draft", "/draft off", "hi", "/draft auto", "ho"]
    assert chat.pipe("\n".join([*lines, "/stats", "/reset", "/stats"])) == 0
    out = chat.out.getvalue()
    for words in (
        "no system prompt of yours",
        "system prompt: be brief",
        "system prompt removed",
        "drafting is on, auto (drafter fake-dflash)",
        "drafting is off (drafter fake-dflash)",
        "drafter fake-dflash\n",
        "2 answers, 10 tokens",
        "rows drafted",
        "the conversation is forgotten",
    ):
        assert words in out
    assert chat.session.draft_rows == -1


def test_draft_without_a_drafter() -> None:
    chat = Chat(drafter_name=None, draft_status="off")
    chat.pipe("/draft auto\n")
    assert chat.out.getvalue() == "no drafter: off\n"


def test_save_and_load(tmp_path: Path) -> None:
    chat = Chat(["a", "b"])
    path = tmp_path / "with space.zip"
    assert chat.pipe(f"hi\n/save {path}\n/reset\n/load {path}\nho\n") == 0
    assert [m["content"] for m in chat.session.messages] == ["hi", "a", "ho", "b"]


def test_home_that_is_not_there() -> None:
    chat = Chat()
    assert chat.pipe("/save ~no-such-user/x.zip\n") == 1
    assert "~no-such-user/x.zip: there is no such home directory" in chat.err.getvalue()
