"""What a round costs beyond the target's batch and the draft graph, and what tapping costs.

    python benchmarks/overhead.py [--configs 0,1,3,7,auto] [--repeat 3] [--json OUT]

First table: milliseconds a round by part. `overhead` is everything but `llama_decode` and the draft graph, samplers
included, as a share of the round; `with loop` takes the wall clock of the Python loop instead of the engine's own sum.
Second table: one decode of n rows with taps by the callback and by layer inputs against an engine without a drafter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import common

AUTO = -1
PARTS = ("target_ms", "draft_ms", "sample_ms", "other_ms")
TAP_MODES = ("callback", "layer_input")
WIDTHS = (1, 2, 4, 8, 64)


def one_run(engine: Any, model: common.Model, prompt: common.Prompt, draft_rows: int) -> dict[str, float]:
    """Sums over the rounds of one greedy answer but the first, which decodes the prompt."""
    engine.reset()
    engine.begin(model.chat_ids(prompt), reuse=False)
    with common.sampler() as chain:
        ids = engine.round(chain, draft_rows=0)
        made = len(ids)
        start = time.perf_counter()
        while made < prompt.max_tokens and not model.is_eog(ids[-1]):
            ids = engine.round(chain, draft_rows=draft_rows, max_emit=prompt.max_tokens - made)
            made += len(ids)
        wall = 1000 * (time.perf_counter() - start)
    stats = engine.stats()
    common.check_identity(stats)
    return {
        **{part: stats[part] for part in PARTS},
        "wall_ms": wall,
        "rounds": stats["draft_rounds"] + stats["plain_rounds"] - 1,
    }


def rounds(args: Any, model: common.Model, prompts: Sequence[common.Prompt]) -> dict[str, dict[str, float]]:
    """Milliseconds a round by part and the shares, by configuration."""
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    sums: dict[str, list[dict[str, float]]] = {name: [] for name in args.configs.split(",")}
    with common.open_engine(model, params, args.drafter) as engine:
        one_run(engine, model, prompts[0], 7)
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), prompt.id)
            for _ in range(args.repeat):
                for name, runs in sums.items():
                    runs.append(one_run(engine, model, prompt, AUTO if name == "auto" else int(name)))
    common.progress(len(prompts), len(prompts), "rounds")
    return {name: split(runs) for name, runs in sums.items()}


def split(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means a round, and both shares of overhead in percent."""
    n = sum(r["rounds"] for r in runs)
    out = {key: sum(r[key] for r in runs) / n for key in (*PARTS, "wall_ms")}
    useful = out["target_ms"] + out["draft_ms"]
    total = sum(out[part] for part in PARTS)
    return out | {
        "overhead_percent": 100 * (1 - useful / total),
        "overhead_with_loop_percent": 100 * (1 - useful / out["wall_ms"]),
    }


def taps(args: Any, model: common.Model) -> dict[str, dict[str, float]]:
    """Median milliseconds of one decode by rows, without a drafter and in both ways of tapping, taken in turn.

    Copying the taps out counts, injecting them does not. Contexts grow from 128 tokens and start anew when full.
    """
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    context = model.tokenize("The mill by the river has ground flour for the village since long before. " * 10)[:128]
    with (
        common.open_engine(model, params) as off,
        common.open_engine(model, params, args.drafter, "callback") as callback,
        common.open_engine(model, params, args.drafter, "layer_input") as layer_input,
    ):
        engines = {"off": off, **dict(zip(TAP_MODES, (callback, layer_input), strict=True))}
        times: dict[str, dict[int, list[float]]] = {name: {w: [] for w in WIDTHS} for name in engines}
        for repeat in range(args.repeat * 10 + 1):
            if repeat == 0 or off.n_tokens + sum(WIDTHS) > args.n_ctx:
                for engine in engines.values():
                    engine.reset()
                    engine.eval(context)
            for width in WIDTHS:
                for name, engine in engines.items():
                    before = engine.stats()["prompt_ms"]
                    engine.eval(context[:width], all_logits=width <= 16)
                    if repeat > 0:
                        times[name][width].append(engine.stats()["prompt_ms"] - before)
    return {name: {str(w): statistics.median(ms) for w, ms in group.items()} for name, group in times.items()}


def _against(ms: float, base: float) -> str:
    return f"{ms:.2f} ({100 * (ms / base - 1):+.1f}%)"


def main() -> None:
    """Measures and prints both tables."""
    options = common.parser(__doc__)
    options.add_argument("--configs", default="0,1,3,7,auto", help="drafted rows, or auto")
    options.add_argument("--repeat", type=int, default=3)
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        by_config = rounds(args, model, prompts)
        by_mode = taps(args, model)
    common.table(
        f"Milliseconds a round, {args.target.name}, {args.threads} threads",
        ("drafted rows", "target", "draft", "sample", "other", "overhead", "with loop"),
        [
            (
                name,
                *(s[part] for part in PARTS),
                f"{s['overhead_percent']:.1f}%",
                f"{s['overhead_with_loop_percent']:.1f}%",
            )
            for name, s in by_config.items()
        ],
    )
    common.table(
        "One decode with and without taps, milliseconds, at 128 tokens of context and more",
        ("rows", "off", *(f"{mode} (+%)" for mode in TAP_MODES)),
        [
            (
                width,
                by_mode["off"][str(width)],
                *(_against(by_mode[mode][str(width)], by_mode["off"][str(width)]) for mode in TAP_MODES),
            )
            for width in WIDTHS
        ],
    )
    common.write_json(args.json, {"settings": common.settings(args), "rounds": by_config, "taps": by_mode})


if __name__ == "__main__":
    main()
