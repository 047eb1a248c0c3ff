"""Means, medians and bounds over repeated measurements. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio over paired runs. The true median is at least `low` with probability `confidence`."""

    median: float
    low: float
    confidence: float


def geomean(values: Iterable[float]) -> float | None:
    """Geometric mean of positive numbers, None of none."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None


def median_bound(values: Sequence[float]) -> tuple[float, float]:
    """The highest order statistic that lies below the true median with CONFIDENCE or more, and its confidence.

    Distribution-free; of fewer than five values none reaches 0.95, then it is the smallest with what it gives."""
    ordered, n = sorted(values), len(values)
    below, tail = 0.0, 0.5**n  # tail: chance that all values lie above the median
    rank, confidence = 0, 1.0 - tail
    for k in range(n):
        below += math.comb(n, k) * tail
        if 1.0 - below < CONFIDENCE:
            break
        rank, confidence = k, 1.0 - below
    return ordered[rank], confidence


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Median of the pairs' ratios, so that drift over the pairs cancels, and its bound."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    low, confidence = median_bound(ratios)
    return Ratio(statistics.median(ratios), low, confidence)


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs, None where both are equal; a text that ends early differs there."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
