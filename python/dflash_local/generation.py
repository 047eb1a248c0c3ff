"""One run of the engine as a stream of text, with its end conditions and its figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dflash_local.sampling import SamplingParams
from dflash_local.textstream import TextStream

if TYPE_CHECKING:
    from dflash_local._native import Engine, RunStats

AUTO_ROWS = -1
FinishReason = Literal["stop", "length", "cancelled"]


class SamplerLike(Protocol):
    @property
    def address(self) -> int: ...
    def close(self) -> None: ...


class VocabLike(Protocol):
    def piece(self, token: int) -> bytes: ...
    def is_eog(self, token: int) -> bool: ...


class RuntimeLike(Protocol):
    """What a generation needs of a Runtime."""

    @property
    def engine(self) -> Engine: ...
    @property
    def vocab(self) -> VocabLike: ...
    @property
    def drafter_name(self) -> str | None: ...
    @property
    def draft_status(self) -> str: ...
    def new_sampler(self, params: SamplingParams) -> SamplerLike: ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round gave: its tokens, and the text that became certain with them (may be empty)."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A run so far, or as it ended. `tokens` holds every emitted id, an end-of-generation token included."""

    text: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    finish_reason: FinishReason
    seed: int | None
    draft_status: str
    timings: dict[str, Any]
    stats: RunStats


class Generation(Iterator[Chunk]):
    """Iterates over the rounds of one run. However it ends, the engine is left at the last token given.

    After a stop string the token that completed it is the last one; an interrupt ends the run as "cancelled".
    """

    def __init__(
        self,
        runtime: RuntimeLike,
        prompt_tokens: Sequence[int],
        params: SamplingParams,
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        draft_rows: int = AUTO_ROWS,
        draft_leaves: int = 1,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}, expected 1 or more")
        if draft_rows < AUTO_ROWS:
            raise ValueError(f"draft_rows is {draft_rows}, expected -1 (auto), 0 (plain) or more")
        if draft_leaves < 1:
            raise ValueError(f"draft_leaves is {draft_leaves}, expected 1 (chains) or more")
        self._runtime = runtime
        self._engine = runtime.engine
        self._prompt = list(prompt_tokens)
        self._max_tokens = max_tokens
        self._draft_rows = draft_rows
        self._draft_leaves = draft_leaves
        self.params = params.with_seed()
        self._stream = TextStream(stop)
        self._sampler: SamplerLike | None = runtime.new_sampler(self.params)
        self._started = False
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._finish: FinishReason | None = None

    def __next__(self) -> Chunk:
        if self._finish is not None or self._sampler is None:
            self.close()
            raise StopIteration
        try:
            if not self._started:
                self._engine.begin(self._prompt)
                self._started = True
                while self._engine.prefill():
                    pass
            chunk = self._round(self._sampler.address)
        except BaseException:
            self.close()
            raise
        self._tokens += chunk.tokens
        self._text.append(chunk.text)
        if self._finish is not None:
            self.close()
        return chunk

    def _round(self, sampler: int) -> Chunk:
        length = len(self._prompt) + len(self._tokens)
        room = self._engine.n_ctx - length
        if self._max_tokens is not None:
            room = min(room, self._max_tokens - len(self._tokens))
        emitted = self._engine.round(
            sampler, draft_rows=self._draft_rows, draft_leaves=self._draft_leaves, max_emit=room
        )
        text: list[str] = []
        taken: list[int] = []
        for token in emitted:
            taken.append(token)
            if self._runtime.vocab.is_eog(token):
                self._finish = "stop"
                break
            text.append(self._stream.feed(self._runtime.vocab.piece(token)))
            if self._stream.stopped:
                self._finish = "stop"
                break
        if len(taken) < len(emitted):
            self._engine.truncate(length + len(taken))
        if self._finish is None and len(taken) >= room:
            self._finish = "length"
        if self._finish is not None:
            text.append(self._stream.finish())
        return Chunk("".join(text), tuple(taken))

    def close(self) -> None:
        """Ends the run; the engine stays at the last token given. A second call does nothing."""
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        sampler.close()
        length = len(self._prompt) + len(self._tokens)
        if self._started and self._engine.n_tokens > length:
            self._engine.truncate(length)
        if self._finish is None:
            self._finish = "cancelled"

    def __del__(self) -> None:
        sampler = getattr(self, "_sampler", None)
        if sampler is not None:
            sampler.close()

    @property
    def result(self) -> Result:
        """The run as far as it came."""
        stats = self._engine.stats()
        return Result(
            text="".join(self._text),
            tokens=tuple(self._tokens),
            prompt_tokens=len(self._prompt),
            finish_reason=self._finish or "cancelled",
            seed=self.params.seed if self.params.temperature > 0.0 else None,
            draft_status=draft_status(self._runtime, stats, self._draft_rows),
            timings=make_timings(stats, drafting=self._drafting),
            stats=stats,
        )

    @property
    def _drafting(self) -> bool:
        return self._runtime.drafter_name is not None and self._draft_rows != 0


def generate(
    runtime: RuntimeLike,
    prompt_tokens: Sequence[int],
    params: SamplingParams,
    *,
    max_tokens: int | None = None,
    stop: Sequence[str] = (),
    draft_rows: int = AUTO_ROWS,
    draft_leaves: int = 1,
) -> Generation:
    """Starts a run; iterate over it for its chunks, then ask for its `result`.

    max_tokens None: until the end of the text or of the context. draft_rows -1: the planner decides, 0: plain,
    n: verify n drafted rows each round, with draft_leaves > 1 as a tree of at most that many leaves. Raises ValueError,
    GrammarError at once; ContextOverflow, DecodeError while iterating."""
    return Generation(
        runtime,
        prompt_tokens,
        params,
        max_tokens=max_tokens,
        stop=stop,
        draft_rows=draft_rows,
        draft_leaves=draft_leaves,
    )


def draft_status(runtime: RuntimeLike, stats: RunStats, draft_rows: int) -> str:
    """What became of the drafter in one run: "engaged", "off" or "declined: why"."""
    if runtime.drafter_name is None:
        return runtime.draft_status
    if draft_rows == 0:
        return "off"
    if stats["declined"] and draft_rows == AUTO_ROWS:
        return f"declined: {stats['declined']}"
    return "engaged" if stats["draft_rounds"] else "declined: the answer ended before the first draft round"


def make_timings(stats: RunStats, *, drafting: bool) -> dict[str, Any]:
    """The figures of a run under llama-server's names; None where there is nothing to tell. Times in milliseconds."""
    rounds, predicted_ms = stats["draft_rounds"], stats["predicted_ms"]
    per_ms = stats["predicted_n"] / predicted_ms if predicted_ms > 0 else 0.0
    speedup = per_ms * stats["plain_round_ms"] if rounds and stats["plain_round_ms"] > 0 else None
    return {
        "prompt_n": stats["prompt_n"],
        "prompt_ms": round(stats["prompt_ms"], 3),
        "predicted_n": stats["predicted_n"],
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_second": round(per_ms * 1e3, 3),
        "draft_kind": "dflash" if drafting else None,
        "draft_rounds": rounds,
        "plain_rounds": stats["plain_rounds"],
        "draft_n": stats["draft_n"],
        "draft_n_accepted": stats["draft_n_accepted"],
        "tokens_per_round": round((rounds + stats["draft_n_accepted"]) / rounds, 4) if rounds else None,
        "speedup": round(speedup, 4) if speedup is not None else None,
        "speedup_basis": "est.",
    }


def status_line(result: Result) -> str:
    """The last line of an answer: drafter engaged or why not, tokens per round, tokens/s, estimated gain."""
    timings = result.timings
    parts = [f"drafter {result.draft_status}"]
    if timings["tokens_per_round"] is not None:
        parts.append(f"{timings['tokens_per_round']:.2f} tokens per round")
    parts.append(f"{timings['predicted_per_second']:.1f} tokens/s")
    if timings["draft_kind"] is not None:
        why = "no plain round to compare" if timings["draft_rounds"] else "nothing drafted"
        gain = timings["speedup"]
        parts.append(f"gain n/a ({why})" if gain is None else f"gain {gain:.2f}x (estimate)")
    return ", ".join(parts)
