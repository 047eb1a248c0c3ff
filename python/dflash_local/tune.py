"""Chooses threads and flash attention on a CPU by timing the attention operation alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FLASH_AUTO, FLASH_OFF, FLASH_ON = -1, 0, 1  # enum llama_flash_attn_type
ROWS = (1, 4)  # rows of a plain round and of a usual draft round
TYPICAL_CELLS = 512
BUDGET_MS = 450.0
MIN_BUDGET_MS = 1.0
_UNQUANTIZED = frozenset({0, 1, 30})  # GGML_TYPE_F32, F16, BF16
_CLEARLY_FASTER = 0.8
_FASTER = 0.95


class TimeAttention(Protocol):
    def __call__(
        self,
        n_head: int,
        n_head_kv: int,
        head_dim: int,
        n_kv: int,
        n_rows: int,
        flash: bool,
        n_threads: int,
        budget_ms: float,
    ) -> float: ...


@dataclass(frozen=True, slots=True)
class HeadShape:
    """Attention heads of a target; n_head 0 where it has no attention."""

    n_head: int
    n_head_kv: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """What to put into llama_context_params, and why."""

    n_threads: int
    flash_attn_type: int
    note: str


def quota_cores(cpu_max: str) -> float | None:
    """Cores that the text of a cgroup's cpu.max grants, None for no limit."""
    fields = cpu_max.split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    quota, period = float(fields[0]), float(fields[1])
    return quota / period if quota > 0 and period > 0 else None


def _cgroup_quota() -> float | None:
    found: list[float] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder = Path("/sys/fs/cgroup", path.lstrip("/"))
            texts = [folder_up / "cpu.max" for folder_up in (folder, *folder.parents) if folder_up != Path("/")]
        elif "cpu" in controllers.split(","):
            texts = [Path("/sys/fs/cgroup/cpu", path.lstrip("/")), Path("/sys/fs/cgroup/cpu")]
        else:
            continue
        for file in texts:
            try:
                if controllers == "":
                    text = file.read_text()
                else:
                    text = f"{(file / 'cpu.cfs_quota_us').read_text()} {(file / 'cpu.cfs_period_us').read_text()}"
            except OSError:
                continue
            quota = quota_cores(text)
            if quota is not None:
                found.append(quota)
    return min(found, default=None)


def _physical(cpus: set[int]) -> int:
    """Distinct cores among these logical CPUs, or their number where the kernel does not say."""
    cores: set[tuple[str, str]] = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            return len(cpus)
    return len(cores)


def available_cores() -> int:
    """Physical cores that this process may use: its affinity and its cgroup's quota, at least 1."""
    cores = _physical(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    if quota is not None:
        cores = min(cores, int(quota + 0.5))
    return max(cores, 1)


def thread_candidates(cores: int) -> list[int]:
    """Thread counts worth timing, most first."""
    return [cores, cores // 2] if cores > 1 else [1]


def choose_threads(ms_by_threads: Mapping[int, float]) -> int:
    """The most threads, unless fewer are clearly faster: then something else keeps those cores busy.

    Attention alone is too small to show what threads gain in the rest of a layer, so a small lead does not count."""
    best = max(ms_by_threads)
    for threads in sorted(ms_by_threads, reverse=True)[1:]:
        if ms_by_threads[threads] < _CLEARLY_FASTER * ms_by_threads[best]:
            best = threads
    return best


def choose_flash(off_ms: Mapping[int, float], on_ms: Mapping[int, float]) -> bool:
    """Flash attention? Both arguments: milliseconds by rows of the batch. Off unless on is faster over all widths."""
    return sum(on_ms.values()) < _FASTER * sum(off_ms[rows] for rows in on_ms)


def tune(
    shape: HeadShape,
    n_ctx: int,
    time_attention: TimeAttention,
    *,
    n_threads: int | None = None,
    flash_attn: bool | None = None,
    type_v: int | None = None,
    gpu: bool = False,
    fast_flash: bool = False,
    cores: int | None = None,
) -> Tuning:
    """Measures what was not given, for half a second at most. `fast_flash`: flash attention is our own kernel.

    Raises ValueError on values that exclude each other."""
    if n_threads is not None and n_threads < 1:
        raise ValueError(f"n_threads is {n_threads}, expected 1 or more")
    quantized_v = type_v is not None and type_v not in _UNQUANTIZED
    if quantized_v and flash_attn is False:
        raise ValueError("flash attention off and a quantized V cache exclude each other: llama.cpp needs it on there")
    candidates = [n_threads] if n_threads is not None else thread_candidates(cores or available_cores())
    usable = shape.n_head > 0 and shape.n_head_kv > 0 and shape.head_dim > 0
    n_kv = min(TYPICAL_CELLS, n_ctx) if n_ctx > 0 else TYPICAL_CELLS
    end = time.monotonic() + BUDGET_MS / 1e3

    def measure(rows: int, flash: bool, threads: int, share: int) -> float:
        budget = max((end - time.monotonic()) * 1e3 / share, MIN_BUDGET_MS)
        return time_attention(shape.n_head, shape.n_head_kv, shape.head_dim, n_kv, rows, flash, threads, budget)

    threads, why = candidates[0], "given" if n_threads is not None else "all cores"
    if len(candidates) > 1 and usable and not gpu:
        times = {count: measure(ROWS[-1], False, count, 2 * len(ROWS) + 2) for count in candidates}
        threads = choose_threads(times)
        why = "timed " + ", ".join(f"{count}: {ms:.3f} ms" for count, ms in times.items())
    note = f"{threads} threads ({why})"
    if flash_attn is not None:
        return Tuning(threads, FLASH_ON if flash_attn else FLASH_OFF, f"{note}, flash attention as given")
    if fast_flash:
        return Tuning(threads, FLASH_ON, f"{note}, flash attention on (our CPU kernels)")
    if quantized_v:
        return Tuning(threads, FLASH_ON, f"{note}, flash attention on (quantized V)")
    if gpu or not usable:
        return Tuning(threads, FLASH_AUTO, f"{note}, flash attention left to llama.cpp")
    off: dict[int, float] = {}
    on: dict[int, float] = {}
    for left, rows in zip((4, 2), ROWS, strict=True):
        if time.monotonic() >= end:
            return Tuning(threads, FLASH_OFF, f"{note}, flash attention off (the machine is too busy to time it)")
        off[rows] = measure(rows, False, threads, left)
        on[rows] = measure(rows, True, threads, left - 1)
    flash = choose_flash(off, on)
    timed = ", ".join(f"{rows} rows: off {off[rows]:.3f} ms, on {on[rows]:.3f} ms" for rows in ROWS)
    return Tuning(
        threads, FLASH_ON if flash else FLASH_OFF, f"{note}, flash attention {'on' if flash else 'off'} ({timed})"
    )
