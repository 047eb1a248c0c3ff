"""`dflash-local bench`: plain against drafting on a suite of prompts, and whatever else is to stand beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_local._errors import Unsupported
from dflash_local.bench.compare import Settings
from dflash_local.bench.datasets import load_suite
from dflash_local.bench.peer import Peer
from dflash_local.bench.plot import import_matplotlib
from dflash_local.bench.report import check_writable
from dflash_local.bench.session import Outputs, peer_failures, run_bench
from dflash_local.bench.suite import choose
from dflash_local.cli.run import FAILED, tell

if TYPE_CHECKING:
    from dflash_local.runtime import Runtime


@dataclass(frozen=True, slots=True)
class BenchOptions:
    settings: Settings
    suite: str
    categories: Sequence[str]
    limit: int
    peers: Sequence[tuple[str, str]]  # name, base address
    peer_model: str
    peer_timeout: float
    outputs: Outputs


@contextmanager
def _open_peers(options: BenchOptions) -> Iterator[list[Peer]]:
    peers: list[Peer] = []
    try:
        for name, base in options.peers:
            peers.append(Peer(name, base, options.peer_model, options.peer_timeout))
            peers[-1].connect()
        yield peers
    finally:
        for peer in peers:
            peer.close()


def run_bench_command(open_runtime: Callable[[], Runtime], options: BenchOptions) -> int:
    """Checks all that can be checked before the model is loaded, measures, prints; returns the exit code."""
    prompts = choose(load_suite(options.suite), options.categories, options.limit)
    for path, what in ((options.outputs.json, "--json"), (options.outputs.plot, "--plot")):
        if path is not None:
            check_writable(path, what)
    if options.outputs.plot is not None:
        import_matplotlib()
    with _open_peers(options) as peers, open_runtime() as runtime:
        if runtime.draft_status != "engaged":
            raise Unsupported(f"there is nothing to compare plain decoding with: {runtime.draft_status}", "draft")
        if options.settings.sweep and runtime.pair.drafter is None:
            raise Unsupported("--sweep goes over the widths of a drafter's block, and there is no drafter", "draft")
        suite = options.suite if not Path(options.suite).is_file() else Path(options.suite).name
        outcome = run_bench(runtime, prompts, suite, options.settings, peers, options.outputs, tell)
    _print(outcome.report)
    if outcome.ended is not None:
        raise outcome.ended
    failures = peer_failures(outcome.report)
    for failure in failures:
        tell(f"dflash-local: {failure}")
    return FAILED if failures else 0


def _print(report: dict[str, object]) -> None:
    from rich.console import Console

    from dflash_local.bench.table import print_report

    # Piped tables are not folded.
    print_report(report, Console(width=None if sys.stdout.isatty() else 240, highlight=False))
