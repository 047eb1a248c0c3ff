"""The always-on proof by replay: mixed prompts, greedy and sampled, fixed widths and auto, on the real pair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llama_cpp import _internals

from dflash_local import _native
from support.engine_rig import Rig, address, greedy, sampled
from support.two_rows import redecode, row_classes

AUTO = -1
SEED = 11
# (prompt, tokens): a dozen kinds, so that text with many and with few accepted drafts is there.
PROMPTS = (
    ("Write a Python function that adds two numbers.", 32),
    ("What is 12 times 8? Show the steps.", 32),
    ("List six fruits.", 24),
    ("Why does bread rise?", 24),
    ("Repeat: the boat is on the lake.", 24),
    ("Schreibe einen Satz über den Winter.", 24),
    ("Show a loop in C that prints the numbers from 1 to 5.", 32),
    ("Solve x + 9 = 21.", 32),
    ("Give me one tip against stage fright.", 24),
    ('Return JSON with the fields "name" and "age" for a person.', 24),
    ("What does a bank do with deposits?", 24),
    ("grx 19 ;; mool (( tev", 24),
)


@pytest.fixture(scope="module")
def rig(smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, drafter_path)
    yield made
    made.close()


def check_counters(stats: _native.RunStats, rounds: Sequence[tuple[int, int]], n_emitted: int) -> None:
    """The identity of the counters, and the log of rounds against them."""
    assert stats["predicted_n"] == n_emitted
    assert stats["predicted_n"] == stats["draft_rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"]
    assert len(rounds) == stats["draft_rounds"] + stats["plain_rounds"]
    assert sum(emitted for _, emitted in rounds) == n_emitted
    assert sum(rows - 1 for rows, _ in rounds[1:]) == stats["draft_n"]
    assert all(1 <= emitted <= rows for rows, emitted in rounds)


@pytest.mark.parametrize(
    ("draft_rows", "temperature", "prompts"),
    [
        (7, 0.0, PROMPTS),
        (7, 0.8, PROMPTS[:6]),
        (2, 0.0, PROMPTS[6:]),
        (2, 0.8, PROMPTS[6:]),
        (AUTO, 0.0, PROMPTS[:4]),
        (AUTO, 0.8, PROMPTS[6:10]),
    ],
)
def test_every_emitted_id_replays(
    rig: Rig, draft_rows: int, temperature: float, prompts: tuple[tuple[str, int], ...]
) -> None:
    def make() -> _internals.LlamaSampler:
        return sampled(SEED, temperature) if temperature else greedy()

    drafted = 0
    for text, n in prompts:
        rig.engine.begin(rig.prompt(text), reuse=False)
        out = rig.run(make(), n, draft_rows)
        stats = rig.engine.stats()
        check_counters(stats, rig.engine.rounds(), len(out))
        proof = rig.engine.replay(address(make().sampler))
        assert proof == {"tokens": len(out), "exact": len(out), "first_mismatch": -1}, text
        drafted += stats["draft_n_accepted"]
    assert drafted > 0 or draft_rows == AUTO


def test_text_of_draft_rounds_is_what_a_bare_context_says(rig: Rig) -> None:
    """Without the engine: every prefix decoded in batches of the same row class gives the emitted token."""
    for text, _ in PROMPTS[:3]:
        prompt = rig.prompt(text)
        rig.engine.begin(prompt, reuse=False)
        out = rig.run(greedy(), 24, 7)
        logits = redecode(rig, prompt, out, row_classes(rig.engine.rounds()))
        assert [int(np.argmax(row)) for row in logits] == out
