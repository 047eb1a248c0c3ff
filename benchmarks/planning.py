"""What planning costs, in microseconds: the planner's decisions, proposals of copies, a grammar looked ahead.

    python benchmarks/planning.py --prompts benchmarks/dev_prompts.jsonl [--max-tokens 96] [--rounds 4000] [--json OUT]

Decisions are timed inside the native module, on made-up rounds in which drafting pays (7 slots of 8 candidates).
Copies and the grammar are timed from Python, the call with its conversions included, over the target's own greedy
answers: a copy at every token of them, the grammar at every token of a JSON object that it describes. Last the time
in which the prior costs of the pair are measured.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import llama_cpp
from llama_cpp.llama_grammar import json_schema_to_gbnf

LEAVES = (1, 4, 16, 32)
COPY_LENGTHS = (15, 63)
BUDGET_MS = 3000.0
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "departure_date": {"type": "string"},
        "passengers": {"type": "integer"},
        "class": {"enum": ["economy", "business"]},
    },
    "required": ["name", "departure_date", "passengers", "class"],
}
OBJECT = '{"name": "Anna", "departure_date": "4 May", "passengers": 2, "class": "economy"}'


def quantiles(times: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile, and how many."""
    ordered = sorted(times)
    return {
        "median_us": statistics.median(ordered) if ordered else float("nan"),
        "p95_us": ordered[int(0.95 * (len(ordered) - 1))] if ordered else float("nan"),
        "calls": len(ordered),
    }


def timed(call: Callable[..., Any], *args: Any) -> tuple[Any, float]:
    """What a call gives, and its microseconds."""
    start = time.perf_counter()
    found = call(*args)
    return found, 1e6 * (time.perf_counter() - start)


def decisions(n_rounds: int) -> dict[str, dict[str, float]]:
    """Median microseconds of choose, plan and observe by leaves, with and without copies on offer."""
    from dflash_local import _native

    return {
        f"{leaves} leaves, {'copies' if chain else 'no copies'}": dict(
            _native.time_planning(max_leaves=leaves, chain=chain, n_rounds=n_rounds)
        )
        for leaves in LEAVES
        for chain in (0, 40)
    }


def copies(texts: Sequence[tuple[list[int], list[int]]], length: int) -> dict[str, float]:
    """Microseconds of a proposal of at most `length` tokens, at every token of the answers."""
    from dflash_local import _native

    times = []
    for prompt, text in texts:
        index, tokens = _native.CopyIndex(), [*prompt, *text]
        for end in range(len(prompt) + 1, len(tokens) + 1):
            index.sync(tokens[:end])
            times.append(timed(index.propose, length)[1])
    return quantiles(times)


def grammar(model: common.Model, repeat: int) -> dict[str, dict[str, float]]:
    """Microseconds of a look ahead, where nothing is forced and where text is."""
    from dflash_local import _native

    tokens = model.tokenize(OBJECT, special=False)
    rules = json_schema_to_gbnf(json.dumps(SCHEMA)).encode()
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_grammar(model.vocab, rules, b"root"))
    address = ctypes.cast(chain, ctypes.c_void_p).value or 0
    vocab = ctypes.cast(model.vocab, ctypes.c_void_p).value or 0
    times: dict[str, list[float]] = {"free": [], "forced": []}
    try:
        for _ in range(repeat):
            ahead = _native.GrammarAhead(address, vocab, patience_ms=1e6)
            for i, token in enumerate(tokens):
                ahead.accept(token)
                found, us = timed(ahead.forced, 16, tokens[: i + 1])
                times["forced" if found else "free"].append(us)
    finally:
        llama_cpp.llama_sampler_free(chain)
    return {name: quantiles(group) for name, group in times.items()}


def answers(args: Any, model: common.Model, prompts: Sequence[common.Prompt]) -> tuple[list[Any], float]:
    """Prompt and greedy answer of each, and the seconds in which prior costs were measured."""
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    texts = []
    with common.open_engine(model, params, args.drafter) as engine, common.sampler() as chain:
        _, us = timed(engine.time_costs, args.budget_ms)
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), prompt.id)
            ids = model.chat_ids(prompt)
            texts.append((ids, common.run_engine(engine, model, ids, chain, prompt.max_tokens, 0)))
    common.progress(len(prompts), len(prompts), "answered")
    return texts, us / 1e6


def main() -> None:
    """Measures and prints."""
    options = common.parser(__doc__)
    options.add_argument("--rounds", type=common.positive, default=4000, help="made-up rounds per case")
    options.add_argument("--repeat", type=common.positive, default=20, help="passes over the JSON object")
    options.add_argument("--budget-ms", type=float, default=BUDGET_MS, help="of the prior costs")
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        texts, prior_s = answers(args, model, prompts)
        ahead = grammar(model, args.repeat)
    by_case = decisions(args.rounds)
    common.table(
        "Decisions of the planner, median microseconds",
        ("case", "choose", "plan", "observe"),
        [(name, s["choose_us"], s["plan_us"], s["observe_us"]) for name, s in by_case.items()],
    )
    proposals = {f"copy of up to {n} tokens": copies(texts, n) for n in COPY_LENGTHS}
    proposals |= {f"grammar, {name}": figures for name, figures in ahead.items()}
    common.table(
        "Proposals, microseconds, called from Python",
        ("what", "median", "95%", "calls"),
        [(name, s["median_us"], s["p95_us"], s["calls"]) for name, s in proposals.items()],
    )
    print(f"\nprior costs of {args.target.name} measured in {prior_s:.2f} s")
    report = {"decisions": by_case, "proposals": proposals, "prior_s": prior_s}
    common.write_json(args.json, {"settings": common.settings(args)} | report)


if __name__ == "__main__":
    main()
