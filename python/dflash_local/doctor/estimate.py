"""What measured costs and measured acceptance come to: break-even points and expected speed-up. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """The best number of rows for a text, and what it gives. One row is plain decoding: no draft pass."""

    rows: int
    tokens_per_round: float
    speedup: float


def break_even(ms_by_rows: Mapping[int, float], draft_ms: float, rows: int) -> float:
    """Tokens per round at which rounds of `rows` rows are as fast as plain decoding."""
    return (draft_ms + ms_by_rows[rows]) / ms_by_rows[1]


def reach(accepted: Sequence[int], rounds: int) -> list[float]:
    """Probability that each slot is accepted, those before it included. `accepted`: rounds by slot."""
    return [count / rounds for count in accepted] if rounds else []


def tokens_per_round(reached: Sequence[float], rows: int) -> float:
    """Mean tokens of a round that verifies `rows` rows: the anchor's successor and what is accepted."""
    return 1.0 + sum(reached[: rows - 1])


def speedup(ms_by_rows: Mapping[int, float], draft_ms: float, rest_ms: float, rows: int, tokens: float) -> float:
    """Speed of such rounds against plain decoding; `rest_ms` is spent on each token either way."""
    plain_ms = ms_by_rows[1] + rest_ms
    return tokens * plain_ms / (draft_ms + ms_by_rows[rows] + tokens * rest_ms)


def best(ms_by_rows: Mapping[int, float], draft_ms: float, rest_ms: float, reached: Sequence[float]) -> Choice:
    """The fastest of the measured widths, plain decoding included."""
    found = Choice(1, 1.0, 1.0)
    for rows in sorted(ms_by_rows):
        if 1 < rows <= len(reached) + 1:
            tokens = tokens_per_round(reached, rows)
            gain = speedup(ms_by_rows, draft_ms, rest_ms, rows, tokens)
            if gain > found.speedup:
                found = Choice(rows, tokens, gain)
    return found


def copy_speedup(ms_by_rows: Mapping[int, float], rest_ms: float, rows: int) -> float:
    """Speed while everything copied is right: `rows` tokens a round, no draft pass."""
    return speedup(ms_by_rows, 0.0, rest_ms, rows, float(rows))
