"""One benchmark from its loaded runtime to its report: progress, what is kept when it ends early, the outputs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash_local import __version__
from dflash_local._native_loader import llama_cpp
from dflash_local.bench.compare import Comparison, Settings, make_tasks
from dflash_local.bench.local import note_memory, open_local
from dflash_local.bench.plot import draw
from dflash_local.bench.report import ReportError, Row, make_report, make_row, write_json, write_report_file
from dflash_local.runtime import device_name

if TYPE_CHECKING:
    from dflash_local.bench.peer import Peer
    from dflash_local.bench.suite import Prompt
    from dflash_local.pairs.resolve import Notify
    from dflash_local.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write, None: not wanted."""

    json: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The report, and the exception that ended the run early, if one did."""

    report: Row
    ended: BaseException | None


def run_bench(
    runtime: Runtime,
    prompts: Sequence[Prompt],
    suite: str,
    settings: Settings,
    peers: Sequence[Peer],
    outputs: Outputs,
    notify: Notify,
) -> Outcome:
    """Measures, keeping what is done on disk from prompt to prompt. Raises Error for what is wrong beforehand."""
    tasks = make_tasks(runtime, prompts, settings)
    head = describe(runtime, suite, settings, peers)
    rows: list[Row] = []
    ended: BaseException | None = None
    with open_local(runtime) as local, _progress() as step:
        comparison = Comparison(local, settings, tasks, peers, notify, step)
        step.total = comparison.n_steps
        note_memory(local, local.n_open, notify)
        try:
            for measured in comparison.measure():
                rows.append(make_row(measured))
                if outputs.json is not None:
                    report = make_report(head, rows, partial=True, errors=comparison.failed)
                    write_json(outputs.json, report)
        except (KeyboardInterrupt, RuntimeError, MemoryError, OSError) as error:
            ended = error
    report = make_report(head, rows, partial=ended is not None, errors=comparison.failed)
    try:
        if outputs.json is not None:
            write_json(outputs.json, report)
        if outputs.plot is not None and rows:
            write_report_file(outputs.plot, lambda path: draw(report, path))
    except ReportError as error:
        ended = ended or error
    return Outcome(report, ended)


def describe(runtime: Runtime, suite: str, settings: Settings, peers: Sequence[Peer]) -> Row:
    """What a report says of the machine, the pair and the settings; file names without their folders."""
    params = asdict(settings.params)
    drafter = runtime.pair.drafter
    return {
        "model": runtime.pair.target.name,
        "drafter": drafter.name if drafter is not None else runtime.drafter_name,
        "device": device_name() or processor_name(),
        "threads": runtime.tuning.n_threads,
        "build": f"dflash-local {__version__}, llama-cpp-python {llama_cpp.__version__}, "
        + llama_cpp.llama_print_system_info().decode("utf-8", "replace").strip(" |"),
        "suite": suite,
        "settings": {
            "temperature": params["temperature"],
            "top_k": params["top_k"],
            "top_p": params["top_p"],
            "min_p": params["min_p"],
            "seed": params["seed"],
            "repeat": settings.repeat,
            "max_tokens": settings.max_tokens or None,
            "draft_rows": "auto" if settings.draft_rows < 0 else settings.draft_rows,
            "baseline": "best" if settings.other_baseline else "same",
            "n_ctx": runtime.n_ctx,
            "tuning": runtime.tuning.note,
            "peers": {peer.label: {"url": peer.base, "model": peer.model} for peer in peers},
        },
    }


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The CPU's own name where the system tells it."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


class _Step:
    """Counts runs; shows them where there is a terminal."""

    def __init__(self, show: Callable[[int, int, str], None] | None = None) -> None:
        self.total = 0
        self._done = 0
        self._show = show

    def __call__(self, what: str) -> None:
        if self._show is not None:
            self._show(self._done, self.total, what)
        if not what.endswith(", oracle"):
            self._done += 1


@contextmanager
def _progress() -> Iterator[_Step]:
    if not sys.stderr.isatty():
        yield _Step()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    # Drawn between runs only: a refreshing thread would take time from what is measured.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("warming up", total=None)
        bar.refresh()

        def show(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what, refresh=True)

        yield _Step(show)


def peer_failures(report: Mapping[str, Any]) -> list[str]:
    """What the servers that were given up died of."""
    return list(report.get("peer_errors", {}).values())
