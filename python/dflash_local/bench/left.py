"""How near a run came to the oracle, and what of the rest is left to the planner and to the drafter. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash_local.bench.figures import geomean
from dflash_local.bench.rounds import wasted_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dflash_local.bench.compare import Oracle
    from dflash_local.bench.runs import Run

AIM = 0.85  # of the oracle
PARTS = ("planner", "wasted", "missed", "drafter")


def oracle_row(oracle: Oracle, speedup: float | None, baseline: float, draft: Run, plain: Run) -> dict[str, Any]:
    """Figures of one prompt. `speedup`: of the draft side against the plain side of the same attention mode, over
    pairs, so that only the oracle's ratio to plain comes from its costs; `baseline`: that plain's speed against the
    best plain's.

    `left` is in shares of the draft side's time, "planner" the sum of "wasted" (drafted rounds slower than plain ones
    for their tokens) and "missed" (all else that the oracle would have done better); "drafter" is what an oracle would
    win besides if every block of the drafter were right, None without one."""
    best = oracle.plain_ms / oracle.best.ms if oracle.best.ms > 0 else None
    perfect = oracle.plain_ms / oracle.perfect.ms if oracle.perfect is not None and oracle.perfect.ms > 0 else None
    share = speedup / best if speedup and best else None
    left: dict[str, float | None] | None = None
    if share is not None and speedup is not None:
        total, wasted = sum(one.ms for one in draft.rounds), wasted_ms(draft, plain)
        waste = wasted / total if wasted is not None and total > 0 else None
        left = {
            "planner": 1.0 - share,
            "wasted": waste,
            "missed": 1.0 - share - waste if waste is not None else None,
            "drafter": share - speedup / perfect if perfect is not None else None,
        }
    return {
        "tps": 1e3 * (oracle.n_tokens - 1) / oracle.best.ms if oracle.best.ms > 0 else None,
        "speedup": best and best * baseline,
        "share": share,
        "perfect_speedup": perfect and perfect * baseline,
        "left": left,
        "rounds": dict(oracle.best.rounds),
        "target_ms": {str(rows): ms for rows, ms in oracle.costs.target_ms.items()},
        "tree_ms": {str(rows): ms for rows, ms in oracle.costs.tree_ms.items()},
        "draft_ms": {str(slots): ms for slots, ms in oracle.costs.draft_ms.items()},
        "rest_ms": oracle.costs.rest_ms,
    }


def oracle_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a group of prompts: geometric means of speeds and shares, plain means of what is left."""
    found = [row["oracle"] for row in rows if "oracle" in row and row["oracle"]["share"] is not None]
    return {
        "oracle_speedup": geomean(one["speedup"] for one in found),
        "oracle_share": geomean(one["share"] for one in found),
        "perfect_speedup": geomean(one["perfect_speedup"] for one in found if one["perfect_speedup"] is not None),
        "left": {part: _mean([one["left"][part] for one in found]) for part in PARTS},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
