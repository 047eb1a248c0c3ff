"""What rounds were drafted from, and how far each depth of their chains and trees was verified and accepted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash_local.bench.runs import Round, Run

Slots = list[list[int]]
"""By depth from 1: rounds that verified a node there, nodes verified, nodes accepted."""


def slots_of(rounds: Iterable[Round]) -> Slots:
    """Over all rounds that verified anything."""
    slots: Slots = []
    for one in rounds:
        while len(slots) < len(one.nodes):
            slots.append([0, 0, 0])
        for depth, nodes in enumerate(one.nodes, 1):
            slot = slots[depth - 1]
            slot[0] += 1
            slot[1] += nodes
            slot[2] += one.emitted > depth
    return slots


def add_slots(groups: Iterable[Sequence[Sequence[int]]]) -> Slots:
    """Sums of several."""
    slots: Slots = []
    for group in groups:
        while len(slots) < len(group):
            slots.append([0, 0, 0])
        for into, found in zip(slots, group, strict=False):
            for i, n in enumerate(found):
                into[i] += n
    return slots


def tokens_by_slot(slots: Sequence[Sequence[int]]) -> list[float]:
    """Tokens per round that verified anything, had it been cut after slot 1, 2, ...; the target's own included."""
    found, tokens = [], 1.0
    for slot in slots:
        tokens += slot[2] / slots[0][0]
        found.append(tokens)
    return found


def by_source(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Rounds, tokens, milliseconds and slots by what the rounds were drafted from."""
    groups: dict[str, list[Round]] = {}
    for run in runs:
        for one in run.rounds:
            groups.setdefault(one.source, []).append(one)
    return {
        source: {
            "rounds": len(group),
            "emitted": sum(one.emitted for one in group),
            "ms": sum(one.ms for one in group),
            "slots": slots_of(group),
        }
        for source, group in sorted(groups.items())
    }


def add_sources(groups: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Sums of several."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        for source, figures in group.items():
            into = found.setdefault(source, {"rounds": 0, "emitted": 0, "ms": 0.0, "slots": []})
            for name in ("rounds", "emitted", "ms"):
                into[name] += figures[name]
            into["slots"] = add_slots([into["slots"], figures["slots"]])
    return dict(sorted(found.items()))


def wasted_ms(run: Run, plain: Run) -> float | None:
    """Milliseconds by which drafted rounds took longer than plain ones for the same tokens; of those that did.

    None without rounds on either side."""
    if not run.rounds or not plain.rounds:
        return None
    one_row = sum(one.ms for one in plain.rounds) / len(plain.rounds)
    return sum(max(0.0, one.ms - one.emitted * one_row) for one in run.rounds if one.source != "plain")
