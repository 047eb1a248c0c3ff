"""A conversation on the scripted engine: history, reuse of what is decoded, a context that runs full."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from fake_engine import EOG, IM_START, FakeEngine, FakeRuntime, text_tokens

from dflash_local import ContextOverflow, SamplingParams
from dflash_local.chat.session import ChatSession

GREEDY = SamplingParams(temperature=0.0)


def chat(answers: Sequence[str], *, n_ctx: int = 1024, sizes: Sequence[int] = (3,), **options: Any) -> ChatSession:
    engine = FakeEngine([text_tokens(answer) for answer in answers], sizes, n_ctx=n_ctx)
    return ChatSession(FakeRuntime(engine), GREEDY, **options)


def say(session: ChatSession, text: str) -> str:
    return "".join(chunk.text for chunk in session.ask(text))


def test_second_turn_reuses_every_token_of_the_first() -> None:
    session = chat(["first answer", "second"])
    assert say(session, "one") == "first answer"
    length = session.runtime.engine.n_tokens
    assert say(session, "two") == "second"
    assert session.runtime.engine.kept == length  # type: ignore[attr-defined]
    assert [m["content"] for m in session.messages] == ["one", "first answer", "two", "second"]
    assert session.totals.answers == 2
    assert session.totals.predicted_n == len("first answer") + len("second") + 2


def test_known_tokens_are_not_made_anew_from_text() -> None:
    session = chat(["abc", "d"])
    say(session, "x")
    engine: FakeEngine = session.runtime.engine  # type: ignore[assignment]
    # As if the model had spelled the answer in other tokens than the tokenizer would.
    engine._tokens[-4:] = [IM_START, *b"abc", EOG]
    session._remember()
    length = engine.n_tokens
    say(session, "y")
    assert engine.kept == length


def test_cut_character_is_tokenized_anew() -> None:
    session = chat(["\u65e5\u672c", "b"], max_tokens=4)
    say(session, "x")
    assert session.messages[-1]["content"] == "\u65e5\ufffd"
    say(session, "y")
    engine: FakeEngine = session.runtime.engine  # type: ignore[assignment]
    assert "\ufffd".encode() in bytes(token for token in engine.tokens if token < 256)


def test_system_prompt_comes_first_and_can_change() -> None:
    session = chat(["a", "b"], system="be brief")
    say(session, "x")
    session.system = "be long"
    say(session, "y")
    text = bytes(token for token in session.runtime.engine.tokens if token < 256).decode()
    assert text.startswith("system\nbe long\nuser\nx\nassistant\na\n")


def test_full_context_drops_the_oldest_turns_and_says_so() -> None:
    session = chat(["a" * 20] * 12, n_ctx=300)
    for number in range(12):
        say(session, f"question {number} " + "x" * 20)
        assert session.runtime.engine.n_tokens <= 300
    assert len(session.messages) < 24
    assert session.messages[0]["role"] == "user"
    assert session.messages[-2]["content"].startswith("question 11")
    assert any("oldest" in notice and "dropped" in notice for notice in session.notices)


def test_message_that_cannot_fit_is_refused_and_forgotten() -> None:
    session = chat(["a", "b"], n_ctx=200)
    say(session, "x")
    with pytest.raises(ContextOverflow, match=r"this message alone makes \d+ tokens, the context holds 200"):
        say(session, "y" * 300)
    assert [m["content"] for m in session.messages] == ["x", "a"]
    assert say(session, "z") == "b"


def test_answer_cut_by_the_context_is_said() -> None:
    session = chat(["a" * 500], n_ctx=100)
    say(session, "x")
    assert session.runtime.engine.n_tokens == 100
    assert "the answer was cut" in session.notices[-1]


def test_answer_cut_by_the_limit_is_said() -> None:
    session = chat(["a" * 50], max_tokens=10)
    assert say(session, "x") == "a" * 10
    assert session.notices == ["the answer was cut at 10 tokens"]


def test_stopped_answer_stays_in_the_history() -> None:
    session = chat(["abcdefghij", "next"])
    with closing(session.ask("x")) as answer:  # type: ignore[type-var]
        next(answer)
        next(answer)
    assert session.messages[-1] == {"role": "assistant", "content": "abcd"}
    assert session.last is not None
    assert session.last.finish_reason == "cancelled"
    assert say(session, "y") == "next"


def test_interrupt_before_the_first_token_forgets_the_message() -> None:
    session = chat(["abc", "next"])
    engine: FakeEngine = session.runtime.engine  # type: ignore[assignment]

    def interrupt(_number: int) -> None:
        raise KeyboardInterrupt

    engine.on_round = interrupt
    with pytest.raises(KeyboardInterrupt):
        say(session, "x")
    assert session.messages == []
    engine.on_round = None
    assert say(session, "y") == "next"


def test_reset_keeps_the_system_prompt() -> None:
    session = chat(["a"], system="s")
    say(session, "x")
    session.reset()
    assert (session.messages, session.system, session.last) == ([], "s", None)
    assert session.runtime.engine.n_tokens == 0
