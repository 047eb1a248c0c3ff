"""Speed against plain, paired in one process, with the tokens per round.

    python benchmarks/speed.py [--configs 1,3,7,auto] [--repeat 3] [--simulate] [--json OUT]

Every prompt runs in every configuration in turn, in reversed order every second time; medians over the repeats. Plain
runs without a drafter, once with flash attention off and once with it on, and the better of the two is the baseline of
the speed-ups. All sides have the same thread counts. `whole answer` compares the time of prompt and text together, a
token. `--simulate` adds the tokens per round of the offline simulation (text from batches of two rows).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import common
import simulate

AUTO = -1
PLAINS = ("plain", "plain-flash")


def measure(engine: Any, model: common.Model, prompt: common.Prompt, draft_rows: int) -> dict[str, Any]:
    """One greedy answer: tokens per second of the text, and seconds a token with the prompt's share."""
    ids = model.chat_ids(prompt.prompt)
    with common.sampler() as chain:
        start = time.perf_counter()
        text = common.run_engine(engine, model, ids, chain, prompt.max_tokens, draft_rows)
        wall = time.perf_counter() - start
    stats = engine.stats()
    common.check_identity(stats)
    return {
        "text": text,
        "tps": 1000 * (len(text) - 1) / stats["predicted_ms"] if len(text) > 1 else math.nan,
        "seconds_per_token": wall / len(text),
        "draft_rounds": stats["draft_rounds"],
        "plain_rounds": stats["plain_rounds"],
        "draft_n": stats["draft_n"],
        "draft_n_accepted": stats["draft_n_accepted"],
        "declined": stats["declined"],
    }


def run(args: Any, prompts: Sequence[common.Prompt], configs: Sequence[str]) -> list[dict[str, Any]]:
    """One row a prompt, with medians by configuration."""
    rows = []
    with common.Model(args.target) as model, ExitStack() as stack:
        plain = [
            stack.enter_context(
                common.open_engine(model, model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=on))
            )
            for on in ("off", "on")
        ]
        # The planner learns from every round: `auto` gets an engine that never saw the fixed widths.
        params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
        fixed, auto = (stack.enter_context(common.open_engine(model, params, args.drafter)) for _ in range(2))
        sides = dict(zip(PLAINS, ((e, 0) for e in plain), strict=True))
        sides |= {name: (auto, AUTO) if name == "auto" else (fixed, int(name)) for name in configs}
        for side, width in sides.values():
            measure(side, model, prompts[0], width)
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), prompt.id)
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
            for repeat in range(args.repeat):
                order = list(sides) if repeat % 2 == 0 else list(reversed(sides))
                for name in order:
                    side, width = sides[name]
                    runs[name].append(measure(side, model, prompt, width))
            rows.append({"id": prompt.id, "category": prompt.category, **reduce(runs)})
    common.progress(len(prompts), len(prompts), "measured")
    return rows


def reduce(runs: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians, and the ratios to the better plain."""
    tps = {name: statistics.median(r["tps"] for r in group) for name, group in runs.items()}
    spt = {name: statistics.median(r["seconds_per_token"] for r in group) for name, group in runs.items()}
    best = max(tps[name] for name in PLAINS)
    least = min(spt[name] for name in PLAINS)
    last = {name: group[-1] for name, group in runs.items()}
    return {
        "predicted_n": {name: len(r["text"]) for name, r in last.items()},
        "tps": tps,
        "speedup": {name: tps[name] / best for name in runs},
        "whole_speedup": {name: least / spt[name] for name in runs},
        "identical": {name: r["text"] == last[PLAINS[0]]["text"] for name, r in last.items()},
        "draft_rounds": {name: r["draft_rounds"] for name, r in last.items()},
        "plain_rounds": {name: r["plain_rounds"] for name, r in last.items()},
        "accepted": {name: r["draft_n_accepted"] for name, r in last.items()},
        "declined": {name: r["declined"] for name, r in last.items()},
    }


def summarize(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means, worst prompts and tokens per round of a group of prompts, by configuration."""
    out: dict[str, Any] = {"prompts": len(rows)}
    for name in rows[0]["tps"]:
        n_rounds = sum(r["draft_rounds"][name] for r in rows)
        worst = min(rows, key=lambda r: r["speedup"][name])
        out[name] = {
            "tps": statistics.median(r["tps"][name] for r in rows),
            "geomean_speedup": common.geomean(r["speedup"][name] for r in rows),
            "whole_speedup": common.geomean(r["whole_speedup"][name] for r in rows),
            "worst_speedup": worst["speedup"][name],
            "worst_whole_speedup": min(r["whole_speedup"][name] for r in rows),
            "worst_prompt": worst["id"],
            "tokens_per_round": 1 + sum(r["accepted"][name] for r in rows) / n_rounds if n_rounds else math.nan,
            "draft_share": n_rounds / max(n_rounds + sum(r["plain_rounds"][name] for r in rows), 1),
            "identical_share": statistics.fmean(r["identical"][name] for r in rows),
        }
    return out


def report(summary: Mapping[str, Any], simulated: Mapping[str, Any], title: str) -> None:
    """Three tables: speed by category, the configurations over all prompts, tokens per round."""
    names = [name for name in summary["all"] if name != "prompts"]
    drafting = [name for name in names if name not in PLAINS]
    common.table(
        f"Speed-up over the better plain by category (geometric mean), {title}",
        ("category", "prompts", "plain t/s", "plain-flash t/s", *drafting, "auto's worst" if "auto" in names else ""),
        [
            (
                category,
                s["prompts"],
                *(s[name]["tps"] for name in PLAINS),
                *(s[name]["geomean_speedup"] for name in drafting),
                s["auto"]["worst_speedup"] if "auto" in names else "",
            )
            for category, s in summary.items()
        ],
    )
    common.table(
        "All prompts",
        ("", "speed-up", "whole answer", "worst", "worst whole", "worst prompt", "draft rounds", "equal to plain"),
        [
            (
                name,
                s["geomean_speedup"],
                s["whole_speedup"],
                s["worst_speedup"],
                s["worst_whole_speedup"],
                s["worst_prompt"],
                f"{100 * s['draft_share']:.0f}%",
                f"{100 * s['identical_share']:.0f}%",
            )
            for name, s in ((name, summary["all"][name]) for name in names)
        ],
    )
    common.table(
        "Tokens per round, live" + (" / simulated" if simulated else ""),
        ("category", *drafting),
        [
            (
                category,
                *(_pair(s[name]["tokens_per_round"], simulated.get(category, {}).get(name)) for name in drafting),
            )
            for category, s in summary.items()
        ],
    )


def _pair(live: float, simulated: float | None) -> str:
    return common.cell(live) + (f" / {simulated:.2f}" if simulated is not None else "")


def main() -> None:
    """Measures and prints."""
    options = common.parser(__doc__)
    options.add_argument("--configs", default="1,3,7,auto", help="drafted rows, or auto")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--simulate", action="store_true", help="tokens per round by simulation beside the live ones")
    args, prompts = common.parse(options)
    configs = args.configs.split(",")
    rows = run(args, prompts, configs)
    simulated: dict[str, Any] = {}
    if args.simulate:
        with common.Model(args.target) as model:
            widths = [int(name) for name in configs if name != "auto"]
            simulated = common.by_category(simulate.run(model, args, prompts, widths, 2), simulate.mean)
    summary = common.by_category(rows, summarize)
    report(summary, simulated, f"{args.target.name}, {args.threads} threads")
    common.write_json(
        args.json,
        {"settings": common.settings(args), "summary": summary, "simulated": simulated, "rows": rows},
    )


if __name__ == "__main__":
    main()
