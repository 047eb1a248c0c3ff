"""`dflash-local doctor`: measures this machine and this pair, and says what to expect and what to change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dflash_local.cli.inspect import PipeConsole, quantization
from dflash_local.cli.run import tell
from dflash_local.doctor.measure import examine
from dflash_local.doctor.report import Report, as_object
from dflash_local.doctor.words import advice, speed

if TYPE_CHECKING:
    from dflash_local.runtime import Runtime

_LABEL_WIDTH = 12
_CELL = 8
_HEAD = 34


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    machine, target = report.machine, report.target
    load = "" if machine.load is None else f", load {machine.load:.1f}"
    yield "machine", f"{machine.cpu}, {machine.cores} cores ({machine.logical} logical){load}"
    if machine.busy:
        yield "busy now", ", ".join(f"{p.name} ({p.pid}): {p.cores:.1f} cores" for p in machine.busy[:5])
    elif machine.busy is not None:
        yield "busy now", "no other program"
    yield "llama.cpp", f"{report.build}; devices {'; '.join(report.devices)}"
    size = quantization(target.tensor_bytes)
    yield "target", f"{target.name} ({target.architecture}, {target.size / 1e6:.0f} MB, {size}), context {target.n_ctx}"
    if report.drafter is None:
        yield "drafter", report.draft_status
    else:
        yield "drafter", f"{report.drafter.name}, blocks of {report.drafter.block_size}"
    yield "in use", report.tuning
    yield "CPU kernels", _kernels(report)


def _kernels(report: Report) -> str:
    found = report.kernels
    name = "ours" if found.ours else "those of ggml"
    if found.ours_ms is None or found.ggml_ms is None:
        return f"{name}; there are none of ours for this machine, or they are switched off"
    return f"{name}; a product of 8 rows takes {found.ours_ms:.2f} ms with ours, {found.ggml_ms:.2f} with those of ggml"


def _row(label: str, cells: Sequence[str]) -> str:
    return (f"  {label:<{_HEAD}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)).rstrip()


def _ms(values: Iterator[float] | Sequence[float]) -> list[str]:
    return [f"{value:.1f}" for value in values]


def _threads(report: Report) -> Iterator[str]:
    if report.thread_times:
        yield "Threads: ms of a target batch"
        yield _row("threads", [str(t.threads) for t in report.thread_times])
        yield _row("one row", _ms([t.one_ms for t in report.thread_times]))
        yield _row("four rows", _ms([t.four_ms for t in report.thread_times]))


def _attention(report: Report) -> Iterator[str]:
    if report.attention:
        yield "Attention: ms of all layers, by rows @ cells of context"
        yield _row("", [f"{t.rows}@{t.cells}" for t in report.attention])
        yield _row("flash attention off", _ms([t.off_ms for t in report.attention]))
        yield _row("flash attention on", _ms([t.on_ms for t in report.attention]))


def _types(report: Report) -> Iterator[str]:
    if report.types:
        rows = list(report.types[0].ms)
        yield "Weights: ms of one multiplication by rows, weights of one shape"
        yield _row("rows", [str(n) for n in rows])
        for found in report.types:
            note = f"{found.share:.0%} of the target" if found.share else "to compare"
            repacked = ", repacked" if found.repacked else ""
            yield _row(f"{found.name.upper()} ({note}{repacked})", _ms([found.ms[n] for n in rows]))


def _costs(report: Report) -> Iterator[str]:
    rows = sorted({n for curve in report.curves for n in curve.ms})
    yield "Rounds: ms of a target batch by rows"
    yield _row("rows", [str(n) for n in rows])
    for curve in report.curves:
        yield _row(f"{curve.cells} cells", [f"{curve.ms[n]:.1f}" if n in curve.ms else "" for n in rows])
    for why in report.skipped:
        yield f"  not measured: {why}"
    per_token = f"{report.rest_ms:.2f} ms a token for sampling"
    if report.drafter is None:
        yield f"  {per_token}"
        yield "Copies: speed against plain while every copied row is right"
        yield _row("rows", [str(n) for n in report.copies()])
        yield _row("speed", [speed(gain) for gain in report.copies().values()])
        return
    yield f"  a draft pass takes {report.draft_ms:.1f} ms, {per_token}"
    yield "Break-even: tokens per round from which drafting is faster than plain"
    widths = list(report.break_evens(report.curve))
    yield _row("rows", [str(n) for n in widths])
    for curve in report.curves:
        found = report.break_evens(curve)
        yield _row(f"{curve.cells} cells", [f"{found[n]:.2f}" if n in found else "" for n in widths])


def _expected(report: Report) -> Iterator[str]:
    if not report.trials:
        return
    yield "Acceptance: share of rounds that reach a slot (built-in prompts, greedy), and what to expect"
    slots = max(len(trial.accepted) for trial in report.trials)
    yield _row("slot", [*(str(i + 1) for i in range(slots)), "rows", "tokens", "speed"])
    for trial in report.trials:
        choice = report.choice(trial)
        shares = [f"{share:.0%}" for share in report.reached(trial)]
        end = [str(choice.rows), f"{choice.tokens_per_round:.2f}", speed(choice.speedup)]
        yield _row(trial.category, [*shares, *[""] * (slots - len(shares)), *end])
    yield "  rows: the best width, 1 is plain decoding; tokens: per round at that width; speed: against plain"


def lines(report: Report) -> Iterator[str]:
    """The whole report as text."""
    for label, value in _facts(report):
        yield f"{label:<{_LABEL_WIDTH}}{value}"
    for section in (_threads, _attention, _types, _costs, _expected):
        block = list(section(report))
        if block:
            yield ""
            yield from block
    yield ""
    yield "Do this"
    for sentence in report.advice:
        yield f"- {sentence}"
    yield f"(measured in {report.seconds:.0f} s)"


def run_doctor(runtime: Runtime, *, on_gpu: bool, as_json: bool, verbose: bool) -> int:
    """Measures, prints, and returns the exit code. `verbose`: tells each step on stderr."""
    with ExitStack() as stack:
        status = None
        if sys.stderr.isatty() and not verbose:
            status = stack.enter_context(Console(stderr=True).status("measuring"))

        def progress(what: str) -> None:
            if verbose:
                tell(f"measuring: {what}")
            elif status is not None:
                status.update(f"measuring: {what}")

        report = examine(runtime, on_gpu=on_gpu, progress=progress)
    report = replace(report, advice=advice(report))
    console = PipeConsole(highlight=False, emoji=False)
    if as_json:
        console.print(Text(json.dumps(as_object(report), indent=2, ensure_ascii=False)), soft_wrap=True)
    else:
        for line in lines(report):
            console.print(Text(line), soft_wrap=True)
    return 0
