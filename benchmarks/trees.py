"""Trees against chains of as many rows: tokens per round, speed, where they win and where they lose.

    python benchmarks/trees.py --prompts benchmarks/dev_prompts.jsonl --max-tokens 96 [--shapes 7x1,7x2,7x4,15x8]
        [--repeat 2] [--replay] [--json OUT]

A shape is nodes x leaves, leaves 1: a chain. Every round is verified, by the drafter's own probabilities: no planner.
Shapes take turns on one engine, each from an empty context, in reversed order every second time. A tree is held
against the chain of as many nodes (or of as many as the block has). `--replay` proves every tree's text by replay.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import common


class Shape(NamedTuple):
    """What a round verifies: nodes, and at most so many leaves."""

    nodes: int
    leaves: int

    @property
    def name(self) -> str:
        return f"{self.nodes}x{self.leaves}"


def shape_list(text: str) -> list[Shape]:
    """Type of `--shapes 7x1,7x4`."""
    shapes = [Shape(*(common.positive(number) for number in part.split("x"))) for part in text.split(",")]
    if len(set(shapes)) < len(shapes):
        raise argparse.ArgumentTypeError(f"{text}: a shape stands there twice")
    return shapes


def answer(
    engine: Any, model: common.Model, prompt: common.Prompt, ids: Sequence[int], shape: Shape, replay: bool
) -> dict[str, Any]:
    """Counters of one greedy answer."""
    engine.reset()
    engine.begin(ids, reuse=False)
    made: list[int] = []
    with common.sampler() as chain:
        while len(made) < prompt.max_tokens and not (made and model.is_eog(made[-1])):
            left = prompt.max_tokens - len(made)
            made += engine.round(chain, draft_rows=shape.nodes, draft_leaves=shape.leaves, max_emit=left)
    stats = engine.stats()
    common.check_identity(stats)
    found: dict[str, Any] = {
        "tokens": stats["predicted_n"],
        "ms": stats["predicted_ms"],
        "draft_rounds": stats["draft_rounds"],
        "draft_n_accepted": stats["draft_n_accepted"],
        "accepted_per_slot": stats["accepted_per_slot"],
    }
    if replay:
        with common.sampler() as chain:
            found |= {f"replay_{name}": n for name, n in engine.replay(chain).items()}
    return found


def run(args: Any, model: common.Model, prompts: Sequence[common.Prompt]) -> list[dict[str, Any]]:
    """One row a prompt: the runs of each shape."""
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    params.n_seq_max, params.kv_unified = max(shape.leaves for shape in args.shapes), True
    rows = []
    with common.open_engine(model, params, args.drafter) as engine:
        if engine.max_leaves < params.n_seq_max:
            raise SystemExit(f"this target takes trees of {engine.max_leaves} leaves at most")
        answer(engine, model, prompts[0], model.chat_ids(prompts[0]), args.shapes[-1], False)
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), prompt.id)
            ids = model.chat_ids(prompt)
            runs: dict[str, list[dict[str, Any]]] = {shape.name: [] for shape in args.shapes}
            for repeat in range(args.repeat):
                for shape in args.shapes if repeat % 2 == 0 else args.shapes[::-1]:
                    replay = args.replay and repeat == 0
                    runs[shape.name].append(answer(engine, model, prompt, ids, shape, replay))
            rows.append({"id": prompt.id, "category": prompt.category, "runs": runs})
    common.progress(len(prompts), len(prompts), "answered")
    return rows


def speed(runs: Sequence[Mapping[str, Any]]) -> float:
    """Median tokens per second, the first token and the prompt left out; nan for an answer of one token."""
    found = [1e3 * (run["tokens"] - 1) / run["ms"] for run in runs if run["tokens"] > 1 and run["ms"] > 0]
    return statistics.median(found) if found else math.nan


def summary(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """Tokens per round and speed (geometric mean) of one shape over a group of prompts."""
    runs = [run for row in rows for run in row["runs"][name]]
    speeds = [math.log(tps) for row in rows if not math.isnan(tps := speed(row["runs"][name]))]
    rounds = sum(run["draft_rounds"] for run in runs)
    return {
        "tokens_per_round": common.tokens_per_round(
            {"draft_rounds": rounds, "draft_n_accepted": sum(run["draft_n_accepted"] for run in runs)}
        ),
        "tps": math.exp(statistics.fmean(speeds)) if speeds else math.nan,
        "replayed": sum(run.get("replay_exact", 0) for run in runs),
        "replay_tokens": sum(run.get("replay_tokens", 0) for run in runs),
    }


def chain_for(tree: Shape, shapes: Sequence[Shape]) -> Shape | None:
    """The chain that a tree is held against: the widest one of at most as many nodes."""
    chains = [shape for shape in shapes if shape.leaves == 1 and shape.nodes <= tree.nodes]
    return max(chains, default=None)


def show(args: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Prints both tables; returns the figures by category and shape."""
    names = [shape.name for shape in args.shapes]
    groups: dict[str, dict[str, dict[str, float]]] = common.by_category(
        rows, lambda group: {name: summary(group, name) for name in names}
    )
    common.table(
        f"Tokens per round / tokens per second by nodes x leaves, {args.target.name}, {args.threads} threads",
        ("category", *names),
        [
            (group, *(f"{common.cell(s['tokens_per_round'])} / {common.cell(s['tps'])}" for s in shapes.values()))
            for group, shapes in groups.items()
        ],
    )
    lines = []
    for tree in args.shapes:
        chain = chain_for(tree, args.shapes)
        if tree.leaves == 1 or chain is None:
            continue
        ratios = {row["id"]: speed(row["runs"][tree.name]) / speed(row["runs"][chain.name]) for row in rows}
        ratios = {name: ratio for name, ratio in ratios.items() if not math.isnan(ratio)}
        by_speed = sorted(ratios, key=lambda name: ratios[name])
        ends = [f"{name} {ratios[name]:.2f}" for name in by_speed[:1] + by_speed[-1:]] or ["-", "-"]
        every = groups["all"]
        replayed = f"{every[tree.name]['replayed']:.0f} of {every[tree.name]['replay_tokens']:.0f}"
        lines.append(
            (
                tree.name,
                chain.name,
                every[tree.name]["tokens_per_round"] / every[chain.name]["tokens_per_round"],
                every[tree.name]["tps"] / every[chain.name]["tps"],
                f"{sum(ratio < 1 for ratio in ratios.values())} of {len(ratios)}",
                *ends,
                replayed if args.replay else "-",
            )
        )
    header = ("tree", "chain", "tokens per round", "speed", "prompts slower", "worst", "best", "replayed exactly")
    common.table("Trees against chains, ratios over all prompts", header, lines)
    return groups


def main() -> None:
    """Measures and prints."""
    options = common.parser(__doc__)
    options.add_argument("--shapes", type=shape_list, default=shape_list("7x1,7x2,7x4,15x8"), help="nodes x leaves")
    options.add_argument("--repeat", type=common.positive, default=2)
    options.add_argument("--replay", action="store_true", help="replay the first run of each shape")
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        rows = run(args, model, prompts)
    groups = show(args, rows)
    common.write_json(args.json, {"settings": common.settings(args), "summary": groups, "rows": rows})


if __name__ == "__main__":
    main()
