"""Rounds, replay, cuts, cancelling and saved states of the engine, on the real pair."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dflash_local import _native
from dflash_local._errors import Cancelled, ContextOverflow, Unsupported
from support.engine_rig import Rig, address, greedy, sampled

QUESTION = "Why do cats purr?"


@pytest.fixture(scope="module")
def rig(smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, drafter_path)
    yield made
    made.close()


def check_identity(stats: _native.RunStats) -> None:
    assert stats["predicted_n"] == stats["draft_rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"]
    assert sum(stats["accepted_per_slot"]) == stats["draft_n_accepted"]


@pytest.mark.parametrize("draft_rows", [0, 1, 2, 7, -1])
def test_greedy_text_replays_exactly(rig: Rig, draft_rows: int) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(greedy(), 32, draft_rows)
    check_identity(rig.engine.stats())
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof == {"tokens": len(out), "exact": len(out), "first_mismatch": -1}


@pytest.mark.parametrize("draft_rows", [0, 3, 7])
def test_sampled_text_replays_exactly(rig: Rig, draft_rows: int) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(sampled(7), 32, draft_rows)
    proof = rig.engine.replay(address(sampled(7).sampler))
    assert proof["exact"] == proof["tokens"] == len(out)


def test_replay_notices_text_of_other_settings(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    rig.run(sampled(7, 2.0), 24, 3)
    proof = rig.engine.replay(address(sampled(8, 2.0).sampler))
    assert proof["exact"] < proof["tokens"]
    assert proof["first_mismatch"] >= 0


def test_the_conversation_goes_on_after_a_replay(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    straight = rig.run(greedy(), 32, 7)
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    first = rig.run(greedy(), 16, 7)
    rig.engine.replay(address(greedy().sampler))
    assert first + rig.run(greedy(), 16, 7) == straight


def test_both_ways_of_tapping_give_the_same_drafts(smollm_path: str, drafter_path: str) -> None:
    results = []
    for mode in ("callback", "layer_input"):
        made = Rig(smollm_path, drafter_path, tap_mode=mode)
        assert made.engine.tap_mode == mode
        made.engine.begin(made.prompt(QUESTION))
        tokens = made.run(greedy(), 40, 7)
        results.append((tokens, made.engine.stats()["accepted_per_slot"], made.engine.rounds()))
        made.close()
    assert results[0] == results[1]


def test_samplers_see_the_true_conversation_at_each_node(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    seen: list[tuple[int, list[int]]] = []
    out = rig.run(greedy(), 20, 7, lambda: seen.append((rig.engine.n_decoded, rig.engine.tokens.tolist())))
    whole = prompt + out
    assert len(seen) == len(out)
    for i, (n_decoded, tokens) in enumerate(seen):
        assert n_decoded == len(prompt) + i
        assert tokens == whole[: len(prompt) + i]


def test_an_exception_while_sampling_leaves_nothing_of_the_round(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    straight = rig.run(greedy(), 24, 7)
    for failing_call in (1, 2, 3):
        rig.engine.begin(prompt, reuse=False)
        head = rig.run(greedy(), 9, 7)
        calls = 0

        def fail(failing_call: int = failing_call) -> None:
            nonlocal calls
            calls += 1
            if calls == failing_call:
                raise LookupError("from the callback")

        with pytest.raises(LookupError, match="from the callback"):
            while True:
                rig.run(greedy(), 15, 7, fail)
        tokens = rig.engine.tokens.tolist()
        assert tokens == (prompt + straight)[: len(tokens)]
        rest = len(prompt) + 24 - len(tokens)
        assert tokens[len(prompt) :] + rig.run(greedy(), rest, 7) == straight
        assert head == straight[:9]


def test_a_cut_inside_a_round_goes_on_as_if_it_had_ended_there(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    straight = rig.run(greedy(), 24, 7)
    for keep in (3, 8, 11):
        rig.engine.begin(prompt, reuse=False)
        rig.run(greedy(), 24, 7)
        rig.engine.truncate(len(prompt) + keep)
        stats = rig.engine.stats()
        assert stats["predicted_n"] == keep
        check_identity(stats)
        out = rig.run(greedy(), 24 - keep, 7)
        assert straight[:keep] + out == straight
        proof = rig.engine.replay(address(greedy().sampler))
        assert proof["exact"] == proof["tokens"] == 24


def test_a_second_question_drafts_from_the_kept_context(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    answer = rig.run(greedy(), 20, 7)
    longer = prompt + answer + rig.prompt("And dogs?")
    kept = rig.engine.begin(longer)
    assert kept == len(prompt) + len(answer) - 1
    warm = rig.run(greedy(), 24, 7)
    assert rig.engine.stats()["draft_context"] > len(longer)
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == proof["tokens"]
    rig.engine.begin(longer, reuse=False)
    assert rig.run(greedy(), 24, 7)[:8] == warm[:8]


def test_an_edited_first_message_starts_over_where_it_differs(rig: Rig) -> None:
    rig.engine.begin(rig.prompt("Tell me about the sea."), reuse=False)
    rig.run(greedy(), 16, 7)
    edited = rig.prompt("Tell me about the mountains.")
    kept = rig.engine.begin(edited)
    assert 0 < kept < len(edited)
    rig.run(greedy(), 24, 7)
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == proof["tokens"] == 24


def test_a_long_prompt_is_decoded_in_chunks(rig: Rig) -> None:
    prompt = rig.prompt("word " * 300)
    rig.engine.begin(prompt, reuse=False)
    assert rig.engine.prefill()
    assert rig.engine.n_decoded == 128
    out = rig.run(greedy(), 12, 7)
    assert rig.engine.stats()["prompt_n"] == len(prompt)
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == len(out)


def test_the_context_end_inside_a_block(rig: Rig) -> None:
    prompt = rig.prompt("word " * 480)[:505]
    rig.engine.begin(prompt, reuse=False)
    out: list[int] = []
    with pytest.raises(ContextOverflow, match="context of 512 tokens is full"):
        while True:
            out += rig.engine.round(address(greedy().sampler), draft_rows=7)
    assert len(prompt) + len(out) == 513
    assert rig.engine.n_decoded == 512


def test_cancel_stops_a_running_prompt_and_the_engine_stays_usable(rig: Rig) -> None:
    prompt = rig.prompt("word " * 400)
    rig.engine.begin(prompt, reuse=False)
    timer = threading.Timer(0.05, rig.engine.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        rig.run(greedy(), 100000, 7)
    timer.join()
    n = rig.engine.n_tokens
    assert rig.engine.n_decoded <= n
    rig.engine.begin(rig.prompt(QUESTION))
    out = rig.run(greedy(), 8, 7)
    assert rig.engine.replay(address(greedy().sampler))["exact"] == len(out)


def test_a_saved_conversation_goes_on_equally_elsewhere(rig: Rig, smollm_path: str, drafter_path: str) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    rig.run(greedy(), 16, 7)
    state = rig.engine.save()
    straight = rig.run(greedy(), 16, 7)
    accepted = rig.engine.rounds()[-4:]
    other = Rig(smollm_path, drafter_path)
    other.engine.restore(state)
    other.engine.begin(other.engine.tokens.tolist())
    assert other.run(greedy(), 16, 7) == straight
    assert other.engine.rounds()[-3:] == accepted[-3:]
    other.close()


@pytest.mark.parametrize("damage", ["empty", "magic", "half", "longer"])
def test_damaged_states_are_refused_and_change_nothing(rig: Rig, damage: str) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    rig.run(greedy(), 6, 7)
    state = rig.engine.save()
    bad = {"empty": b"", "magic": b"XXXX" + state[4:], "half": state[: len(state) // 2], "longer": state + b"x"}[damage]
    before = rig.engine.tokens.tolist()
    with pytest.raises(ValueError, match="state"):
        rig.engine.restore(bad)
    assert rig.engine.tokens.tolist() == before
    rig.run(greedy(), 4, 7)


def test_logits_of_kept_rows(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(greedy(), 6, 7)
    assert int(np.argmax(rig.engine.logits(-1))) == out[-1]
    with pytest.raises(ValueError, match="no logits of row 99"):
        rig.engine.logits(99)


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ([], ValueError, "no tokens"),
        ([49152], ValueError, "outside the vocabulary"),
        ([-1], ValueError, "outside the vocabulary"),
        ([5] * 512, ContextOverflow, "the context holds 512"),
    ],
)
def test_bad_prompts_are_refused(rig: Rig, prompt: list[int], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rig.engine.begin(prompt)


def test_bad_round_arguments_are_refused(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    for sampler, rows, emit in ((0, 0, 1), (address(greedy().sampler), -2, 1), (address(greedy().sampler), 0, 0)):
        with pytest.raises(ValueError, match="round needs"):
            rig.engine.round(sampler, draft_rows=rows, max_emit=emit)


def test_a_closed_engine_says_so(smollm_path: str) -> None:
    made = Rig(smollm_path, None)
    assert made.engine.tap_mode == ""
    made.engine.close()
    made.engine.close()
    assert made.engine.ctx == 0
    with pytest.raises(ValueError, match="closed"):
        made.engine.begin([1])
    made.model.close()


@pytest.mark.parametrize("tap_mode", ["", "both"])
def test_an_unknown_tap_mode_is_refused(smollm_path: str, tap_mode: str) -> None:
    with pytest.raises(ValueError, match="tap_mode is auto, callback or layer_input"):
        Rig(smollm_path, None, tap_mode=tap_mode)


def test_a_second_thread_is_told_that_the_engine_is_in_use(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    refused: list[str] = []

    def intrude() -> None:
        for call in (lambda: rig.engine.begin([1, 2]), rig.engine.reset, lambda: rig.run(greedy(), 1)):
            try:
                call()
            except Unsupported as error:
                refused.append(str(error))

    def on_sample() -> None:
        if not refused:
            thread = threading.Thread(target=intrude)
            thread.start()
            thread.join()

    out = rig.run(greedy(), 16, 7, on_sample)
    assert len(refused) == 3
    assert all("in use, by another thread" in text for text in refused)
    assert rig.engine.replay(address(greedy().sampler))["exact"] == len(out)
