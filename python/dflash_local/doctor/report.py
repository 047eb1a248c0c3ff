"""Everything the doctor measured, as plain data and as the object of --json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dflash_local.doctor import estimate
from dflash_local.doctor.estimate import Choice
from dflash_local.doctor.machine import Machine

BREAK_EVEN_ROWS = (2, 4, 8)
COPY_ROWS = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Target:
    name: str
    architecture: str
    size: int  # bytes
    tensor_bytes: Mapping[str, int]  # by type
    n_ctx: int
    thinks: bool  # its chat template knows of thinking


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    name: str
    block_size: int
    device: str
    thinks: bool | None  # None: the file does not say


@dataclass(frozen=True, slots=True)
class AttentionTime:
    """The attention of all layers, off and on: flash attention."""

    cells: int
    rows: int
    off_ms: float
    on_ms: float


@dataclass(frozen=True, slots=True)
class ThreadTime:
    threads: int
    one_ms: float  # a batch of one row
    four_ms: float  # of four rows


@dataclass(frozen=True, slots=True)
class Kernels:
    """CPU kernels; milliseconds of one product of 8 rows, None where ours are not there."""

    ours: bool  # in use
    ours_ms: float | None = None
    ggml_ms: float | None = None


@dataclass(frozen=True, slots=True)
class TypeTime:
    """One multiplication by weights of a type, all types of the same shape."""

    name: str
    share: float  # of the target's bytes, 0: not in the file
    repacked: bool
    ms: Mapping[int, float]  # by rows


@dataclass(frozen=True, slots=True)
class Curve:
    cells: int
    ms: Mapping[int, float]  # a target batch, by rows


@dataclass(frozen=True, slots=True)
class Trial:
    """One built-in prompt at fixed rows."""

    category: str
    rounds: int
    accepted: tuple[int, ...]  # rounds by slot
    tokens: int
    ms: float


@dataclass(frozen=True, slots=True)
class Report:
    machine: Machine
    build: str
    devices: tuple[str, ...]
    target: Target
    drafter: DrafterFacts | None
    draft_status: str
    on_gpu: bool
    threads: int  # in use
    flash: str  # in use: on, off or auto
    tuning: str
    kernels: Kernels
    attention: tuple[AttentionTime, ...]
    thread_times: tuple[ThreadTime, ...]
    types: tuple[TypeTime, ...]
    curves: tuple[Curve, ...]  # by ascending cells
    skipped: tuple[str, ...]  # what was left out, and why
    draft_ms: float  # 0 without a drafter
    rest_ms: float
    trials: tuple[Trial, ...]
    seconds: float = 0.0
    advice: tuple[str, ...] = field(default=())

    @property
    def curve(self) -> Curve:
        """The one that estimates rest on: the shortest context measured."""
        return self.curves[0]

    def reached(self, trial: Trial) -> list[float]:
        return estimate.reach(trial.accepted, trial.rounds)

    def choice(self, trial: Trial) -> Choice:
        """The best width for a text like this one."""
        return estimate.best(self.curve.ms, self.draft_ms, self.rest_ms, self.reached(trial))

    def break_evens(self, curve: Curve) -> dict[int, float]:
        """Tokens per round that pay, by rows; without a drafter those of copies."""
        return {
            rows: estimate.break_even(curve.ms, self.draft_ms, rows) for rows in BREAK_EVEN_ROWS if rows in curve.ms
        }

    def copies(self) -> dict[int, float]:
        """Speed while copies are right, by rows."""
        ms = self.curve.ms
        return {rows: estimate.copy_speedup(ms, self.rest_ms, rows) for rows in COPY_ROWS if rows in ms}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value


def as_object(report: Report) -> dict[str, Any]:
    """The object of --json; times in milliseconds, keys of tables are rows."""
    found = asdict(report)
    found["trials"] = [
        {
            **asdict(trial),
            "reach": report.reached(trial),
            "tokens_per_round": estimate.tokens_per_round(report.reached(trial), len(trial.accepted) + 1),
            "expected": asdict(report.choice(trial)),
        }
        for trial in report.trials
    ]
    found["break_even"] = {str(curve.cells): report.break_evens(curve) for curve in report.curves}
    found["copies"] = report.copies()
    return {key: _rounded(value) for key, value in found.items()}
