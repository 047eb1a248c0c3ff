"""The law of drafted text: chi-square of many short sampled runs against plain's own probabilities."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from llama_cpp import _internals

from support.engine_rig import Rig, address, greedy
from support.two_rows import redecode

N_RUNS = 250
N_ALLOWED = 3
DRAFT_ROWS = 2
TEMPERATURE = 8.0  # flattens the law of so few tokens
Pair = tuple[int, int]


@pytest.fixture(scope="module")
def rig(smollm_path: str, drafter_path: str) -> Iterator[Rig]:
    made = Rig(smollm_path, drafter_path)
    yield made
    made.close()


def restricted(allowed: Sequence[int], n_vocab: int, seed: int) -> _internals.LlamaSampler:
    """A draw among the allowed tokens alone."""
    sampler = _internals.LlamaSampler()
    sampler.add_logit_bias(n_vocab, dict.fromkeys(allowed, 1000.0))
    sampler.add_top_k(len(allowed))
    sampler.add_temp(TEMPERATURE)
    sampler.add_dist(seed)
    return sampler


def plain_law(rig: Rig, prompt: Sequence[int], first: int, allowed: Sequence[int]) -> dict[Pair, float]:
    """Probability of each pair of tokens after the first one, from one-row decodes."""
    law: dict[Pair, float] = {}
    for a in allowed:
        logits = redecode(rig, prompt, [first, a], [1, 1, 1])
        p, q = (probabilities(row, allowed) for row in logits[1:])
        law |= {(a, b): p[a] * q[b] for b in allowed}
    return law


def probabilities(logits: np.ndarray, allowed: Sequence[int]) -> dict[int, float]:
    weights = np.exp((logits[list(allowed)] - logits[list(allowed)].max()) / TEMPERATURE)
    return dict(zip(allowed, (weights / weights.sum()).tolist(), strict=True))


def chi_square(counts: Mapping[Pair, int], law: Mapping[Pair, float]) -> tuple[float, float]:
    """The statistic and its 0.999 quantile (Wilson-Hilferty); cells that expect fewer than five are pooled."""
    n = sum(counts.values())
    large = [pair for pair in law if n * law[pair] >= 5]
    cells = [(counts.get(pair, 0), n * law[pair]) for pair in large]
    pooled = n - sum(seen for seen, _ in cells), n - sum(expected for _, expected in cells)
    if pooled[1] >= 1:
        cells.append(pooled)
    df = len(cells) - 1
    quantile = df * (1 - 2 / (9 * df) + 3.0902 * math.sqrt(2 / (9 * df))) ** 3
    return sum((seen - expected) ** 2 / expected for seen, expected in cells), quantile


def test_drafted_text_follows_the_law_of_plain_sampling(rig: Rig) -> None:
    prompt = rig.prompt("Count from 1 to 20.")
    rig.engine.begin(prompt, reuse=False)
    first, *rest = rig.run(greedy(), 1 + N_ALLOWED)
    allowed = list(dict.fromkeys(rest))
    law = plain_law(rig, prompt, first, allowed)
    assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-6)

    counts: Counter[Pair] = Counter()
    accepted = 0
    for seed in range(N_RUNS):
        rig.engine.truncate(len(prompt) + 1)
        sampler = restricted(allowed, rig.model.n_vocab(), seed)
        pair: list[int] = []
        while len(pair) < 2:
            emitted = rig.engine.round(address(sampler.sampler), draft_rows=DRAFT_ROWS)
            accepted += len(emitted) > 1
            pair += emitted
        counts[pair[0], pair[1]] += 1

    statistic, quantile = chi_square(counts, law)
    assert statistic < quantile
    # The test would see a wrong law: accepted and refused drafts are both there, and the law is not flat.
    assert N_RUNS / 10 < accepted < N_RUNS * 1.5
    flat = {(a, b): 1 / len(allowed) ** 2 for a, b in itertools.product(allowed, allowed)}
    assert chi_square(counts, flat)[0] > quantile
