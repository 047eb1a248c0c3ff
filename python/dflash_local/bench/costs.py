"""Times of target batches, trees and draft passes at one prompt's context, taken in rounds of forced widths."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dflash_local.bench.local import TIMES, FixedEngine, LocalSide
from dflash_local.bench.oracle import Costs
from dflash_local.bench.runs import Run, Task
from dflash_local.generation import SamplerLike
from dflash_local.sampling import SamplingParams

WIDE_ROWS = (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)  # of copies, where they are longer than a block
TREE_ROWS = (4, 8, 16, 32)
REPEATS = 5


def measure_costs(fixed: FixedEngine, side: LocalSide, task: Task) -> Costs:
    """Medians over REPEATS rounds of every width, each undone after it was timed; widths take turns."""
    engine = fixed.engine
    block = fixed.block_size
    rounds: dict[int, list[tuple[float, ...]]] = {slots: [] for slots in range(block)}
    trees: dict[int, list[float]] = {}
    wide: dict[int, list[float]] = {rows: [] for rows in WIDE_ROWS if block < rows <= engine.n_batch}
    room = engine.n_ctx - len(task.ids) - 1
    # Greedy: undone rounds must not leave a grammar or a penalty behind them.
    sampler: SamplerLike = side.new_sampler(SamplingParams(temperature=0.0))
    try:
        engine.reset()
        engine.begin(list(task.ids))
        for _ in range(2):
            engine.round(sampler.address, draft_rows=0)
        n = engine.n_tokens
        for _ in range(REPEATS):
            for slots, times in rounds.items():
                if slots < room:
                    times.append(_timed(engine, sampler.address, slots))
                    engine.truncate(n)
            for rows, ms in wide.items():
                if rows < room:
                    ms.append(engine.time_batch(rows))
            if block > 1 and engine.max_leaves > 1:
                for rows in TREE_ROWS:
                    if rows < room:
                        tree = _timed(engine, sampler.address, rows - 1, engine.max_leaves)
                        trees.setdefault(engine.rounds()[-1][0], []).append(tree[0])
                        engine.truncate(n)
    finally:
        sampler.close()
    target = {slots + 1: _median(times, 0) for slots, times in rounds.items() if times}
    target |= {rows: statistics.median(ms) for rows, ms in wide.items() if ms}
    draft = {slots: _median(times, 1) for slots, times in rounds.items() if slots and times}
    rest = statistics.median(ms[2] + ms[3] for ms in rounds[0])
    # Above a chain of as many rows; never below it, which only noise can be.
    more = {
        rows: max(0.0, statistics.median(ms) - target[rows]) for rows, ms in sorted(trees.items()) if rows in target
    }
    return Costs(dict(sorted(target.items())), draft, rest, more)


def _timed(engine: Any, sampler: int, rows: int, leaves: int = 1) -> tuple[float, ...]:
    before = engine.stats()
    engine.round(sampler, draft_rows=rows, draft_leaves=leaves)
    after = engine.stats()
    return tuple(after[name] - before[name] for name in TIMES)


def _median(times: Sequence[tuple[float, ...]], part: int) -> float:
    return statistics.median(row[part] for row in times)


def fit_to(costs: Costs, plain: Sequence[Run]) -> Costs:
    """The costs under the load of the plain runs, whose batches of one row and whose samplers they are fitted to."""
    rounds = [one for run in plain for one in run.rounds]
    one_row = costs.batch(1)
    if not rounds or not one_row:
        return costs
    factor = statistics.fmean(one.target_ms for one in rounds) / one_row
    return replace(costs.scaled(factor), rest_ms=statistics.fmean(one.rest_ms for one in rounds))
