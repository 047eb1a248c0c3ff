"""What a planner could reach that knows the target's text: the least time over all ways to cut it into rounds. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured milliseconds: of a target batch by rows, of a draft pass by slots, and of the rest by emitted token."""

    target_ms: Mapping[int, float]
    draft_ms: Mapping[int, float]
    rest_ms: float

    def batch(self, rows: int) -> float | None:
        """Of the next wider measured batch, None beyond the widest."""
        return _next(self.target_ms, rows)

    def draft(self, slots: int) -> float | None:
        return _next(self.draft_ms, slots)

    def scaled(self, factor: float) -> Costs:
        """The same machine under another load."""
        return Costs(
            {rows: ms * factor for rows, ms in self.target_ms.items()},
            {slots: ms * factor for slots, ms in self.draft_ms.items()},
            self.rest_ms * factor,
        )


def _next(costs: Mapping[int, float], size: int) -> float | None:
    sizes = sorted(costs)
    at = bisect_left(sizes, size)
    return costs[sizes[at]] if at < len(sizes) else None


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest way through a text. `rounds` counts them by source: plain, draft, copy."""

    ms: float
    rounds: Mapping[str, int]


def fastest(n_tokens: int, drafted: Sequence[int], copies: Sequence[int], costs: Costs) -> Best:
    """Least milliseconds for the text after its first token, which comes from the prompt's batch.

    `drafted` and `copies`: for each token as the anchor, how many of the tokens after it a draft pass or a copy brings.
    Each round takes as many of them as pays, and the target's own token after them."""
    one_row = costs.batch(1)
    if one_row is None:
        raise ValueError("the costs hold no batch of one row")
    best = [0.0] * max(n_tokens, 1)
    chosen: list[tuple[str, int]] = [("", 0)] * max(n_tokens, 1)
    for at in range(n_tokens - 2, -1, -1):
        left = n_tokens - 1 - at
        best[at], chosen[at] = one_row + costs.rest_ms + best[at + 1], ("plain", 1)
        for source, accepted in (("draft", drafted[at]), ("copy", copies[at])):
            # The round's last token is the target's own, so one token must be left for it.
            for rows in range(2, min(accepted, left - 1) + 2):
                batch = costs.batch(rows)
                draft = costs.draft(rows - 1) if source == "draft" else 0.0
                if batch is None or draft is None:
                    break
                ms = batch + draft + rows * costs.rest_ms + best[at + rows]
                if ms < best[at]:
                    best[at], chosen[at] = ms, (source, rows)
    rounds: Counter[str] = Counter()
    at = 0
    while at + 1 < n_tokens:
        source, emitted = chosen[at]
        rounds[source] += 1
        at += emitted
    return Best(best[0], dict(rounds))
