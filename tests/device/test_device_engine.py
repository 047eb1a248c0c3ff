"""The engine with its target on a second device: taps, rounds, replay, cancelling, saved states."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable

import numpy as np
import pytest

from dflash_local._errors import Cancelled
from support.engine_rig import Rig, address, greedy, sampled
from support.eval_oracle import layer_outputs
from support.random_drafter import GEMMA_TAPS

QUESTION = "Why do cats purr?"
ALL_LAYERS = 1000
TAPPED = [1, 8, 14, 20, 26]


def test_layer_inputs_are_tapped_on_a_device(rig: Rig) -> None:
    assert rig.engine.tap_mode == "layer_input"


@pytest.mark.parametrize("draft_rows", [0, 3, 7, -1])
def test_greedy_text_replays_exactly(rig: Rig, draft_rows: int) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(greedy(), 40, draft_rows)
    stats = rig.engine.stats()
    assert stats["predicted_n"] == stats["draft_rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"] == len(out)
    assert draft_rows <= 0 or stats["draft_n_accepted"] > 0
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof == {"tokens": len(out), "exact": len(out), "first_mismatch": -1}


@pytest.mark.parametrize("draft_rows", [0, 3, 7])
def test_sampled_text_replays_exactly(rig: Rig, draft_rows: int) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    out = rig.run(sampled(7), 40, draft_rows)
    proof = rig.engine.replay(address(sampled(7).sampler))
    assert proof["exact"] == proof["tokens"] == len(out)


def test_a_second_question_drafts_from_the_kept_context(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    answer = rig.run(greedy(), 20, 7)
    longer = prompt + answer + rig.prompt("And dogs?")
    assert rig.engine.begin(longer) == len(prompt) + len(answer) - 1
    rig.run(greedy(), 24, 7)
    assert rig.engine.stats()["draft_context"] > len(longer)
    proof = rig.engine.replay(address(greedy().sampler))
    assert proof["exact"] == proof["tokens"]


def test_a_long_prompt_is_decoded_in_chunks(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION * 60)
    rig.engine.begin(prompt, reuse=False)
    out = rig.run(greedy(), 12, 7)
    assert rig.engine.stats()["draft_rounds"] > 0
    assert rig.engine.stats()["draft_context"] >= len(prompt) > 2 * rig.engine.n_batch
    assert rig.engine.replay(address(greedy().sampler))["exact"] == len(out)


def test_both_ways_of_tapping_give_the_same_bits(smollm_path: str, drafter_path: str) -> None:
    found, rounds = {}, []
    for mode in ("callback", "layer_input"):
        made = Rig(smollm_path, drafter_path, n_gpu_layers=ALL_LAYERS, tap_mode=mode)
        tokens = made.prompt(QUESTION)
        made.engine.eval(tokens, all_logits=True)
        found[mode] = made.engine.taps()
        made.engine.begin(tokens, reuse=False)
        rounds.append((made.run(greedy(), 32, 7), made.engine.rounds()))
        made.engine.close()
        if mode == "callback":
            found["oracle"] = layer_outputs(made.model, made.params, tokens, TAPPED)
        made.model.close()
    np.testing.assert_array_equal(found["callback"], found["oracle"])
    np.testing.assert_array_equal(found["layer_input"], found["oracle"])
    assert rounds[0] == rounds[1]


def test_taps_are_those_of_the_cpu(smollm_path: str, drafter_path: str) -> None:
    found = []
    for n_gpu_layers in (0, ALL_LAYERS):
        made = Rig(smollm_path, drafter_path, n_gpu_layers=n_gpu_layers)
        made.engine.eval(made.prompt(QUESTION))
        found.append(made.engine.taps())
        made.close()
    # Some channels are a thousand times the others: compare directions of whole rows.
    cpu, device = (taps / np.linalg.norm(taps, axis=1, keepdims=True) for taps in found)
    assert np.min((cpu * device).sum(axis=1)) > 0.999


@pytest.mark.parametrize(
    ("n_gpu_layers", "tap_mode", "head_on_device"),
    [(0, "callback", False), (1, "callback", True), (15, "layer_input", True), (ALL_LAYERS, "layer_input", True)],
)
def test_taps_and_drafter_follow_the_layers(
    smollm_path: str, drafter_path: str, device: str, n_gpu_layers: int, tap_mode: str, head_on_device: bool
) -> None:
    """The head is the first to be offloaded, then the last layer."""
    made = Rig(smollm_path, drafter_path, n_gpu_layers=n_gpu_layers, draft_device="auto")
    assert made.drafter is not None
    assert made.drafter.device == (device if head_on_device else "CPU")
    assert made.engine.tap_mode == tap_mode
    made.engine.begin(made.prompt(QUESTION))
    out = made.run(greedy(), 24, 7)
    assert made.engine.replay(address(greedy().sampler))["exact"] == len(out)
    made.close()


def test_without_exported_layer_inputs_the_callback_copies_from_the_device(
    gemma_path: str, gemma_drafter: str, device: str
) -> None:
    made = Rig(gemma_path, gemma_drafter, n_gpu_layers=ALL_LAYERS, draft_device="auto")
    assert made.drafter is not None
    assert (made.engine.tap_mode, made.drafter.device) == ("callback", device)
    tokens = list(made.model.tokenize(b"Cats purr because", True, False))
    made.engine.begin(tokens)
    out = made.run(greedy(), 12, 3)
    assert made.engine.stats()["draft_rounds"] > 0
    assert made.engine.replay(address(greedy().sampler))["exact"] == len(out)
    made.engine.begin(tokens, reuse=False)
    made.engine.eval([])
    ours = made.engine.taps()
    made.engine.close()
    expected = layer_outputs(made.model, made.params, tokens, [layer - 1 for layer in GEMMA_TAPS])
    np.testing.assert_array_equal(ours, expected)
    made.close()


@pytest.mark.parametrize(("stop", "error"), [("cancel", Cancelled), ("interrupt", KeyboardInterrupt)])
def test_a_prompt_stops_between_batches(rig: Rig, stop: str, error: type[BaseException]) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    rig.run(greedy(), 4, 3)
    prompt = rig.prompt("word " * 400)
    rig.engine.begin(prompt, reuse=False)
    rig.engine.prefill()
    stopping: Callable[[], None] = rig.engine.cancel if stop == "cancel" else _thread.interrupt_main
    timer = threading.Timer(0.02, stopping)
    timer.start()
    with pytest.raises(error):
        rig.run(greedy(), 100000, 7)
    timer.join()
    assert rig.engine.n_decoded <= rig.engine.n_tokens
    rig.engine.begin(rig.prompt(QUESTION))
    out = rig.run(greedy(), 8, 7)
    assert rig.engine.replay(address(greedy().sampler))["exact"] == len(out)


def test_cancelled_beforehand_nothing_is_decoded(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    rig.engine.cancel()
    with pytest.raises(Cancelled):
        rig.engine.round(address(greedy().sampler))
    assert rig.engine.n_decoded == 0
    assert rig.run(greedy(), 4, 3)


def test_an_exception_while_sampling_leaves_nothing_of_the_round(rig: Rig) -> None:
    prompt = rig.prompt(QUESTION)
    rig.engine.begin(prompt, reuse=False)
    straight = rig.run(greedy(), 24, 7)
    rig.engine.begin(prompt, reuse=False)
    head = rig.run(greedy(), 9, 7)

    def fail() -> None:
        raise LookupError("from the callback")

    with pytest.raises(LookupError, match="from the callback"):
        rig.run(greedy(), 15, 7, fail)
    assert rig.engine.tokens.tolist() == prompt + head
    assert head + rig.run(greedy(), 15, 7) == straight


def test_a_saved_conversation_goes_on(rig: Rig) -> None:
    rig.engine.begin(rig.prompt(QUESTION), reuse=False)
    rig.run(greedy(), 16, 7)
    state = rig.engine.save()
    straight = rig.run(greedy(), 16, 7)
    rounds = rig.engine.rounds()[-3:]
    rig.engine.reset()
    rig.engine.restore(state)
    rig.engine.begin(rig.engine.tokens.tolist())
    assert rig.run(greedy(), 16, 7) == straight
    assert rig.engine.rounds()[-3:] == rounds
