"""Rounds that verify trees, on the real pair: their logits, replay, cuts, failures and saved states."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import llama_cpp
import numpy as np
import pytest
from llama_cpp import _internals

from dflash_local._errors import Cancelled, ContextOverflow
from support.engine_rig import Rig, address, greedy, sampled
from support.two_rows import redecode

PROMPTS = (
    "Write a Python function that adds two numbers.",
    "List six fruits.",
    "Why does bread rise?",
    "Repeat: the boat is on the lake.",
    "Schreibe einen Satz über den Winter.",
    "Solve x + 9 = 21.",
)
QUESTION = PROMPTS[2]
SHAPE = (7, 4)  # nodes, leaves
TOLERANCE = 0.25  # logits, between two layouts of the same cells


@pytest.fixture(scope="module")
def rig(smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, drafter_path, n_seq_max=16)
    yield made
    made.close()


def grow(
    rig: Rig,
    sampler: _internals.LlamaSampler,
    n: int,
    shape: tuple[int, int] = SHAPE,
    on_sample: Callable[[], None] | None = None,
) -> list[int]:
    return rig.run(sampler, n, shape[0], on_sample, shape[1])


def check_replay(rig: Rig, sampler: _internals.LlamaSampler, n: int) -> None:
    assert rig.engine.replay(address(sampler.sampler)) == {"tokens": n, "exact": n, "first_mismatch": -1}


@pytest.mark.parametrize("shape", [(7, 4), (15, 8), (3, 2), (7, 16)])
def test_greedy_trees_replay_exactly(rig: Rig, shape: tuple[int, int]) -> None:
    for text in PROMPTS:
        rig.engine.begin(rig.prompt(text), reuse=False)
        out = grow(rig, greedy(), 32, shape)
        stats = rig.engine.stats()
        assert stats["predicted_n"] == stats["draft_rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"]
        assert sum(stats["accepted_per_slot"]) == stats["draft_n_accepted"]
        check_replay(rig, greedy(), len(out))


@pytest.mark.parametrize("shape", [(7, 4), (12, 6)])
def test_sampled_trees_replay_exactly(rig: Rig, shape: tuple[int, int]) -> None:
    for seed, text in enumerate(PROMPTS):
        rig.engine.begin(rig.prompt(text), reuse=False)
        out = grow(rig, sampled(seed), 32, shape)
        check_replay(rig, sampled(seed), len(out))


def test_chains_trees_and_plain_rounds_mix(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out: list[int] = []
    for rows, leaves in ((7, 4), (0, 1), (7, 1), (10, 3), (3, 1), (0, 1), (7, 7), (7, 2)):
        out += rig.engine.round(address(greedy().sampler), draft_rows=rows, draft_leaves=leaves)
    check_replay(rig, greedy(), len(out))


def test_rows_of_a_tree_say_what_separate_decoding_says(rig: Rig) -> None:
    """Trees walked with several seeds: the logits of every path are those of that path decoded by a bare context."""
    longest = 0
    for text in (PROMPTS[0], PROMPTS[3]):
        prompt = rig.prompt(text)
        rig.engine.begin(prompt, reuse=False)
        head = grow(rig, greedy(), 8)
        for seed in range(4):
            rig.engine.truncate(len(prompt) + len(head))
            sampler = sampled(seed) if seed else greedy()
            emitted = rig.engine.round(address(sampler.sampler), draft_rows=12, draft_leaves=8)
            said = head + emitted
            alone = redecode(rig, prompt, said, [2] * len(said))[len(head) :]
            for row, expected in enumerate(alone):
                got = rig.engine.logits(row)
                assert np.max(np.abs(got - expected)) < TOLERANCE
                second, first = np.sort(expected)[-2:]
                assert np.argmax(got) == np.argmax(expected) or first - second < TOLERANCE
            longest = max(longest, len(emitted))
    assert longest > 2


def test_a_tree_goes_on_where_a_chain_ends(rig: Rig) -> None:
    """With the same draws a sibling of the best candidate is accepted somewhere."""
    gained = 0
    for seed, text in enumerate(PROMPTS):
        rig.engine.begin(rig.prompt(text), reuse=False)
        start = rig.engine.n_tokens + len(grow(rig, greedy(), 4))
        chain = rig.engine.round(address(sampled(seed).sampler), draft_rows=7)
        rig.engine.truncate(start)
        tree = rig.engine.round(address(sampled(seed).sampler), draft_rows=31, draft_leaves=16)
        gained += len(tree) - len(chain)
    assert gained > 0


def test_a_second_question_after_trees(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    answer = grow(rig, greedy(), 24)
    longer = prompt + answer + rig.prompt("And cake?")
    assert rig.engine.begin(longer) == len(prompt) + len(answer) - 1
    out = grow(rig, greedy(), 24)
    assert rig.engine.stats()["draft_context"] > len(longer)
    check_replay(rig, greedy(), len(out))


def test_a_cut_inside_a_tree(rig: Rig) -> None:
    prompt = rig.prompt(PROMPTS[1])
    rig.engine.begin(prompt, reuse=False)
    straight = grow(rig, greedy(), 16)
    for keep in range(3, 10):
        rig.engine.begin(prompt, reuse=False)
        grow(rig, greedy(), 16)
        rig.engine.truncate(len(prompt) + keep)
        assert rig.engine.stats()["predicted_n"] == keep
        out = grow(rig, greedy(), 8)
        check_replay(rig, greedy(), keep + len(out))
        assert straight[:keep] == rig.engine.tokens.tolist()[len(prompt) : len(prompt) + keep]


def test_a_limit_inside_a_tree(rig: Rig) -> None:
    for limit in (1, 2, 3):
        rig.engine.begin(rig.prompt(PROMPTS[1]), reuse=False)
        out = rig.run(greedy(), 1)
        for _ in range(6):
            emitted = rig.engine.round(
                address(greedy().sampler), draft_rows=SHAPE[0], draft_leaves=SHAPE[1], max_emit=limit
            )
            assert len(emitted) <= limit
            out += emitted
        check_replay(rig, greedy(), len(out))


def test_samplers_see_the_path_walked_so_far(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    seen: list[tuple[int, list[int]]] = []
    out = grow(rig, greedy(), 20, SHAPE, lambda: seen.append((rig.engine.n_decoded, rig.engine.tokens.tolist())))
    assert [n for n, _ in seen] == [len(prompt) + i for i in range(len(out))]
    assert [tokens for _, tokens in seen] == [(prompt + out)[: len(prompt) + i] for i in range(len(out))]


def test_an_exception_inside_a_tree_leaves_nothing_of_it(rig: Rig) -> None:
    prompt = rig.prompt(PROMPTS[1])
    rig.engine.begin(prompt, reuse=False)
    straight = grow(rig, greedy(), 24)
    for failing_call in (1, 2, 3):
        rig.engine.begin(prompt, reuse=False)
        grow(rig, greedy(), 9)
        calls = 0

        def fail(failing_call: int = failing_call) -> None:
            nonlocal calls
            calls += 1
            if calls == failing_call:
                raise LookupError("from the callback")

        with pytest.raises(LookupError, match="from the callback"):
            while True:
                grow(rig, greedy(), 15, SHAPE, fail)
        done = rig.engine.tokens.tolist()[len(prompt) :]
        assert done == straight[: len(done)]
        out = done + grow(rig, greedy(), 24 - len(done))
        assert out == straight
        check_replay(rig, greedy(), len(out))


@pytest.mark.parametrize("delay", [None, 0.003, 0.01, 0.02])
def test_cancelled_trees_leave_nothing(rig: Rig, delay: float | None) -> None:
    """Before a batch, and at some time inside a round."""
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    out = grow(rig, greedy(), 6)
    state = rig.engine.n_tokens, rig.engine.n_decoded
    following = rig.engine.round(address(greedy().sampler), draft_rows=SHAPE[0], draft_leaves=SHAPE[1])
    timer = threading.Timer(delay or 0.0, rig.engine.cancel)
    if delay is None:
        rig.engine.cancel()
    else:
        timer.start()
    with pytest.raises(Cancelled):
        while True:
            rig.engine.truncate(len(prompt) + len(out))
            rig.engine.round(address(greedy().sampler), draft_rows=SHAPE[0], draft_leaves=SHAPE[1])
    timer.cancel()
    assert (rig.engine.n_tokens, rig.engine.n_decoded) == state
    assert grow(rig, greedy(), len(following)) == following
    check_replay(rig, greedy(), len(out) + len(following))


def test_the_context_end_inside_a_tree(rig: Rig) -> None:
    prompt = rig.prompt("word " * 480)[:500]
    rig.engine.begin(prompt, reuse=False)
    out: list[int] = []
    with pytest.raises(ContextOverflow, match="context of 512 tokens is full"):
        while True:
            out += rig.engine.round(address(greedy().sampler), draft_rows=12, draft_leaves=6)
    assert len(prompt) + len(out) == 513
    assert rig.engine.n_decoded == 512
    check_replay(rig, greedy(), len(out))


def test_a_saved_conversation_with_trees_goes_on_and_replays(rig: Rig, smollm_path: str, drafter_path: str) -> None:
    other = Rig(smollm_path, drafter_path, n_seq_max=16)
    for n in (10, 14, 21):
        rig.engine.begin(rig.prompt(PROMPTS[1]), reuse=False)
        grow(rig, greedy(), n)
        other.engine.restore(rig.engine.save())
        tokens = rig.engine.tokens.tolist()
        assert other.engine.tokens.tolist() == tokens
        # Cells that restoring moved are decoded anew.
        assert len(tokens) - 40 < other.engine.n_decoded <= rig.engine.n_decoded
        kept = other.engine.n_decoded
        assert other.engine.begin(tokens) == kept
        out = grow(other, greedy(), 16)
        check_replay(other, greedy(), len(out))
    other.close()


def test_states_of_an_older_format_are_refused(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    grow(rig, greedy(), 6)
    state = rig.engine.save()
    older = state[:4] + (1).to_bytes(4, "little") + state[8:]
    with pytest.raises(ValueError, match="has version 1, this build reads version 2"):
        rig.engine.restore(older)


def test_a_state_with_trees_in_a_context_of_one_sequence(rig: Rig, smollm_path: str, drafter_path: str) -> None:
    """The text goes on, in chains; only the proof says that it cannot decode such batches here."""
    rig.engine.begin(rig.prompt(PROMPTS[1]), reuse=False)
    grow(rig, greedy(), 16)
    narrow = Rig(smollm_path, drafter_path, n_seq_max=1)
    assert narrow.engine.max_leaves == 1
    narrow.engine.restore(rig.engine.save())
    tokens = narrow.engine.tokens.tolist()
    narrow.engine.begin(tokens)
    assert grow(narrow, greedy(), 8)
    with pytest.raises(ValueError, match="leaves does not fit this context, which takes 1"):
        narrow.engine.replay(address(greedy().sampler))
    narrow.engine.begin(tokens)
    check_replay(narrow, greedy(), len(grow(narrow, greedy(), 8)))
    narrow.close()


def test_more_sequences_change_no_bit_of_chains(rig: Rig, smollm_path: str, drafter_path: str) -> None:
    one = Rig(smollm_path, drafter_path, n_seq_max=1)
    results = []
    for made in (one, rig):
        made.engine.reset()
        made.engine.begin(made.prompt(QUESTION), reuse=False)
        parts = []
        for rows in (0, 0, 7, 7, 0, 3):
            emitted = made.engine.round(address(greedy().sampler), draft_rows=rows)
            parts += [(emitted, made.engine.logits(row).tobytes()) for row in range(len(emitted))]
        results.append(parts)
    assert results[0] == results[1]
    one.close()


def test_leaves_beyond_the_context_become_chains(smollm_path: str, drafter_path: str) -> None:
    one = Rig(smollm_path, drafter_path, n_seq_max=1)
    one.engine.begin(one.prompt(QUESTION), reuse=False)
    tree = grow(one, greedy(), 24)
    rounds = one.engine.rounds()
    one.engine.begin(one.prompt(QUESTION), reuse=False)
    assert one.run(greedy(), 24, SHAPE[0]) == tree
    assert one.engine.rounds() == rounds
    one.close()


@pytest.mark.parametrize(
    ("params", "leaves"),
    [
        ({"n_seq_max": 16}, 16),
        ({"n_seq_max": 200}, 32),
        ({"n_seq_max": 0}, 1),
        ({"n_seq_max": 16, "kv_unified": False}, 1),
        ({"n_seq_max": 16, "n_batch": 8, "n_ubatch": 8}, 8),
    ],
)
def test_leaves_that_a_context_takes(smollm_path: str, params: dict[str, int], leaves: int) -> None:
    made = Rig(smollm_path, None, **params)
    assert made.engine.max_leaves == llama_cpp.llama_n_seq_max(made.engine.ctx) == leaves
    assert made.engine.n_ctx == 512
    made.close()


def test_a_target_with_windows_takes_chains_only(gemma_path: str, gemma_drafter: str) -> None:
    made = Rig(gemma_path, gemma_drafter, n_seq_max=16)
    assert made.engine.max_leaves == llama_cpp.llama_n_seq_max(made.engine.ctx) == 1
    made.engine.begin(made.prompt(QUESTION))
    out = grow(made, greedy(), 12)
    check_replay(made, greedy(), len(out))
    made.close()


def test_no_leaves_are_refused(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    with pytest.raises(ValueError, match="draft_leaves >= 1"):
        rig.engine.round(address(greedy().sampler), draft_rows=7, draft_leaves=0)
