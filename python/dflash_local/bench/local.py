"""The sides that run in this process: plain, drafting, and drafting with fixed widths, on one loaded target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dflash_local._native_loader import native
from dflash_local.bench.figures import first_difference
from dflash_local.bench.oracle import tree_rows
from dflash_local.bench.runs import Round, Run, Task
from dflash_local.generation import AUTO_ROWS, SamplerLike, VocabLike, generate
from dflash_local.memory import MAX_LEAVES, check_context_fits, kv_bytes
from dflash_local.runtime import make_context_params
from dflash_local.sampling import SamplingParams
from dflash_local.tune import FLASH_OFF, FLASH_ON

if TYPE_CHECKING:
    import ctypes

    from dflash_local.pairs.resolve import Notify
    from dflash_local.runtime import Runtime

TURN = 16  # tokens
MAX_NODES, MAX_FORCED = 63, 16  # of a round, as the engine has them
PATIENCE_MS = 1e6  # with a grammar: what is known of a text must not depend on the machine's load
TIMES = ("target_ms", "draft_ms", "sample_ms", "other_ms")


@dataclass(frozen=True, slots=True)
class LocalSide:
    """One engine and the rows it drafts a round; it is what a generation needs of a runtime."""

    name: str
    engine: native.Engine
    runtime: Runtime
    drafter_name: str | None
    draft_status: str
    draft_rows: int

    @property
    def vocab(self) -> VocabLike:
        return self.runtime.vocab

    @property
    def draft_kind(self) -> str | None:
        return self.runtime.draft_kind if self.draft_rows != 0 else None

    def new_sampler(self, params: SamplingParams) -> SamplerLike:
        return self.runtime.new_sampler(params)

    def run(self, task: Task) -> Run:
        """Answers from an empty context. Raises as `generate`."""
        (run,) = run_together([self], task)
        return run


class Answer:
    """An answer of one side in the making, from an empty context."""

    def __init__(self, side: LocalSide, task: Task) -> None:
        side.engine.reset()
        self._engine = side.engine
        self._run = generate(side, task.ids, task.params, max_tokens=task.max_tokens, draft_rows=side.draft_rows)
        self._chunks = iter(self._run)
        self._times: list[tuple[float, ...]] = []
        self.n_tokens = 0
        self.done = False

    def advance(self, n_tokens: int) -> None:
        """Runs rounds until the answer has `n_tokens` tokens or its end. Raises as `generate`."""
        while not self.done and self.n_tokens < n_tokens:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.done = True
                return
            self.n_tokens += len(chunk.tokens)
            stats: Any = self._engine.stats()
            self._times.append(tuple(stats[name] for name in TIMES))

    def close(self) -> None:
        self._run.close()

    @property
    def result(self) -> Run:
        result, stats = self._run.result, self._run.result.stats
        return Run(
            predicted_n=stats["predicted_n"],
            predicted_ms=stats["predicted_ms"],
            prompt_ms=stats["prompt_ms"],
            tokens=result.tokens,
            text=result.text,
            finish_reason=result.finish_reason,
            status=result.draft_status,
            draft_rounds=stats["draft_rounds"],
            plain_rounds=stats["plain_rounds"],
            draft_n=stats["draft_n"],
            draft_n_accepted=stats["draft_n_accepted"],
            accepted_per_slot=tuple(stats["accepted_per_slot"]),
            rounds=_rounds(self._engine.rounds(), self._engine.drafted(), self._times),
        )


def run_together(sides: Sequence[LocalSide], task: Task) -> list[Run]:
    """Answers on engines that take turns of a few tokens, so that a clock that drifts meets all of them alike."""
    answers: list[Answer] = []
    try:
        answers += [Answer(side, task) for side in sides]
        for end in range(TURN, task.max_tokens + TURN, TURN):
            for answer in answers:
                answer.advance(end)
        for answer in answers:
            answer.advance(task.max_tokens + 1)
    finally:
        for answer in answers:
            answer.close()
    return [answer.result for answer in answers]


def _rounds(
    shapes: list[tuple[int, int]], drafted: list[tuple[str, list[int]]], sums: list[tuple[float, ...]]
) -> tuple[Round, ...]:
    """Rounds from the engine's running sums; the first, whose batch is the prompt's, is left out."""
    found = []
    for (rows, emitted), (source, nodes), before, now in zip(shapes[1:], drafted[1:], sums, sums[1:], strict=False):
        target, draft, sample, other = (b - a for a, b in zip(before, now, strict=True))
        found.append(Round(rows, emitted, target, draft, sample + other, source, tuple(nodes)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the drafter offers at one place of a known text."""

    chain: int
    tree: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FixedEngine:
    """An engine whose drafter, if there is one, is at hand: for fixed widths, timing, and drafts at given places."""

    engine: native.Engine
    drafter: native.Drafter | None

    @property
    def block_size(self) -> int:
        return self.drafter.block_size if self.drafter is not None else 1

    def drafts(self, ids: tuple[int, ...], text: tuple[int, ...]) -> Iterator[Drafted]:
        """For each token of the text but the last what the drafter offers after it: of its top-1 chain the leading
        tokens that the text agrees with, and the rows of the trees that hold 1, 2, ... of them."""
        if self.drafter is None:
            yield from (Drafted(0, ()) for _ in text[:-1])
            return
        engine, tokens = self.engine, [*ids, *text[:-1]]
        engine.reset()
        taps: list[npt.NDArray[np.float32]] = []
        for start in range(0, len(tokens), engine.n_batch):
            engine.eval(tokens[start : start + engine.n_batch])
            taps.append(engine.taps())
        features = np.concatenate(taps)
        for i, anchor in enumerate(text[:-1]):
            found, log_probs = self.drafter.propose(0, features[: len(ids) + i], anchor)
            left, leaves = text[i + 1 :], self.engine.max_leaves
            rows: Sequence[int] = ()
            if leaves > 1:
                tree = native.grow_tree(found, np.exp(log_probs), max_nodes=MAX_NODES, max_leaves=leaves)
                rows = tree_rows(*tree, left)
            yield Drafted(agreeing(found[:, 0].tolist(), left), tuple(rows))


def forced(side: LocalSide, task: Task, text: tuple[int, ...]) -> list[int]:
    """For each token of the text how many of those after it the prompt's grammar forces."""
    counts = [0] * len(text)
    if task.params.grammar is None:
        return counts
    sampler = side.runtime.new_sampler(task.params)
    try:
        ahead = native.GrammarAhead(sampler.address, side.runtime.vocab.address, patience_ms=PATIENCE_MS)
        for i, token in enumerate(text[:-1]):
            ahead.accept(token)
            counts[i] = agreeing(ahead.forced(MAX_FORCED, [*task.ids, *text[: i + 1]]), text[i + 1 :])
    finally:
        sampler.close()
    return counts


def copies(ids: tuple[int, ...], text: tuple[int, ...], limit: int) -> list[int]:
    """For each token of the text how many of those after it a copy would bring, at most `limit`."""
    index, tokens = native.CopyIndex(), [*ids, *text]
    counts: list[int] = []
    for end in range(len(ids) + 1, len(tokens) + 1):
        index.sync(tokens[:end])
        counts.append(agreeing(index.propose(limit)[0], tokens[end:]))
    return counts


def agreeing(proposed: Sequence[int], text: Sequence[int]) -> int:
    """How many leading tokens of a proposal the text agrees with."""
    at = first_difference(proposed, text[: len(proposed)])
    return min(len(proposed), len(text)) if at is None else at


class Local:
    """The loaded target with the engines of a comparison; those beside the runtime's own share its weights."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._open: list[native.Engine] = []

    @property
    def n_open(self) -> int:
        """Engines beside the runtime's own."""
        return len(self._open)

    def params(self, flash_attn_type: int | None = None) -> ctypes.Structure:
        """Context parameters as those of the runtime, perhaps with the other attention mode."""
        tuning = self.runtime.tuning
        if flash_attn_type is not None:
            tuning = replace(tuning, flash_attn_type=flash_attn_type)
        params: ctypes.Structure = make_context_params(
            tuning, n_ctx=self.runtime.n_ctx, n_batch=self.runtime.engine.n_batch
        )
        check_context_fits(self.runtime.metadata, params)
        return params

    def context_bytes(self) -> int | None:
        """Bytes of K/V that each engine adds, None where no simple sum holds."""
        params: Any = self.params()
        return kv_bytes(self.runtime.metadata, params.n_ctx, params.type_k, params.type_v)

    def _engine(self, params: ctypes.Structure, drafter: native.Drafter | None = None) -> native.Engine:
        import ctypes

        engine = native.Engine(self.runtime.model.model, ctypes.addressof(params), drafter, copies=False)
        self._open.append(engine)
        return engine

    def plain(self, name: str, flash_attn_type: int | None = None) -> LocalSide:
        """Plain decoding on an engine that has no drafter, so that no tap slows it."""
        return LocalSide(name, self._engine(self.params(flash_attn_type)), self.runtime, None, "off", 0)

    def other_flash(self) -> int:
        """The attention mode that the runtime did not choose."""
        return FLASH_OFF if self.runtime.tuning.flash_attn_type != FLASH_OFF else FLASH_ON

    def draft(self, name: str, draft_rows: int = AUTO_ROWS) -> LocalSide:
        """The runtime's own engine, as `generate` uses it."""
        runtime = self.runtime
        return LocalSide(name, runtime.engine, runtime, runtime.drafter_name, runtime.draft_status, draft_rows)

    def fixed(self) -> FixedEngine:
        """An engine of its own, so that the planner of the runtime's never sees forced widths."""
        pair, drafter = self.runtime.pair, None
        params: Any = self.params()
        if pair.drafter is not None:
            n_threads, model = self.runtime.tuning.n_threads, self.runtime.model.model
            drafter = native.Drafter(str(pair.drafter), str(pair.target), model, n_threads=n_threads, device="auto")
            params.n_seq_max = MAX_LEAVES  # its trees are timed
        return FixedEngine(self._engine(params, drafter), drafter)

    def fixed_side(self, fixed: FixedEngine, width: int) -> LocalSide:
        runtime = self.runtime
        return LocalSide(str(width), fixed.engine, runtime, runtime.drafter_name, runtime.draft_status, width)

    def close(self) -> None:
        while self._open:
            self._open.pop().close()


@contextmanager
def open_local(runtime: Runtime) -> Iterator[Local]:
    """Closes the engines before the runtime frees the model."""
    local = Local(runtime)
    try:
        yield local
    finally:
        local.close()


def note_memory(local: Local, n_engines: int, notify: Notify) -> None:
    """One line of what the engines beside the runtime's own take."""
    size = local.context_bytes()
    if size is not None:
        contexts = "1 context" if n_engines == 1 else f"{n_engines} contexts"
        notify(f"measuring adds {contexts} of {size / 2**20:.0f} MiB K/V each")
