"""Runs on the scripted engine: end conditions inside and across rounds, text as it comes, counters."""

from collections.abc import Sequence
from typing import Any

import pytest
from fake_engine import EOG, FakeEngine, FakeRuntime, text_tokens

from dflash_local import ContextOverflow, SamplingParams
from dflash_local.generation import Generation, draft_status, generate, make_timings, status_line

GREEDY = SamplingParams(temperature=0.0)
PROMPT = [1, 2, 3]


def start(
    text: str, sizes: Sequence[int] = (3,), *, end: bool = True, n_ctx: int = 1024, **options: Any
) -> tuple[Generation, FakeEngine]:
    engine = FakeEngine([text_tokens(text, end)], sizes, n_ctx=n_ctx)
    return generate(FakeRuntime(engine), PROMPT, GREEDY, **options), engine


def check_counters(run: Generation, engine: FakeEngine) -> None:
    timings = run.result.timings
    assert timings["predicted_n"] == timings["draft_rounds"] + timings["plain_rounds"] + timings["draft_n_accepted"]
    assert timings["predicted_n"] == len(run.result.tokens) == engine.n_tokens - len(PROMPT)
    assert engine.tokens.tolist() == [*PROMPT, *run.result.tokens]


@pytest.mark.parametrize("sizes", [(1,), (2,), (3, 1), (8,)])
def test_end_of_generation_token_ends_the_text(sizes: Sequence[int]) -> None:
    run, engine = start("hello there", sizes)
    chunks = list(run)
    assert "".join(chunk.text for chunk in chunks) == run.result.text == "hello there"
    assert run.result.finish_reason == "stop"
    assert run.result.tokens[-1] == EOG
    assert [token for chunk in chunks for token in chunk.tokens] == list(run.result.tokens)
    check_counters(run, engine)


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,), (4, 1), (50,)])
@pytest.mark.parametrize("stop", ["STOP", "o STOP", "P"])
def test_stop_string_over_tokens_and_rounds(sizes: Sequence[int], stop: str) -> None:
    run, engine = start("hello STOP and more", sizes, stop=[stop, "never"])
    shown = "".join(chunk.text for chunk in run)
    assert shown == run.result.text == "hello STOP and more".split(stop)[0]
    assert run.result.finish_reason == "stop"
    assert bytes(run.result.tokens).decode() == "hello STOP"  # the token that completed it is the last
    check_counters(run, engine)


def test_what_only_looked_like_a_stop_string_is_given_in_the_end() -> None:
    run, _ = start("a ST b STO", (1,), stop=["STOP"])
    seen = ""
    for chunk in run:
        seen += chunk.text
        assert not seen.endswith("STO") or chunk.tokens[-1] == EOG
    assert seen == "a ST b STO"


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,)])
def test_characters_split_over_tokens(sizes: Sequence[int]) -> None:
    run, _ = start("naïve 日本 🙂.", sizes)
    chunks = [chunk.text for chunk in run]
    assert "".join(chunks) == "naïve 日本 🙂."
    assert not any("\ufffd" in text for text in chunks)


def test_character_cut_by_the_limit_is_a_replacement_character() -> None:
    run, _ = start("日本", (1,), max_tokens=4)
    assert "".join(chunk.text for chunk in run) == "日\ufffd"


@pytest.mark.parametrize("limit", range(1, 8))
def test_max_tokens_inside_a_round(limit: int) -> None:
    run, engine = start("abcdefghijkl", (4,), max_tokens=limit)
    list(run)
    assert run.result.text == "abcdefghijkl"[:limit]
    assert run.result.finish_reason == "length"
    check_counters(run, engine)


@pytest.mark.parametrize("sizes", [(1,), (3,), (7,)])
def test_context_end(sizes: Sequence[int]) -> None:
    run, engine = start("abcdefghijkl", sizes, n_ctx=10)
    list(run)
    assert run.result.text == "abcdefg"
    assert run.result.finish_reason == "length"
    check_counters(run, engine)


def test_prompt_that_fills_the_context() -> None:
    run, _ = start("abc", n_ctx=3)
    with pytest.raises(ContextOverflow, match="the prompt has 3 tokens"):
        next(run)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_closing_midway_leaves_the_engine_at_the_last_token_given(rounds: int) -> None:
    run, engine = start("abcdefghijkl", (3,))
    given = [token for _ in range(rounds) for token in next(run).tokens]
    run.close()
    run.close()
    assert engine.tokens.tolist() == PROMPT + given
    assert run.result.finish_reason == "cancelled"
    assert list(run) == []
    check_counters(run, engine)


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_exception_in_a_round_leaves_the_engine_at_the_last_token_given(fault: type[BaseException]) -> None:
    def stop_at(number: int) -> None:
        if number == 2:
            raise fault

    engine = FakeEngine([text_tokens("abcdefgh")], (3,), on_round=stop_at)
    runtime = FakeRuntime(engine)
    run = generate(runtime, PROMPT, GREEDY)
    with pytest.raises(fault):
        list(run)
    assert run.result.text == "abcd"
    assert run.result.finish_reason == "cancelled"
    assert runtime.samplers[0].closed
    check_counters(run, engine)


def test_exception_after_a_round_takes_its_tokens_back(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine([text_tokens("abcdefgh")], (3,))
    runtime = FakeRuntime(engine)
    run = generate(runtime, PROMPT, GREEDY)
    next(run)

    def broken(_token: int) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(runtime.vocab, "piece", broken)
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert engine.tokens.tolist() == [*PROMPT, *b"a"]
    check_counters(run, engine)


def test_prompt_is_decoded_chunk_by_chunk() -> None:
    engine = FakeEngine([text_tokens("x")], n_batch=4)
    run = generate(FakeRuntime(engine), [1] * 11, GREEDY)
    next(run)
    assert engine._chunks == -1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"draft_rows": -2}, "draft_rows is -2"),
        ({"stop": [""]}, "stop string is empty"),
        ({"stop": ["x"] * 65}, "at most 64"),
        ({"stop": ["x" * 1025]}, "at most 1024"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        start("abc", **options)


def test_timings_of_a_drafted_run() -> None:
    run, _ = start("abcdefg", (4,))
    list(run)
    timings = run.result.timings
    assert timings["plain_rounds"] == 1
    assert timings["draft_rounds"] == 2
    assert timings["tokens_per_round"] == 3.5
    assert timings["speedup"] == pytest.approx(8 / 3, abs=1e-3)
    assert (timings["draft_kind"], timings["speedup_basis"]) == ("dflash", "est.")
    line = status_line(run.result)
    assert line == "drafter engaged, 3.50 tokens per round, 266.7 tokens/s, gain 2.67x (estimate)"


def test_no_gain_is_told_without_a_plain_round() -> None:
    engine = FakeEngine([text_tokens("abc")], (4,))
    run = generate(FakeRuntime(engine), PROMPT, GREEDY)
    list(run)
    stats = {**engine.stats(), "plain_round_ms": 0.0}
    assert make_timings(stats, drafting=True)["speedup"] is None  # type: ignore[arg-type]


def test_status_of_the_drafter() -> None:
    engine = FakeEngine([text_tokens("abcdefgh")], (3,), declined="does not pay")
    runtime = FakeRuntime(engine)
    list(generate(runtime, PROMPT, GREEDY))
    assert draft_status(runtime, engine.stats(), -1) == "declined: does not pay"
    assert draft_status(runtime, engine.stats(), 0) == "off"
    engine.declined = ""
    assert draft_status(runtime, engine.stats(), -1) == "engaged"
    assert draft_status(runtime, {**engine.stats(), "draft_rounds": 0}, -1).startswith("declined: the answer ended")
    runtime.drafter_name, runtime.draft_status = None, "declined: none known"
    assert draft_status(runtime, engine.stats(), -1) == "declined: none known"
    run = generate(FakeRuntime(FakeEngine([text_tokens("ab")]), None, "off"), PROMPT, GREEDY)
    list(run)
    assert status_line(run.result) == "drafter off, 100.0 tokens/s"


def test_seed_is_reported_only_where_it_matters() -> None:
    run, _ = start("a")
    assert run.result.seed is None
    sampled = generate(FakeRuntime(FakeEngine([text_tokens("a")])), PROMPT, SamplingParams(seed=7))
    list(sampled)
    assert sampled.result.seed == 7


@pytest.mark.parametrize(("options", "leaves"), [({}, 1), ({"draft_leaves": 4}, 4)])
def test_the_shape_of_trees_reaches_the_engine(options: dict[str, Any], leaves: int) -> None:
    run, engine = start("abc", draft_rows=7, **options)
    list(run)
    assert engine.asked == {(7, leaves)}


def test_no_leaves_are_refused() -> None:
    with pytest.raises(ValueError, match="draft_leaves is 0, expected 1"):
        start("abc", draft_leaves=0)
