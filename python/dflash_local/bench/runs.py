"""One measured answer, of whatever side, and what is asked of a side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dflash_local.bench.suite import Prompt
from dflash_local.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt as it is to be answered. `ids` are the prompt's tokens for the loaded target."""

    prompt: Prompt
    ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round as it was measured, times in milliseconds."""

    rows: int
    emitted: int
    target_ms: float
    draft_ms: float
    rest_ms: float
    source: str = "plain"  # what was drafted from: plain, copy, grammar, drafter
    nodes: tuple[int, ...] = ()  # verified at depths 1, 2, ...

    @property
    def ms(self) -> float:
        return self.target_ms + self.draft_ms + self.rest_ms


@dataclass(frozen=True, slots=True)
class Run:
    """One answer. Speeds leave out the prompt and the first token, which comes from the prompt's batch."""

    predicted_n: int
    predicted_ms: float
    prompt_ms: float | None = None  # None where a server does not tell
    tokens: tuple[int, ...] | None = None  # None: a server gives text only
    text: str = ""
    finish_reason: str = ""
    status: str = ""
    draft_rounds: int | None = None
    plain_rounds: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    accepted_per_slot: tuple[int, ...] = ()
    rounds: tuple[Round, ...] = ()

    @property
    def tps(self) -> float | None:
        """Tokens per second, None for an answer of one token."""
        if self.predicted_n < 2 or self.predicted_ms <= 0:
            return None
        return 1e3 * (self.predicted_n - 1) / self.predicted_ms

    @property
    def whole_tps(self) -> float | None:
        """The same with the time of the prompt."""
        if self.prompt_ms is None or self.prompt_ms + self.predicted_ms <= 0:
            return None
        return 1e3 * self.predicted_n / (self.prompt_ms + self.predicted_ms)


class Side(Protocol):
    """What is compared: a way of decoding here, or a server."""

    @property
    def name(self) -> str: ...
    def run(self, task: Task) -> Run: ...


def tokens_per_round(runs: Sequence[Run]) -> float | None:
    """Over draft rounds, None where there was none."""
    rounds = sum(run.draft_rounds or 0 for run in runs)
    return (rounds + sum(run.draft_n_accepted or 0 for run in runs)) / rounds if rounds else None
