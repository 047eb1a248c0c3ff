"""The order of runs, what an interrupt leaves, peers that fail, margins, the oracle's inputs: on scripted sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from fake_engine import FakeEngine as ScriptedEngine
from fake_engine import FakeRuntime as ScriptedRuntime
from fake_engine import text_tokens

from dflash_local.bench.compare import DRAFT, OTHER_PLAIN, PLAIN, Comparison, Measured, Settings, top_margin
from dflash_local.bench.costs import fit_to
from dflash_local.bench.local import PATIENCE_MS, Drafted, FixedEngine, LocalSide, forced, note_memory, run_together
from dflash_local.bench.oracle import Costs
from dflash_local.bench.peer import PREFIX, PeerError
from dflash_local.bench.runs import Round, Run, Task
from dflash_local.bench.session import processor_name
from dflash_local.bench.suite import Prompt
from dflash_local.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, seed=0)


@dataclass
class FakeEngine:
    """Takes evals; its logits say that token 2 leads token 1 by half."""

    n_batch: int = 4
    max_leaves: int = 1
    evals: list[tuple[int, ...]] = field(default_factory=list)
    resets: int = 0

    def reset(self) -> None:
        self.resets += 1

    def eval(self, tokens: Sequence[int], all_logits: bool = False) -> None:
        self.evals.append(tuple(tokens))

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        assert row == 0
        return np.array([-1.0, 2.5, 3.0, 0.0], np.float32)

    def taps(self) -> npt.NDArray[np.float32]:
        return np.full((len(self.evals[-1]), 2), len(self.evals), np.float32)


@dataclass
class FakeSide:
    name: str
    log: list[str]
    tokens: tuple[int, ...] = (1, 2, 3)
    fail_at: int = -1
    error: BaseException | None = None
    engine: Any = field(default_factory=FakeEngine)
    runs: int = 0
    seeds: list[int | None] = field(default_factory=list)

    def run(self, task: Task) -> Run:
        self.log.append(self.name)
        self.runs += 1
        self.seeds.append(task.params.seed)
        if self.runs == self.fail_at and self.error is not None:
            raise self.error
        return Run(len(self.tokens), 10.0, tokens=self.tokens)


class FakeLocal:
    def __init__(self, log: list[str], draft: FakeSide | None = None) -> None:
        self.log = log
        self.draft_side = draft or FakeSide(DRAFT, log)

    def plain(self, name: str, flash: int | None = None) -> FakeSide:
        return FakeSide(name, self.log)

    def other_flash(self) -> int:
        return 1

    def draft(self, name: str, rows: int) -> FakeSide:
        return self.draft_side

    def fixed(self) -> Any:
        return SimpleNamespace(block_size=3)

    def fixed_side(self, fixed: Any, width: int) -> FakeSide:
        return FakeSide(str(width), self.log)


def task(name: str, grammar: str | None = None, params: SamplingParams = GREEDY) -> Task:
    return Task(Prompt(name, "c", 8, ({"role": "user", "content": "x"},), grammar), (5, 6), params, 8)


def compare(local: Any, settings: Settings, tasks: Sequence[Task], **more: Any) -> Comparison:
    return Comparison(local, settings, tasks, **more)


def test_sides_take_turns_in_reversed_order() -> None:
    log: list[str] = []
    comparison = compare(FakeLocal(log), Settings(GREEDY, repeat=3), [task("a")])
    (measured,) = comparison.measure()
    assert log == [PLAIN, DRAFT, PLAIN, DRAFT, DRAFT, PLAIN, PLAIN, DRAFT]  # the first two warm up
    assert {name: len(runs) for name, runs in measured.runs.items()} == {PLAIN: 3, DRAFT: 3}
    assert (measured.margin, comparison.n_steps) == (None, 6)


def test_all_sides_of_a_sweep_and_the_other_baseline() -> None:
    log: list[str] = []
    settings = Settings(GREEDY, repeat=1, other_baseline=True, sweep=True)
    list(compare(FakeLocal(log), settings, [task("a")]).measure())
    assert log[:5] == [OTHER_PLAIN, PLAIN, DRAFT, "1", "2"]


def test_each_repeat_has_a_seed_that_all_sides_share() -> None:
    log: list[str] = []
    local = FakeLocal(log)
    params = SamplingParams(temperature=0.8, seed=2**32 - 2)
    comparison = compare(local, Settings(params, repeat=2), [task("a", params=params)])
    (measured,) = comparison.measure()
    assert local.draft_side.seeds[1:] == [2**32 - 2, 0]
    assert measured.margin is None


def test_a_divergence_gets_its_margin() -> None:
    log: list[str] = []
    local = FakeLocal(log, FakeSide(DRAFT, log, tokens=(1, 9, 3)))
    comparison = compare(local, Settings(GREEDY, repeat=1), [task("a")])
    (measured,) = comparison.measure()
    assert measured.margin == pytest.approx(0.5)
    engine: Any = comparison.plain.engine
    assert engine.evals == [(5, 6), (1, 1)]


def test_margin_is_taken_from_a_batch_of_two_rows() -> None:
    engine = FakeEngine()
    side: Any = SimpleNamespace(engine=engine)
    assert top_margin(side, [1, 2, 3, 4, 5, 6]) == pytest.approx(0.5)
    assert (engine.resets, engine.evals) == (1, [(1, 2, 3, 4), (5,), (6, 6)])
    engine.evals.clear()
    top_margin(side, [7])
    assert engine.evals == [(7, 7)]


@pytest.mark.parametrize(("fail_at", "whole"), [(2, 0), (3, 1), (4, 2)])
def test_an_interrupt_keeps_the_repeats_that_all_had_finished(fail_at: int, whole: int) -> None:
    log: list[str] = []
    local = FakeLocal(log, FakeSide(DRAFT, log, fail_at=fail_at, error=KeyboardInterrupt()))
    found: list[Measured] = []
    try:
        for measured in compare(local, Settings(GREEDY, repeat=3), [task("a")]).measure():
            found.append(measured)  # noqa: PERF402 what comes before the interrupt is what counts
    except KeyboardInterrupt:
        pass
    else:
        pytest.fail("the interrupt was swallowed")
    assert [{name: len(runs) for name, runs in one.runs.items()} for one in found] == (
        [{PLAIN: whole, DRAFT: whole}] if whole else []
    )


def test_a_failing_peer_is_dropped_and_named() -> None:
    log: list[str] = []
    said: list[str] = []
    peer: Any = FakeSide(f"{PREFIX}far", log, fail_at=3, error=PeerError("peer far: gone"))
    comparison = compare(
        FakeLocal(log), Settings(GREEDY, repeat=2), [task("a"), task("b")], peers=[peer], notify=said.append
    )
    first, second = comparison.measure()
    assert len(first.runs[peer.name]) == 1
    assert peer.name not in second.runs
    assert comparison.failed == {"far": "peer far: gone"}
    assert said == ["warning: going on without it: peer far: gone"]


def test_peers_get_no_grammars() -> None:
    log: list[str] = []
    peer: Any = FakeSide(f"{PREFIX}far", log)
    comparison = compare(FakeLocal(log), Settings(GREEDY, repeat=1), [task("a"), task("b", "root ::= x")], peers=[peer])
    first, second = comparison.measure()
    assert (len(first.runs[peer.name]), len(second.runs[peer.name])) == (1, 0)


def test_drafts_see_the_features_before_their_anchor() -> None:
    seen: list[tuple[int, int]] = []

    def propose(pos0: int, taps: npt.NDArray[np.float32], anchor: int) -> tuple[Any, Any]:
        seen.append((len(taps), anchor))
        ids = np.array([[anchor + 1, 0], [0, anchor + 2]], np.int32)
        return ids, np.log(np.array([[0.6, 0.3], [0.5, 0.4]], np.float32))

    engine: Any = FakeEngine()
    drafter: Any = SimpleNamespace(propose=propose, block_size=3)
    assert list(FixedEngine(engine, drafter).drafts((1, 2, 3), (7, 8, 9))) == [Drafted(1, ()), Drafted(1, ())]
    assert seen == [(3, 7), (4, 8)]
    assert engine.evals == [(1, 2, 3, 7), (8,)]
    assert list(FixedEngine(engine, None).drafts((1,), (7, 8))) == [Drafted(0, ())]
    # In a tree the second choice of the second slot comes after both firsts and the first slot's second: 0.24 of 0.3.
    engine.max_leaves = 4
    first, second = FixedEngine(engine, drafter).drafts((1, 2, 3), (7, 8, 9))
    assert (first, second) == (Drafted(1, (2, 5)), Drafted(1, (2,)))


def test_forced_text_is_looked_for_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    class Ahead:
        def __init__(self, sampler: int, vocab: int, *, patience_ms: float) -> None:
            asked.append(patience_ms)
            self._at = 0

        def accept(self, token: int) -> None:
            self._at = token

        def forced(self, n: int, written: list[int]) -> list[int]:
            assert written[-1] == self._at
            return [2, 3] if self._at == 1 else []

    monkeypatch.setattr("dflash_local.bench.local.native", SimpleNamespace(GrammarAhead=Ahead))
    sampler = SimpleNamespace(address=1, close=lambda: asked.append(0.0))
    runtime = SimpleNamespace(new_sampler=lambda _: sampler, vocab=SimpleNamespace(address=2))
    side: Any = SimpleNamespace(runtime=runtime)
    plain = task("a")
    strict = replace(plain, params=replace(plain.params, grammar="root ::= [a-z]"))
    assert forced(side, strict, (1, 2, 4)) == [1, 0, 0]
    # A stop would make the figures depend on the machine's load; the sampler is closed.
    assert asked == [PATIENCE_MS, 0.0]


def test_without_a_grammar_nothing_is_forced() -> None:
    side: Any = SimpleNamespace()
    assert forced(side, task("a"), (1, 2, 3)) == [0, 0, 0]


def test_costs_are_fitted_to_the_plain_runs() -> None:
    costs = Costs({1: 10.0, 2: 15.0}, {1: 4.0}, 9.0, {2: 0.5})
    runs = [Run(3, 40.0, rounds=(Round(1, 1, 18.0, 0.0, 1.0), Round(1, 1, 22.0, 0.0, 2.0)))]
    fitted = fit_to(costs, runs)
    assert (fitted.batch(2), fitted.draft(1), fitted.rest_ms) == (pytest.approx(30.0), pytest.approx(8.0), 1.5)
    assert fitted.tree(2) == pytest.approx(31.0)
    assert fit_to(costs, [Run(1, 0.0)]) == costs


def test_rounds_come_from_running_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = iter([(9.0, 0.0, 1.0, 0.0), (19.0, 5.0, 2.0, 0.5), (27.0, 5.0, 3.0, 0.5)])

    class Engine(FakeEngine):
        def stats(self) -> dict[str, Any]:
            names = ("target_ms", "draft_ms", "sample_ms", "other_ms")
            counts = dict.fromkeys(("draft_rounds", "plain_rounds", "draft_n", "draft_n_accepted"), 1)
            last = {"predicted_n": 5, "predicted_ms": 20.0, "prompt_ms": 3.0, "accepted_per_slot": [1]} | counts
            return last | dict(zip(names, next(sums, (0.0,) * 4), strict=True))

        def rounds(self) -> list[tuple[int, int]]:
            return [(1, 1), (4, 3), (1, 1)]

        def drafted(self) -> list[tuple[str, list[int]]]:
            return [("plain", []), ("drafter", [2, 1]), ("plain", [])]

    class Generated:
        def __iter__(self) -> Any:
            return iter([SimpleNamespace(tokens=(token,)) for token in (1, 2, 3)])

        def close(self) -> None:
            pass

        @property
        def result(self) -> Any:
            engine: Any = side.engine
            return SimpleNamespace(
                stats=engine.stats(), tokens=(1, 2), text="t", finish_reason="stop", draft_status="x"
            )

    def start(*_: Any, **__: Any) -> Any:
        return Generated()

    monkeypatch.setattr("dflash_local.bench.local.generate", start)
    engine: Any = Engine()
    runtime: Any = None
    side = LocalSide("s", engine, runtime, None, "off", 0)
    tree = Round(4, 3, 10.0, 5.0, 1.5, "drafter", (2, 1))
    assert side.run(task("a")).rounds == (tree, Round(1, 1, 8.0, 0.0, 1.0))
    assert tree.ms == 16.5


def test_memory_is_told_where_it_is_known() -> None:
    said: list[str] = []
    local: Any = SimpleNamespace(context_bytes=lambda: 3 * 2**20)
    note_memory(local, 2, said.append)
    local.context_bytes = lambda: None
    note_memory(local, 2, said.append)
    assert said == ["measuring adds 2 contexts of 3 MiB K/V each"]


def test_processor_name(tmp_path: Any) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: A CPU @ 2 GHz\n")
    assert processor_name(info) == "A CPU @ 2 GHz"
    assert processor_name(tmp_path / "none")


def test_sides_take_turns() -> None:
    log: list[str] = []

    def side(name: str, sizes: tuple[int, ...]) -> LocalSide:
        engine = ScriptedEngine([text_tokens("x" * 40)], sizes, on_round=lambda _: log.append(name))
        runtime: Any = ScriptedRuntime(engine)
        return LocalSide(name, cast("Any", engine), runtime, None, "off", -1)

    sides = [side("a", (1,)), side("b", (8,))]
    runs = run_together(sides, replace(task("t"), max_tokens=64))
    assert [run.text for run in runs] == ["x" * 40] * 2
    turns = [name for name, _ in groupby(log)]
    assert turns == ["a", "b", "a", "b", "a", "b"]  # of 16 tokens, 40 and the end of the text in all
