"""Proof by replay: every emitted id comes out again, and where a text leaves plain's, the row count is the reason.

    python benchmarks/proof.py [--draft-rows 7,3,auto] [--temperatures 0,0.8] [--seed 1] [--bare] [--json OUT]

`replayed`: ids that `Engine.replay` reproduces. `equal to plain`: texts identical to those of an engine without a
drafter. At the first divergence a bare llama.cpp context decodes the prefix, which is plain's too, token by token in
batches of two rows where draft rounds emitted it: `explained` counts where that gives the emitted token. `last alone`
counts where it is enough to decode only the prefix's last token in two rows, and all before it in one, as plain does.
`--bare` replays whole texts that way, so that the proof does not rest on the engine's own replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import common
from decoder import Decoder

AUTO = -1


def row_classes(rounds: Sequence[tuple[int, int]]) -> list[int]:
    """For each emitted token whether it came from a batch of one row (1) or of several (2)."""
    return [min(n_rows, 2) for n_rows, n_emitted in rounds for _ in range(n_emitted)]


def redecode(
    decoder: Decoder, prompt: Sequence[int], text: Sequence[int], classes: Sequence[int], chain: int
) -> list[int]:
    """What the target says after each prefix of `text`, prefix tokens forced; one token a batch, dummies removed."""
    decoder.prompt(prompt)
    said = [decoder.sample(chain)]
    for token, n_rows in zip(text, classes[1:], strict=False):
        decoder.decode([token] * n_rows, keep=1)
        said.append(decoder.sample(chain, 0))
    return said[: len(classes)]


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first token that differs, -1 where there is none. One text may be longer: that counts too."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return -1 if len(a) == len(b) else min(len(a), len(b))


def prove(
    engine: Any,
    decoder: Decoder,
    ids: Sequence[int],
    plain: Sequence[int],
    prompt: common.Prompt,
    draft_rows: int,
    temperature: float,
    seed: int,
    bare: bool,
) -> dict[str, Any]:
    """One run with its replay, and the explanation of its first divergence from plain."""
    with common.sampler(temperature, seed) as chain:
        text = common.run_engine(engine, decoder.model, ids, chain, prompt.max_tokens, draft_rows)
    stats, classes = engine.stats(), row_classes(engine.rounds())
    common.check_identity(stats)
    if len(classes) != len(text):
        raise AssertionError(f"{prompt.id}: rounds emitted {len(classes)} tokens, the text has {len(text)}")
    with common.sampler(temperature, seed) as chain:
        replay = engine.replay(chain)
    row: dict[str, Any] = {
        "id": prompt.id,
        "category": prompt.category,
        "draft_rows": "auto" if draft_rows == AUTO else draft_rows,
        "temperature": temperature,
        "tokens": replay["tokens"],
        "exact": replay["exact"],
        "tokens_per_round": common.tokens_per_round(stats),
        "draft_rounds": stats["draft_rounds"],
        "plain_rounds": stats["plain_rounds"],
        "divergence": first_difference(plain, text),
        "text": decoder.model.detokenize(text),
    }
    at = row["divergence"]
    if at >= 0:
        as_plain = [1] * at + [2]
        for key, rule in (("explained", classes[: at + 1]), ("explained_by_last_alone", as_plain)):
            with common.sampler(temperature, seed) as chain:
                row[key] = redecode(decoder, ids, text[:at], rule, chain)[at] == text[at]
        row["margin"] = margin(decoder, ids, text[:at], plain[at], text[at]) if temperature == 0 else math.nan
    if bare:
        with common.sampler(temperature, seed) as chain:
            said = redecode(decoder, ids, text, classes, chain)
        row["bare_exact"] = sum(a == b for a, b in zip(said, text, strict=True))
    return row


def margin(decoder: Decoder, prompt: Sequence[int], prefix: Sequence[int], plain: int, other: int) -> float:
    """By how much plain's logit is above the other's, in a batch of one row."""
    decoder.prompt(prompt)
    for token in prefix:
        decoder.decode([token])
    logits = decoder.logits(0)
    return float(logits[plain] - logits[other])


def summarize(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums of a group of runs."""
    apart = [r for r in rows if r["divergence"] >= 0]
    margins = [r["margin"] for r in apart if not math.isnan(r["margin"])]
    out = {
        "prompts": len(rows),
        "tokens": sum(r["tokens"] for r in rows),
        "exact": sum(r["exact"] for r in rows),
        "identical_share": 1 - len(apart) / len(rows),
        "divergences": len(apart),
        "explained": sum(r["explained"] for r in apart),
        "explained_by_last_alone": sum(r["explained_by_last_alone"] for r in apart),
        "largest_margin": max(margins, default=math.nan),
    }
    return out | {"bare_exact": sum(r["bare_exact"] for r in rows)} if "bare_exact" in rows[0] else out


def percent(n: int, total: int) -> str:
    """Share for a table, rounded down so that only all of them is 100%."""
    return f"{math.floor(1e4 * n / total) / 100:.2f}%"


def main() -> None:
    """Runs every prompt in every setting and prints one line a setting."""
    options = common.parser(__doc__)
    options.add_argument("--draft-rows", default="7,3,auto")
    options.add_argument("--temperatures", default="0,0.8")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--bare", action="store_true", help="replay all texts by a bare llama.cpp context too")
    args, prompts = common.parse(options)
    widths = [AUTO if w == "auto" else int(w) for w in args.draft_rows.split(",")]
    rows = run(args, prompts, widths, [float(t) for t in args.temperatures.split(",")])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['temperature']:g} / {row['draft_rows']}", []).append(row)
    summary = {name: summarize(group) for name, group in groups.items()}
    common.table(
        f"Proof by replay, {args.target.name}, {len(prompts)} prompts",
        (
            "temperature / rows",
            "ids",
            "replayed",
            "bare",
            "equal to plain",
            "divergences",
            "explained",
            "last alone",
            "margin <=",
        ),
        [
            (
                name,
                s["tokens"],
                percent(s["exact"], s["tokens"]),
                percent(s["bare_exact"], s["tokens"]) if args.bare else "-",
                f"{100 * s['identical_share']:.0f}%",
                s["divergences"],
                s["explained"],
                s["explained_by_last_alone"],
                s["largest_margin"],
            )
            for name, s in summary.items()
        ],
    )
    common.write_json(args.json, {"settings": common.settings(args), "summary": summary, "rows": rows})
    if any(s["exact"] != s["tokens"] or s["explained"] != s["divergences"] for s in summary.values()):
        raise SystemExit("the proof failed: some ids were not replayed, or a divergence is not explained")


def run(
    args: Any, prompts: Sequence[common.Prompt], widths: Sequence[int], temperatures: Sequence[float]
) -> list[dict[str, Any]]:
    """All runs, one row each."""
    rows = []
    with common.Model(args.target) as model:
        params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
        with (
            common.open_engine(model, params) as bare,
            common.open_engine(model, params, args.drafter) as engine,
            Decoder(model, params) as decoder,
        ):
            for i, prompt in enumerate(prompts):
                common.progress(i, len(prompts), prompt.id)
                ids = model.chat_ids(prompt)
                for temperature in temperatures:
                    with common.sampler(temperature, args.seed) as chain:
                        plain = common.run_engine(bare, model, ids, chain, prompt.max_tokens, 0)
                    rows += [
                        prove(engine, decoder, ids, plain, prompt, width, temperature, args.seed, args.bare)
                        for width in widths
                    ]
    common.progress(len(prompts), len(prompts), "proved")
    return rows


if __name__ == "__main__":
    main()
