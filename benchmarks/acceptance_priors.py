"""Learns the planner's priors of acceptance for a pair and writes a copy of the drafter that holds them.

    python benchmarks/acceptance_priors.py --prompts benchmarks/dev_prompts.jsonl --out drafter-with-priors.gguf
        [--temperatures 0,0.8] [--passes 4] [--json OUT]

The target answers each prompt in rounds of the drafter's full width. At every token of the answers the drafter drafts
its whole block, which is held against the text as the planner holds it: slot by slot, as far as the likeliest path
goes. The calibration starts from the drafter's own word, or the priors of the pass before, and learns online; the
priors are its mean weights over a pass. Printed: log-loss per judged candidate of the drafter's own probabilities, of
the neutral start and of the priors, learning on through all answers, and starting anew with each (`alone`), as in a
program that answers once; `held out` on every second prompt with the priors of the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import numpy.typing as npt

from dflash_local.pairs.priors import write_priors


@dataclass(frozen=True)
class Block:
    """One draft and what the target said: candidates [slots, top_k], as many tokens as may be judged."""

    ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    said: list[int]


Answers = Sequence[Sequence[Block]]


def collect(args: Any, model: common.Model, prompts: Sequence[common.Prompt]) -> list[list[Block]]:
    """By answer the blocks at each of its tokens."""
    from dflash_local import _native

    drafter = _native.Drafter(str(args.drafter), str(args.target), model.handle, n_threads=args.threads)
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    answers = []
    with common.open_engine(model, params, args.drafter) as engine:
        for i, (prompt, temperature) in enumerate((p, t) for p in prompts for t in args.temperatures):
            common.progress(i, len(prompts) * len(args.temperatures), prompt.id)
            ids = model.chat_ids(prompt)
            with common.sampler(temperature, args.seed) as chain:
                text = common.run_engine(engine, model, ids, chain, prompt.max_tokens, drafter.block_size - 1)
            features = taps(engine, [*ids, *text[:-1]])
            blocks = []
            for at, anchor in enumerate(text[:-1]):
                found, log_probs = drafter.propose(0, features[: len(ids) + at], anchor)
                blocks.append(Block(found, log_probs, judged(found, text[at + 1 :])))
            answers.append(blocks)
    common.progress(len(answers), len(answers), "drafted")
    return answers


def taps(engine: Any, tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Features of all tokens, [n, feature_size]."""
    engine.reset()
    found = []
    for start in range(0, len(tokens), engine.n_batch):
        engine.eval(list(tokens[start : start + engine.n_batch]))
        found.append(engine.taps())
    return np.concatenate(found)


def judged(ids: npt.NDArray[np.int32], text: Sequence[int]) -> list[int]:
    """What was said in the slots whose path before is the likeliest one, the first miss included."""
    said: list[int] = []
    for slot, token in zip(ids, text, strict=False):
        said.append(int(token))
        if slot[0] != token:
            break
    return said


def learn(
    answers: Sequence[Sequence[Block]], priors: Sequence[float] | None, n_slots: int
) -> tuple[list[float], float]:
    """One pass from these priors (None: neutral): mean weights over it, and the log-loss of the best candidates as
    they were predicted before each was judged."""
    from dflash_local import _native

    calibration = _native.DraftAcceptance()
    if priors is not None:
        calibration.set_priors(list(priors))
    losses: list[float] = []
    weights: list[list[float]] = []
    for blocks in answers:
        for block in blocks:
            top_k = block.ids.shape[1]
            probs = calibration.probs(block.ids, block.log_probs)
            for slot, token in enumerate(block.said):
                losses.append(loss(probs[slot * top_k], bool(block.ids[slot, 0] == token)))
                calibration.observe(block.ids, block.log_probs, slot, token)
            weights.append(padded(calibration.priors(), n_slots))
    return ([statistics.fmean(column) for column in zip(*weights, strict=True)] if weights else []), mean(losses)


def padded(weights: Sequence[float], n_slots: int) -> list[float]:
    """The same for all slots: those not seen yet have no weights of their own."""
    return [weights[0], float(n_slots), *weights[2:], *[0.0] * (8 + 2 * n_slots - len(weights))]


def loss(prob: float, right: bool) -> float:
    """Nats."""
    return -math.log(max(1e-6, prob if right else 1.0 - prob))


def mean(values: Sequence[float]) -> float:
    """nan of none."""
    return statistics.fmean(values) if values else math.nan


def own_loss(answers: Answers) -> float:
    """Log-loss of the drafter's own probabilities of its best candidates."""
    return mean(
        [
            loss(float(np.exp(block.log_probs[slot, 0])), bool(block.ids[slot, 0] == token))
            for blocks in answers
            for block in blocks
            for slot, token in enumerate(block.said)
        ]
    )


def losses(answers: Answers, priors: Sequence[float], n_slots: int) -> list[float]:
    """Own, neutral, with priors, the two again with a fresh start for each answer."""
    judged_n = [sum(len(block.said) for block in blocks) for blocks in answers]

    def alone(start: Sequence[float] | None) -> float:
        each = [learn([blocks], start, n_slots)[1] * n for blocks, n in zip(answers, judged_n, strict=True) if n]
        return sum(each) / sum(judged_n) if each else math.nan

    starts = (None, priors)
    return [own_loss(answers), *(learn(answers, p, n_slots)[1] for p in starts), *(alone(p) for p in starts)]


def fit(answers: Answers, n_slots: int, passes: int) -> list[float]:
    """Priors after some passes over the answers."""
    priors: list[float] | None = None
    for _ in range(passes):
        priors, _ = learn(answers, priors, n_slots)
    return priors or []


def main() -> None:
    """Learns, prints, writes."""
    options = common.parser(__doc__)
    options.add_argument("--out", type=Path, required=True, help="where the copy of the drafter goes")
    options.add_argument("--temperatures", type=lambda text: [float(t) for t in text.split(",")], default=[0.0, 0.8])
    options.add_argument("--passes", type=common.positive, default=4)
    options.add_argument("--seed", type=int, default=1)
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        answers = collect(args, model, prompts)
    n_blocks = sum(map(len, answers))
    if not n_blocks:
        raise SystemExit("no answer is long enough to learn from")
    n_slots = max(len(block.ids) for blocks in answers for block in blocks)
    priors = fit(answers, n_slots, args.passes)
    step = 2 * len(args.temperatures)
    held = [a for i, a in enumerate(answers) if i % step < step // 2]
    rest = [a for i, a in enumerate(answers) if i % step >= step // 2]
    lines: list[tuple[Any, ...]] = [("all", *losses(answers, priors, n_slots))]
    if any(rest):
        lines.append(("held out", *losses(held, fit(rest, n_slots, args.passes), n_slots)))
    title = f"Log-loss of the best candidate, {args.drafter.name}, {n_blocks} blocks of {len(answers)} answers"
    header = ("answers", "drafter's own", "neutral", "with priors", "neutral, alone", "with priors, alone")
    common.table(title, header, [(name, *(f"{loss:.4f}" for loss in figures)) for name, *figures in lines])
    write_priors(args.drafter, args.out, priors)
    print(f"\npriors of {n_slots} slots written: {args.out}")
    report = {"priors": priors, "losses": lines, "blocks": n_blocks}
    common.write_json(args.json, {"settings": common.settings(args)} | report)


if __name__ == "__main__":
    main()
