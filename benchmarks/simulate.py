"""Tokens per round by offline simulation, without the engine's round loop.

    python benchmarks/simulate.py [--target T] [--prompts F] [--widths 1,3,7] [--rows 1] [--json OUT]

The target writes its own greedy text, each token from a batch of `--rows` rows, with its taps. Then, for each round,
the drafter gets the taps of all positions before the anchor and proposes one block; the round advances by the number
of leading top-1 tokens that equal the text, plus one. The prompt's first token is no round. With `--rows 1` the text
is what plain decoding writes; with `--rows 2` it is what rounds of several rows write (other kernels, other texts), so
that is the one to hold against a run of the engine with fixed widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Protocol

import common
import numpy as np
import numpy.typing as npt
from decoder import Decoder, Floats

GREEDY = 0.0


class Proposer(Protocol):
    """The part of `_native.Drafter` that is simulated."""

    def propose(self, pos0: int, taps: Floats, anchor: int) -> tuple[npt.NDArray[np.int32], Floats]: ...


@dataclass(frozen=True)
class Written:
    """A text of the target: ids after the prompt, and the taps of every position but the last, [n, feature_size]."""

    n_prompt: int
    max_tokens: int
    ids: list[int]
    taps: Floats


def write_text(decoder: Decoder, prompt: Sequence[int], max_tokens: int, n_rows: int) -> Written:
    """The target's greedy text, every token after the first from a batch of n_rows rows (dummies are removed)."""
    with common.sampler(GREEDY) as chain:
        taps = [decoder.prompt(prompt)]
        ids = [decoder.sample(chain)]
        while len(ids) < max_tokens and not decoder.model.is_eog(ids[-1]):
            taps.append(decoder.decode([ids[-1]] * n_rows, keep=1))
            ids.append(decoder.sample(chain, 0))
    return Written(len(prompt), max_tokens, ids, np.concatenate(taps))


def draft(text: Written, drafter: Proposer, at: int) -> list[int]:
    """The top-1 chain of the block whose anchor is text.ids[at]."""
    ids, _ = drafter.propose(0, text.taps[: text.n_prompt + at], text.ids[at])
    return [int(i) for i in ids[:, 0]]


def accepted(text: Written, chains: Callable[[int], list[int]], width: int) -> list[int]:
    """Accepted tokens of each draft round. A round's last token is emitted, never accepted; where the limit leaves room
    for one token only, there is no draft."""
    counts, at = [], 0
    while at + 1 < len(text.ids) and text.max_tokens - at > 2:
        n, left = 0, text.ids[at + 1 :]
        chain = chains(at)[: min(width, len(left) - 1)]
        while n < len(chain) and chain[n] == left[n]:
            n += 1
        counts.append(n)
        at += n + 1
    return counts


def simulate(
    decoder: Decoder, drafter: Proposer, prompts: Sequence[common.Prompt], widths: Sequence[int], n_rows: int
) -> list[dict[str, Any]]:
    """One row a prompt: tokens written, and by width rounds and accepted tokens."""
    rows = []
    for i, prompt in enumerate(prompts):
        common.progress(i, len(prompts), prompt.id)
        text = write_text(decoder, decoder.model.chat_ids(prompt), prompt.max_tokens, n_rows)
        chains = cache(partial(draft, text, drafter))
        counts = {width: accepted(text, chains, width) for width in widths}
        rows.append(
            {
                "id": prompt.id,
                "category": prompt.category,
                "predicted_n": len(text.ids),
                "rounds": {str(width): len(n) for width, n in counts.items()},
                "accepted": {str(width): sum(n) for width, n in counts.items()},
            }
        )
    common.progress(len(prompts), len(prompts), "simulated")
    return rows


def mean(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Tokens per round of a group of rows by width, over all its rounds."""
    out = {}
    for width in rows[0]["rounds"]:
        n_rounds = sum(r["rounds"][width] for r in rows)
        out[width] = 1 + sum(r["accepted"][width] for r in rows) / n_rounds if n_rounds else math.nan
    return out


def run(
    model: common.Model, args: Any, prompts: Sequence[common.Prompt], widths: Sequence[int], n_rows: int
) -> list[dict[str, Any]]:
    """Loads the drafter, opens a tapped context and simulates."""
    from dflash_local import _native

    taps = _native.inspect(str(args.drafter))["tap_inputs"]
    drafter = _native.Drafter(str(args.drafter), str(args.target), model.handle, n_threads=args.threads)
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    with Decoder(model, params, taps) as decoder:
        return simulate(decoder, drafter, prompts, widths, n_rows)


def main() -> None:
    """Simulates and prints by category."""
    options = common.parser(__doc__)
    options.add_argument("--widths", type=common.int_list, default=[1, 3, 7], help="drafted tokens verified each round")
    options.add_argument("--rows", type=int, default=1, help="rows of the batches that write the text")
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        rows = run(model, args, prompts, args.widths, args.rows)
    summary = common.by_category(rows, mean)
    common.table(
        f"Simulated tokens per round by drafted tokens, {args.target.name}, text from batches of {args.rows}",
        ("category", *(str(w) for w in args.widths)),
        [(name, *s.values()) for name, s in summary.items()],
    )
    report = {"settings": common.settings(args) | {"rows": args.rows}, "summary": summary, "rows": rows}
    common.write_json(args.json, report)


if __name__ == "__main__":
    main()
