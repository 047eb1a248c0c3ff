"""What a planner could reach that knows the target's text: the least time over all ways to cut it into rounds. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CHAIN, TREE, COPY, FORCED = "draft", "tree", "copy", "forced"
WITH_PASS = (CHAIN, TREE)

Offers = Mapping[str, Sequence[Sequence[int]]]
"""By source, for each token as the anchor: rows of the batch that verifies 1, 2, ... of the tokens after it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured milliseconds: of a target batch by rows, of a draft pass by slots, and of the rest by emitted token;
    `tree_ms`: how much more a batch takes that is a tree, by rows."""

    target_ms: Mapping[int, float]
    draft_ms: Mapping[int, float]
    rest_ms: float
    tree_ms: Mapping[int, float] = field(default_factory=dict)

    def batch(self, rows: int) -> float | None:
        """Of the next wider measured batch, None beyond the widest."""
        return _next(self.target_ms, rows)

    def draft(self, slots: int) -> float | None:
        return _next(self.draft_ms, slots)

    def tree(self, rows: int) -> float | None:
        """Of a batch that is a tree; None beyond the widest tree measured."""
        batch, more = self.batch(rows), _next(self.tree_ms, rows)
        return None if batch is None or more is None else batch + more

    def scaled(self, factor: float) -> Costs:
        """The same machine under another load."""
        return Costs(
            {rows: ms * factor for rows, ms in self.target_ms.items()},
            {slots: ms * factor for slots, ms in self.draft_ms.items()},
            self.rest_ms * factor,
            {rows: ms * factor for rows, ms in self.tree_ms.items()},
        )

    def round(self, source: str, rows: int, accepted: int) -> float | None:
        """Of a whole round from `source` that emits `accepted` tokens and the target's own, None: not known."""
        batch = self.tree(rows) if source == TREE else self.batch(rows)
        draft = self.draft(accepted) if source in WITH_PASS else 0.0
        return None if batch is None or draft is None else batch + draft + (accepted + 1) * self.rest_ms


def _next(costs: Mapping[int, float], size: int) -> float | None:
    sizes = sorted(costs)
    at = bisect_left(sizes, size)
    return costs[sizes[at]] if at < len(sizes) else None


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest way through a text. `rounds` counts them by source, "plain" among them."""

    ms: float
    rounds: Mapping[str, int]


def chain_rows(accepted: int) -> Sequence[int]:
    """Rows of chains that have 1, 2, ... `accepted` tokens accepted."""
    return range(2, accepted + 2)


def tree_rows(tokens: Sequence[int], parents: Sequence[int], text: Sequence[int]) -> list[int]:
    """Rows that a tree must have to hold 1, 2, ... leading tokens of the text; its nodes in the order of its growth."""
    children = {(parent, token): node for node, (token, parent) in enumerate(zip(tokens, parents, strict=True))}
    rows: list[int] = []
    at = -1
    for token in text:
        found = children.get((at, token))
        if found is None:
            break
        at = found
        rows.append(at + 2)
    return rows


def fastest(n_tokens: int, offers: Offers, costs: Costs) -> Best:
    """Least milliseconds for the text after its first token, which comes from the prompt's batch.

    Each round takes from one source as many tokens as pays, and the target's own token after them."""
    one_row = costs.batch(1)
    if one_row is None:
        raise ValueError("the costs hold no batch of one row")
    best = [0.0] * max(n_tokens, 1)
    chosen: list[tuple[str, int]] = [("", 0)] * max(n_tokens, 1)
    for at in range(n_tokens - 2, -1, -1):
        # The round's last token is the target's own, so one token must be left for it.
        most = n_tokens - 2 - at
        best[at], chosen[at] = one_row + costs.rest_ms + best[at + 1], ("plain", 1)
        for source, offered in offers.items():
            for accepted, rows in enumerate(offered[at][:most], 1):
                ms = costs.round(source, rows, accepted)
                if ms is None:
                    break
                ms += best[at + accepted + 1]
                if ms < best[at]:
                    best[at], chosen[at] = ms, (source, accepted + 1)
    rounds: Counter[str] = Counter()
    at = 0
    while at + 1 < n_tokens:
        source, emitted = chosen[at]
        rounds[source] += 1
        at += emitted
    return Best(best[0], dict(rounds))
