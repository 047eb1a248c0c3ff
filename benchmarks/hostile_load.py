"""Drafting under a hostile load: a busy second process appears and goes, and no stretch of text may pay for drafting.

    python benchmarks/hostile_load.py [--category long] [--repeat 5] [--period 128] [--busy 1] [--same] [--json OUT]

The plain and the draft side (the planner decides) answer the same prompt and take turns of 16 tokens, so that both
meet the same load: none for `--period` tokens, then `--busy` processes that never rest for as many, and so on. For
every stretch of 64 tokens, 16 apart, the time of plain over that of drafting; the median over the repeats; the worst
of these by prompt, apart for stretches that both sides wrote in quiet, under load, and across a change. Every prompt
is asked for `--max-tokens` tokens (512; 0: as many as its suite says). Answers that end early have fewer stretches,
those below 64 tokens none. `--same` holds plain against plain: what the measure itself shows where there is nothing to
show.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import common

from dflash_local.bench.compare import Settings, make_tasks
from dflash_local.bench.local import TURN, Answer, LocalSide, open_local
from dflash_local.bench.runs import Task
from dflash_local.runtime import load_runtime
from dflash_local.sampling import SamplingParams

STRETCH, STEP = 64, 16  # tokens
KINDS = ("quiet", "loaded", "mixed")
BUSY = "import sys; print(flush=True)\nwhile True: pass"


class Load:
    """Processes that keep cores busy, started and stopped at will."""

    def __init__(self, n_processes: int) -> None:
        self._n = n_processes
        self._running: list[subprocess.Popen[str]] = []

    def switch(self, on: bool) -> None:
        """Returns when they run, or are gone."""
        if on == bool(self._running):
            return
        if on:
            for _ in range(self._n):
                command = [sys.executable, "-c", BUSY]
                # Ctrl-C at the terminal is for us, who end them.
                process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
                self._running.append(process)
            for process in self._running:
                assert process.stdout is not None
                process.stdout.readline()
            return
        for process in self._running:
            process.kill()
        while self._running:
            with self._running.pop() as process:
                process.wait()


@contextmanager
def load(n_processes: int) -> Iterator[Load]:
    """Stops them whatever happens."""
    found = Load(n_processes)
    try:
        yield found
    finally:
        found.switch(False)


class Clock:
    """Milliseconds at which a side had its tokens, the first one at 0, and whether it wrote them under load."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ms: list[float] = []
        self.loaded: list[bool] = []  # of each token but the first

    def note(self, answer: Answer, ms: float, loaded: bool) -> None:
        if not self.tokens or answer.n_tokens > self.tokens[-1]:
            self.loaded += [loaded] * (answer.n_tokens - (self.tokens[-1] if self.tokens else 1))
            self.tokens.append(answer.n_tokens)
            self.ms.append(ms)

    def at(self, token: int) -> float:
        """When `token` tokens were there; inside a round in proportion."""
        i = bisect_left(self.tokens, token)
        if i == 0:
            return 0.0
        share = (token - self.tokens[i - 1]) / (self.tokens[i] - self.tokens[i - 1])
        return self.ms[i - 1] + share * (self.ms[i] - self.ms[i - 1])


def answer_together(sides: Sequence[LocalSide], task: Task, busy: Load, period: int) -> list[Clock]:
    """Both answers by turns, the load switched between turns."""
    answers: list[Answer] = []
    clocks = [Clock() for _ in sides]
    try:
        answers += [Answer(side, task) for side in sides]
        for turn, end in enumerate(range(TURN, task.max_tokens + TURN, TURN)):
            loaded = (end - TURN) // period % 2 == 1
            busy.switch(loaded)
            order = list(zip(answers, clocks, sides, strict=True))
            for answer, clock, side in order if turn % 2 == 0 else order[::-1]:
                while not answer.done and answer.n_tokens < end:
                    answer.advance(answer.n_tokens + 1)
                    clock.note(answer, side.engine.stats()["predicted_ms"], loaded)
    finally:
        busy.switch(False)
        for answer in answers:
            answer.close()
    return clocks


def stretches(plain: Clock, draft: Clock) -> dict[tuple[str, int], float]:
    """Plain's time over drafting's of each stretch, by what load both sides wrote it under and its first token."""
    found = {}
    last = min(plain.tokens[-1], draft.tokens[-1])
    for start in range(1, last - STRETCH + 1, STEP):
        end = start + STRETCH
        loads = {*plain.loaded[start - 1 : end - 1], *draft.loaded[start - 1 : end - 1]}
        kind = "mixed" if len(loads) == 2 else KINDS[loads.pop()]
        found[kind, start] = (plain.at(end) - plain.at(start)) / (draft.at(end) - draft.at(start))
    return found


def medians(repeats: Sequence[Mapping[tuple[str, int], float]]) -> dict[tuple[str, int], float]:
    """Of each stretch over the repeats that have it under the same load in more than half of all."""
    keys = {key for repeat in repeats for key in repeat}
    groups = {key: [repeat[key] for repeat in repeats if key in repeat] for key in sorted(keys)}
    return {key: statistics.median(ratios) for key, ratios in groups.items() if 2 * len(ratios) > len(repeats)}


def worst(ratios: Mapping[tuple[str, int], float], kind: str) -> str:
    """The lowest ratio of a kind and where it starts."""
    found = [(ratio, start) for (name, start), ratio in ratios.items() if name == kind]
    return "{:.2f} at {}".format(*min(found)) if found else "-"


def run(args: Any, prompts: Sequence[common.Prompt]) -> list[dict[str, Any]]:
    """One row a prompt: every stretch's ratio by repeat, and the medians."""
    rows = []
    flash = None if args.flash == "auto" else args.flash == "on"
    options: dict[str, Any] = {"n_ctx": args.n_ctx, "n_threads": args.threads, "flash_attn": flash}
    settings = Settings(SamplingParams(temperature=0.0, seed=0), max_tokens=args.max_tokens)
    draft = "off" if args.same else args.drafter
    with load_runtime(args.target, draft, **options) as runtime, open_local(runtime) as local, load(args.busy) as busy:
        tasks = make_tasks(runtime, prompts, settings)
        sides = [local.plain("plain"), local.plain("again") if args.same else local.draft("draft")]
        answer_together(sides, replace(tasks[0], max_tokens=TURN), busy, args.period)
        for i, task in enumerate(tasks):
            common.progress(i, len(tasks), task.prompt.id)
            repeats, n_tokens = [], 0
            for repeat in range(args.repeat):
                order = sides if repeat % 2 == 0 else sides[::-1]
                clocks = dict(zip(order, answer_together(order, task, busy, args.period), strict=True))
                repeats.append(stretches(*(clocks[side] for side in sides)))
                n_tokens = clocks[sides[1]].tokens[-1]
            rows.append({"id": task.prompt.id, "tokens": n_tokens, "repeats": repeats, "medians": medians(repeats)})
    common.progress(len(tasks), len(tasks), "answered")
    return rows


def main() -> None:
    """Measures and prints."""
    options = common.parser(__doc__)
    options.set_defaults(max_tokens=512)
    options.add_argument("--repeat", type=common.positive, default=5)
    options.add_argument("--period", type=common.positive, default=128, help="tokens without load, then with it")
    options.add_argument("--busy", type=common.positive, default=1, help="processes")
    options.add_argument("--same", action="store_true", help="plain against plain: the noise of the measure")
    args, prompts = common.parse(options)
    rows = run(args, prompts)
    for row in rows:
        row["worst"] = {kind: worst(row["medians"], kind) for kind in KINDS}
    pair = "plain against plain" if args.same else "draft against plain"
    title = f"Worst stretch of {STRETCH} tokens, {pair}, {args.busy} busy, median of {args.repeat}"
    common.table(title, ("prompt", "tokens", *KINDS), [(r["id"], r["tokens"], *r["worst"].values()) for r in rows])
    every = [(key[0], ratio) for row in rows for key, ratio in row["medians"].items()]
    for kind in KINDS:
        ratios = sorted(ratio for name, ratio in every if name == kind)
        if ratios:
            below = sum(ratio < 0.9 for ratio in ratios)
            middle = statistics.median(ratios)
            print(f"{kind}: {len(ratios)} stretches, worst {ratios[0]:.2f}, median {middle:.2f}, {below} below 0.9")
    for row in rows:
        row["repeats"] = [{" ".join(map(str, key)): v for key, v in repeat.items()} for repeat in row["repeats"]]
        row["medians"] = {" ".join(map(str, key)): v for key, v in row["medians"].items()}
    common.write_json(args.json, {"settings": common.settings(args), "same": args.same, "rows": rows})


if __name__ == "__main__":
    main()
