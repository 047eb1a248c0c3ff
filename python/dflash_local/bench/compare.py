"""Runs every prompt on every side, plain and draft by turns of a few tokens, and hands on what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dflash_local._errors import ContextOverflow, Error, GrammarError
from dflash_local.bench.costs import fit_to, measure_costs
from dflash_local.bench.figures import first_difference
from dflash_local.bench.local import FixedEngine, Local, LocalSide, copies, forced, run_together
from dflash_local.bench.oracle import CHAIN, COPY, FORCED, TREE, Best, Costs, chain_rows, fastest
from dflash_local.bench.peer import PREFIX, Peer, PeerError
from dflash_local.bench.runs import Run, Side, Task
from dflash_local.bench.suite import Prompt
from dflash_local.chat.template import ChatTemplate
from dflash_local.generation import AUTO_ROWS
from dflash_local.sampling import MAX_SEED, SamplingParams

if TYPE_CHECKING:
    from dflash_local.runtime import Runtime

PLAIN, OTHER_PLAIN, DRAFT = "plain", "plain, other attention", "draft"
PAIRED = (PLAIN, OTHER_PLAIN, DRAFT)
WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Settings:
    """What is compared and how often. `params` without a seed of its own is refused when sampling."""

    params: SamplingParams
    repeat: int = 3
    max_tokens: int = 0  # 0: the suite's own
    draft_rows: int = AUTO_ROWS
    other_baseline: bool = False
    sweep: bool = False
    oracle: bool = False


@dataclass(frozen=True, slots=True)
class Oracle:
    """The least time for the draft side's text, the least with a drafter whose every block is right (None: no drafter),
    and the costs they paid."""

    best: Best
    n_tokens: int
    costs: Costs
    perfect: Best | None = None

    @property
    def plain_ms(self) -> float:
        """What plain rounds take for the same text at these costs."""
        return (self.n_tokens - 1) * ((self.costs.batch(1) or 0.0) + self.costs.rest_ms)


@dataclass(frozen=True, slots=True)
class Measured:
    """One prompt: its runs by side, all of equal number but those of a peer that failed."""

    task: Task
    runs: dict[str, list[Run]]
    margin: float | None = None
    oracle: Oracle | None = None


@dataclass(slots=True)
class Comparison:
    """Sides and prompts of one benchmark. Iterate over `measure` for the prompts as they are done."""

    local: Local
    settings: Settings
    tasks: Sequence[Task]
    peers: Sequence[Peer] = ()
    notify: Callable[[str], None] = lambda _: None
    step: Callable[[str], None] = lambda _: None  # called before each run, with what it is
    failed: dict[str, str] = field(default_factory=dict)  # peers that were given up, and why
    plain: LocalSide = field(init=False)
    fixed: FixedEngine | None = field(init=False, default=None)
    sides: list[Side] = field(init=False)

    def __post_init__(self) -> None:
        settings, local = self.settings, self.local
        self.plain = local.plain(PLAIN)
        self.sides = [self.plain, local.draft(DRAFT, settings.draft_rows)]
        if settings.other_baseline:
            self.sides.insert(0, local.plain(OTHER_PLAIN, local.other_flash()))
        if settings.sweep or settings.oracle:
            self.fixed = local.fixed()
        if settings.sweep and self.fixed is not None:
            self.sides += [local.fixed_side(self.fixed, width) for width in range(1, self.fixed.block_size)]
        self.sides += self.peers

    @property
    def n_steps(self) -> int:
        return len(self.tasks) * len(self.sides) * self.settings.repeat

    def measure(self) -> Iterator[Measured]:
        """Warms every side up, then yields prompt by prompt. An interrupted prompt is yielded with the repeats that
        all sides had finished, before KeyboardInterrupt goes on."""
        warm = replace(self.tasks[0], max_tokens=WARM_TOKENS)
        for side in list(self.sides):
            self._run(side, warm)
        for task in self.tasks:
            runs: dict[str, list[Run]] = {side.name: [] for side in self.sides}
            try:
                for repeat in range(self.settings.repeat):
                    self._repeat(task, runs, repeat)
                yield self._finish(task, runs)
            except KeyboardInterrupt:
                whole = min(len(runs[side.name]) for side in self.sides if side not in self.peers)
                if whole:
                    yield Measured(task, {name: group[:whole] for name, group in runs.items()})
                raise

    def _repeat(self, task: Task, runs: dict[str, list[Run]], repeat: int) -> None:
        seed = ((task.params.seed or 0) + repeat) % (MAX_SEED + 1)
        seeded = replace(task, params=replace(task.params, seed=seed))
        paired = [side for side in self.sides if isinstance(side, LocalSide) and side.name in PAIRED]
        paired = paired if repeat % 2 == 0 else paired[::-1]
        for side in paired:
            self.step(f"{task.prompt.id}, {side.name}")
        for side, run in zip(paired, run_together(paired, seeded), strict=True):
            runs[side.name].append(run)
        others = [side for side in self.sides if side not in paired]
        for other in others if repeat % 2 == 0 else others[::-1]:
            self.step(f"{task.prompt.id}, {other.name}")
            if task.prompt.grammar is not None and other in self.peers:
                continue  # OpenAI's protocol has no place for GBNF
            answer = self._run(other, seeded)
            if answer is not None:
                runs[other.name].append(answer)

    def _run(self, side: Side, task: Task) -> Run | None:
        """None from a peer that fails: it takes no further part."""
        try:
            return side.run(task)
        except PeerError as error:
            self.failed[side.name.removeprefix(PREFIX)] = str(error)
            self.sides.remove(side)
            self.notify(f"warning: going on without it: {error}")
            return None

    def _finish(self, task: Task, runs: dict[str, list[Run]]) -> Measured:
        plain, draft = runs[PLAIN][0], runs[DRAFT][0]
        margin = None
        if task.params.temperature == 0.0 and plain.tokens is not None and draft.tokens is not None:
            at = first_difference(plain.tokens, draft.tokens)
            if at is not None:
                margin = top_margin(self.plain, [*task.ids, *draft.tokens[:at]])
        oracle = None
        if self.settings.oracle and self.fixed is not None:
            self.step(f"{task.prompt.id}, oracle")
            oracle = self._oracle(self.fixed, task, draft, runs[PLAIN])
        return Measured(task, runs, margin, oracle)

    def _oracle(self, fixed: FixedEngine, task: Task, draft: Run, plain: Sequence[Run]) -> Oracle:
        costs = fit_to(measure_costs(fixed, self.plain, task), plain)
        text = draft.tokens or ()
        given = {
            COPY: [chain_rows(n) for n in copies(task.ids, text, max(costs.target_ms) - 1)],
            FORCED: [chain_rows(n) for n in forced(self.plain, task, text)],
        }
        drafted = list(fixed.drafts(task.ids, text))
        offers = given | {CHAIN: [chain_rows(at.chain) for at in drafted], TREE: [at.tree for at in drafted]}
        best, perfect = fastest(len(text), offers, costs), None
        if fixed.block_size > 1:
            right = [chain_rows(fixed.block_size - 1)] * len(text)
            perfect = fastest(len(text), given | {CHAIN: right}, costs)
        return Oracle(best, len(text), costs, perfect)


def top_margin(side: LocalSide, tokens: Sequence[int]) -> float:
    """By how much the target's first choice after `tokens` is above its second, in logits of a batch of two rows."""
    engine = side.engine
    engine.reset()
    for start in range(0, len(tokens) - 1, engine.n_batch):
        engine.eval(list(tokens[start : min(start + engine.n_batch, len(tokens) - 1)]))
    engine.eval([tokens[-1]] * 2, all_logits=True)
    second, first = np.partition(engine.logits(0), -2)[-2:]
    return float(first - second)


def make_tasks(runtime: Runtime, prompts: Sequence[Prompt], settings: Settings) -> list[Task]:
    """Tokens and sampling of every prompt, checked before anything is measured.

    Raises ContextOverflow, GrammarError naming the prompt, Unsupported where the target has no chat template."""
    template = ChatTemplate(runtime.metadata, runtime.vocab)
    tasks: list[Task] = []
    for prompt in prompts:
        ids = tuple(template.tokenize(template.render(prompt.messages)))
        max_tokens = settings.max_tokens or prompt.max_tokens
        if len(ids) + max_tokens > runtime.n_ctx:
            raise ContextOverflow(
                f"prompt {prompt.id} has {len(ids)} tokens and asks for {max_tokens}, the context holds "
                f"{runtime.n_ctx}: raise --ctx, or lower --max-tokens",
                "n_ctx",
            )
        tasks.append(Task(prompt, ids, _params(runtime, prompt, settings.params), max_tokens))
    return tasks


def _params(runtime: Runtime, prompt: Prompt, params: SamplingParams) -> SamplingParams:
    if prompt.grammar is None and prompt.json_schema is None:
        return params
    try:
        params = replace(params, grammar=prompt.grammar or _schema_grammar(prompt))
        runtime.new_sampler(params).close()
    except Error as error:
        raise GrammarError(f"prompt {prompt.id}: {error}", "grammar") from error
    return params


def _schema_grammar(prompt: Prompt) -> str:
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        return str(json_schema_to_gbnf(json.dumps(prompt.json_schema)))
    # The converter raises whatever its recursion runs into, assertions included.
    except Exception as error:
        why = str(error) or type(error).__name__
        raise GrammarError(
            f"llama-cpp-python cannot turn its json_schema into a grammar: {why}", "json_schema"
        ) from error
