"""Cores, load and the other programs that keep cores busy, as far as the system tells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dflash_local.tune import available_cores

_PROC = Path("/proc")
_WATCH_SECONDS = 0.5
_BUSY_CORES = 0.2


@dataclass(frozen=True, slots=True)
class BusyProcess:
    pid: int
    name: str
    cores: float  # kept busy, on average


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int  # physical, that this process may use
    logical: int
    load: float | None  # processes that ran or waited over the last minute
    busy: tuple[BusyProcess, ...] | None  # other processes; None where the system does not tell

    @property
    def busy_cores(self) -> float:
        return sum(process.cores for process in self.busy or ())


def parse_stat(text: str) -> tuple[str, int] | None:
    """Name and CPU ticks (own, user and system) from the text of /proc/PID/stat."""
    # The name stands in parentheses and may hold anything, parentheses and blanks included.
    start, end = text.find("("), text.rfind(")")
    fields = text[end + 1 :].split()
    if start < 0 or end < start or len(fields) < 13:
        return None
    return text[start + 1 : end], int(fields[11]) + int(fields[12])


def _ticks(proc: Path) -> dict[int, tuple[str, int]]:
    found = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parsed = parse_stat((entry / "stat").read_text(errors="replace"))
        except OSError:
            continue  # ended meanwhile, or another user's
        if parsed is not None:
            found[int(entry.name)] = parsed
    return found


def busy_between(
    before: Mapping[int, tuple[str, int]], after: Mapping[int, tuple[str, int]], ticks: float, own: int
) -> tuple[BusyProcess, ...]:
    """Processes other than `own` that kept a fifth of a core busy or more, the busiest first. `ticks`: between both."""
    found = [
        BusyProcess(pid, name, (now - before[pid][1]) / ticks)
        for pid, (name, now) in after.items()
        if pid != own and pid in before and (now - before[pid][1]) / ticks >= _BUSY_CORES
    ]
    return tuple(sorted(found, key=lambda process: -process.cores))


def watch_processes(
    seconds: float = _WATCH_SECONDS, proc: Path = _PROC, sleep: Callable[[float], None] = time.sleep
) -> tuple[BusyProcess, ...] | None:
    """Other processes that are busy now; None where there is no /proc."""
    if not (proc / "self" / "stat").exists():
        return None
    start, before = time.monotonic(), _ticks(proc)
    sleep(seconds)
    elapsed = max(time.monotonic() - start, seconds)
    return busy_between(before, _ticks(proc), elapsed * os.sysconf("SC_CLK_TCK"), os.getpid())


def look_at(cpu: str) -> Machine:
    """This machine now; takes half a second where processes can be watched."""
    busy = watch_processes()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return Machine(cpu, available_cores(), os.cpu_count() or 1, load, busy)


def thread_counts(cores: int) -> list[int]:
    """Thread counts to measure: each up to eight, then in quarters."""
    if cores <= 8:
        return list(range(1, cores + 1))
    return sorted({1, 2, 4, *(max(1, cores * quarter // 4) for quarter in (1, 2, 3, 4))})
