"""The measured prior on the real pair: a usable table, and an engine as it was before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dflash_local import _native
from dflash_local._errors import Cancelled
from support.engine_rig import Rig, address, greedy

QUESTION = "Why do cats purr?"


@pytest.fixture(scope="module")
def rig(smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, drafter_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain_rig(smollm_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, None)
    yield made
    made.close()


def test_the_table_is_usable(rig: Rig) -> None:
    rig.engine.reset()
    table = rig.engine.time_costs(60_000.0)
    widths = [width["rows"] for width in table["widths"]]
    assert widths[0] == 1
    assert widths == sorted(set(widths))
    assert all(width["base_ms"] > 0.0 for width in table["widths"])
    assert all(width["slope_ms"] >= 0.0 for width in table["widths"])
    assert table["draft_ms"] > 0.0
    assert table["rest_ms"] > 0.0
    assert _native.check_costs(table) == table


def test_the_smallest_budget_still_measures_one_row(rig: Rig) -> None:
    rig.engine.reset()
    table = rig.engine.time_costs(1e-6)
    assert [width["rows"] for width in table["widths"]] == [1]


def test_without_a_drafter_there_is_no_draft_pass(plain_rig: Rig) -> None:
    plain_rig.engine.reset()
    table = plain_rig.engine.time_costs(50.0)
    assert (table["draft_ms"], table["draft_slot_ms"]) == (0.0, 0.0)


def test_the_engine_is_left_as_it_was(smollm_path: str, drafter_path: str) -> None:
    results = []
    for timed in (False, True):
        made = Rig(smollm_path, drafter_path)
        if timed:
            made.engine.time_costs(50.0)
            assert (made.engine.n_tokens, made.engine.n_decoded) == (0, 0)
            stats = made.engine.stats()
            assert (stats["predicted_n"], stats["prompt_n"], stats["draft_context"]) == (0, 0, 0)
            with pytest.raises(ValueError, match="no logits"):
                made.engine.logits(-1)
        made.engine.begin(made.prompt(QUESTION))
        tokens = made.run(greedy(), 32, 7)
        logits = made.engine.logits(-1)
        proof = made.engine.replay(address(greedy().sampler))
        assert proof["exact"] == proof["tokens"] == len(tokens)
        results.append((tokens, made.engine.rounds(), made.engine.stats()["accepted_per_slot"], logits))
        made.close()
    assert results[0][:3] == results[1][:3]
    assert np.array_equal(results[0][3], results[1][3])


def test_a_waiting_prompt_waits_on(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    straight = rig.run(greedy(), 8, 3)
    rig.engine.begin(prompt, reuse=False)
    rig.engine.time_costs(20.0)
    assert rig.engine.tokens.tolist() == prompt
    assert rig.run(greedy(), 8, 3) == straight


def test_costs_are_refused_once_something_is_decoded(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(greedy(), 4)
    tokens = rig.engine.tokens.tolist()
    with pytest.raises(ValueError, match="before anything is decoded"):
        rig.engine.time_costs(100.0)
    assert rig.engine.tokens.tolist() == tokens
    assert len(rig.run(greedy(), 4)) == len(out)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_budget_is_refused(rig: Rig, budget: float) -> None:
    rig.engine.reset()
    with pytest.raises(ValueError, match="budget_ms"):
        rig.engine.time_costs(budget)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_batch_behind_a_conversation_leaves_it_as_it_was(rig: Rig, rows: int) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    straight = rig.run(greedy(), 24, 7)
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    head = rig.run(greedy(), 10, 7)
    assert rig.engine.time_batch(rows) > 0.0
    assert head + rig.run(greedy(), 24 - len(head), 7) == straight
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == proof["tokens"] == 24


@pytest.mark.parametrize("rows", [0, -1, 129])
def test_batches_without_room_are_refused(rig: Rig, rows: int) -> None:
    rig.engine.reset()
    with pytest.raises(ValueError, match="n_rows is"):
        rig.engine.time_batch(rows)


def test_a_cancelled_measurement_leaves_a_usable_engine(rig: Rig) -> None:
    rig.engine.reset()
    rig.engine.cancel()
    with pytest.raises(Cancelled):
        rig.engine.time_costs(1000.0)
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(greedy(), 8, 7)
    assert rig.engine.replay(address(greedy().sampler))["exact"] == len(out)


def test_ctrl_c_stops_a_measurement(rig: Rig) -> None:
    rig.engine.reset()
    # Test runners in the background ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        while True:
            rig.engine.time_costs(60_000.0)
    timer.join()
    signal.signal(signal.SIGINT, before)
    assert rig.engine.n_decoded == 0
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    assert len(rig.run(greedy(), 4, 7)) == 4


def test_a_closed_engine_is_not_timed(smollm_path: str) -> None:
    made = Rig(smollm_path, None)
    made.engine.close()
    with pytest.raises(ValueError, match="closed"):
        made.engine.time_costs(10.0)
    made.model.close()
