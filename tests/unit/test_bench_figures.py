"""Means, bounds, the oracle over a text, and the summary of a report, on numbers made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dflash_local.bench.compare import DRAFT, OTHER_PLAIN, PLAIN, Measured, Oracle
from dflash_local.bench.figures import first_difference, geomean, median_bound, paired_ratio
from dflash_local.bench.local import agreeing, copies
from dflash_local.bench.oracle import Best, Costs, fastest
from dflash_local.bench.report import (
    ReportError,
    check_writable,
    make_report,
    make_row,
    summarize,
    write_atomic,
    write_json,
)
from dflash_local.bench.runs import Round, Run, Task, tokens_per_round
from dflash_local.bench.suite import Prompt
from dflash_local.sampling import SamplingParams


def test_geomean() -> None:
    assert geomean([1.0, 4.0]) == pytest.approx(2.0)
    assert geomean([]) is None


@pytest.mark.parametrize(
    ("n", "rank", "confidence"), [(1, 0, 0.5), (3, 0, 0.875), (5, 0, 0.96875), (8, 1, 1 - 9 / 256), (20, 5, 0.979305)]
)
def test_bound_is_the_highest_order_statistic_that_holds(n: int, rank: int, confidence: float) -> None:
    values = [float(i) for i in range(n)]
    Random(3).shuffle(values)
    low, found = median_bound(values)
    assert (low, found) == (rank, pytest.approx(confidence, abs=1e-6))


def test_pairs_cancel_drift() -> None:
    ratio = paired_ratio([11.0, 22.0, 5.5], [10.0, 20.0, 5.0])
    assert (ratio.median, ratio.low) == (pytest.approx(1.1), pytest.approx(1.1))
    with pytest.raises(ValueError, match=r"shorter|longer"):
        paired_ratio([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("a", "b", "at"), [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0)]
)
def test_first_difference(a: list[int], b: list[int], at: int | None) -> None:
    assert first_difference(a, b) == at


COSTS = Costs({1: 10.0, 2: 12.0, 4: 15.0, 8: 30.0}, {1: 1.0, 3: 2.0, 7: 4.0}, 0.5)


def test_costs_are_those_of_the_next_wider_batch() -> None:
    assert [COSTS.batch(rows) for rows in (1, 3, 8, 9)] == [10.0, 15.0, 30.0, None]
    assert [COSTS.draft(slots) for slots in (1, 2, 7, 8)] == [1.0, 2.0, 4.0, None]
    assert COSTS.scaled(2.0).batch(3) == 30.0


def test_oracle_takes_the_plain_way_where_nothing_is_accepted() -> None:
    best = fastest(5, [0] * 5, [0] * 5, COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(4 * 10.5), {"plain": 4})


def test_oracle_prefers_what_is_cheapest() -> None:
    # Three copied tokens and the target's own cost one batch of four; the last token is left to a plain round.
    best = fastest(6, [3] * 6, [3] * 6, COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(15 + 10 + 5 * 0.5), {"copy": 1, "plain": 1})
    assert fastest(6, [3] * 6, [0] * 6, COSTS).rounds == {"draft": 1, "plain": 1}


def test_oracle_leaves_a_token_to_the_target() -> None:
    # Of two tokens left one at most is accepted, however many a copy would bring.
    best = fastest(3, [0] * 3, [9] * 3, COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(12 + 2 * 0.5), {"copy": 1})
    assert fastest(1, [9], [9], COSTS).ms == 0.0


def brute_force(n: int, drafted: list[int], copies: list[int], costs: Costs, at: int = 0) -> float:
    if at + 1 >= n:
        return 0.0
    ways = []
    for emitted in range(1, n - at):
        batch, draft = costs.batch(emitted), costs.draft(emitted - 1) if emitted > 1 else 0.0
        rest = brute_force(n, drafted, copies, costs, at + emitted) + emitted * costs.rest_ms
        if batch is not None and (emitted == 1 or copies[at] >= emitted - 1):
            ways.append(batch + rest)
        if batch is not None and draft is not None and drafted[at] >= emitted - 1:
            ways.append(batch + draft + rest)
    return min(ways)


def test_oracle_equals_trying_everything() -> None:
    random = Random(5)
    for _ in range(30):
        n = random.randint(1, 9)
        drafted, copies = ([random.randint(0, 8) for _ in range(n)] for _ in range(2))
        assert fastest(n, drafted, copies, COSTS).ms == pytest.approx(brute_force(n, drafted, copies, COSTS))


def test_copies_continue_the_longest_match() -> None:
    #         a  b  x        c  a  b  y
    prompt = (1, 2, 9, 5, 3, 1, 2, 7, 4)
    # One token, "c", is match enough; after "c a b" the longer match says y, the shorter x; then the text goes its way.
    assert copies(prompt, (3, 1, 2, 7, 4, 8), 16) == [4, 3, 2, 1, 0, 0]
    # A loop runs into itself.
    assert copies((6,), (1, 2, 1, 2, 1, 2, 1, 2), 3) == [0, 0, 3, 3, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("proposed", "text", "n"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1, 9], [1, 2], 1)]
)
def test_agreeing(proposed: list[int], text: list[int], n: int) -> None:
    assert agreeing(proposed, text) == n


def run(tps: float, tokens: tuple[int, ...] = (1, 2, 3, 4, 5), **changes: Any) -> Run:
    n = len(tokens)
    values: dict[str, Any] = {
        "predicted_n": n,
        "predicted_ms": 1e3 * (n - 1) / tps,
        "prompt_ms": 10.0,
        "tokens": tokens,
        "draft_rounds": 0,
        "plain_rounds": n,
        "draft_n": 0,
        "draft_n_accepted": 0,
        "status": "engaged",
    }
    return Run(**values | changes)


def drafted(tps: float, tokens: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Run:
    rounds = (Round(4, 3, 15.0, 2.0, 0.5), Round(1, 1, 10.0, 0.0, 0.5))
    return run(
        tps,
        tokens,
        draft_rounds=1,
        plain_rounds=2,
        draft_n=3,
        draft_n_accepted=2,
        accepted_per_slot=(1, 1, 0),
        rounds=rounds,
    )


def measured(name: str, category: str, runs: dict[str, list[Run]], **more: Any) -> Measured:
    prompt = Prompt(name, category, 5, ({"role": "user", "content": "x"},))
    return Measured(Task(prompt, (7, 8), SamplingParams(temperature=0.0), 5), runs, **more)


def test_speeds_leave_out_the_first_token() -> None:
    assert run(100.0).tps == pytest.approx(100.0)
    assert run(100.0, (1,)).tps is None
    assert run(100.0).whole_tps == pytest.approx(5 / 0.05)
    assert tokens_per_round([run(1.0)]) is None
    assert tokens_per_round([drafted(1.0), run(1.0)]) == 3.0


def test_row_holds_the_contract_and_more() -> None:
    row = make_row(
        measured(
            "p",
            "c",
            {PLAIN: [run(10.0), run(20.0), run(10.0)], DRAFT: [drafted(12.0), drafted(22.0), drafted(13.0)]},
        )
    )
    contract = ["id", "category", "plain_tps", "draft_tps", "speedup", "tokens_per_round", "identical"]
    assert list(row)[:9] == [*contract, "first_divergence_margin", "predicted_n"]
    assert (row["plain_tps"], row["draft_tps"]) == (pytest.approx(10.0), pytest.approx(13.0))
    assert (row["speedup"], row["speedup_low"]) == (pytest.approx(1.2), pytest.approx(1.1))
    assert (row["tokens_per_round"], row["identical"], row["baseline"]) == (3.0, True, PLAIN)
    assert row["slots"] == [[3, 3], [3, 3], [3, 0]]
    assert row["rounds_by_rows"]["4"] == {"rounds": 3, "emitted": 9, "target_ms": 15.0, "draft_ms": 2.0}


def test_the_faster_plain_is_the_baseline() -> None:
    runs = {PLAIN: [run(10.0)], OTHER_PLAIN: [run(20.0)], DRAFT: [drafted(15.0)]}
    row = make_row(measured("p", "c", runs))
    assert (row["baseline"], row["speedup"]) == (OTHER_PLAIN, pytest.approx(0.75))


def test_an_answer_of_one_token_has_no_speed() -> None:
    row = make_row(measured("p", "c", {PLAIN: [run(1.0, (1,))], DRAFT: [run(1.0, (1,))]}))
    assert (row["speedup"], row["speedup_low"], row["plain_tps"]) == (None, None, None)
    summary = summarize([row])
    assert (summary["geomean_speedup"], summary["worst_id"], summary["identical_share"]) == (None, None, 1.0)


def rows_of_three() -> list[dict[str, Any]]:
    def one(name: str, category: str, draft: float, wide: float, tokens: tuple[int, ...]) -> dict[str, Any]:
        oracle = Oracle(Best(200.0, {"plain": 4}), 5, COSTS)
        peers = {"peer far": [run(40.0, tokens=(1, 2, 3), draft_rounds=None, draft_n_accepted=None)]}
        runs = {PLAIN: [run(10.0)], DRAFT: [drafted(draft, tokens)], "3": [drafted(wide)]}
        return make_row(measured(name, category, runs | peers, margin=0.25, oracle=oracle))

    same, other = (1, 2, 3, 4, 5), (1, 2, 9, 4, 5)
    return [one("a", "x", 10.0, 5.0, same), one("b", "x", 40.0, 5.0, other), one("c", "y", 9.0, 20.0, same)]


def test_summary_of_groups() -> None:
    report = make_report({"suite": "s"}, rows_of_three(), partial=False, errors={})
    summary = report["summary"]
    assert list(report)[:4] == ["suite", "partial", "rows", "summary"]
    assert summary["geomean_speedup"] == pytest.approx((1 * 4 * 0.9) ** (1 / 3))
    assert (summary["worst_id"], summary["worst_speedup"]) == ("c", pytest.approx(0.9))
    assert summary["identical_share"] == pytest.approx(2 / 3)
    assert summary["tokens_per_round"] == 3.0
    x, y = summary["by_category"]["x"], summary["by_category"]["y"]
    assert (x["best_fixed"], x["best_fixed_speedup"]) == (0, 1.0)
    assert (y["best_fixed"], y["best_fixed_speedup"]) == (3, pytest.approx(2.0))
    assert summary["best_fixed_by_category_speedup"] == pytest.approx(2 ** (1 / 3))
    assert summary["oracle_speedup"] == pytest.approx(2.0)  # 4 tokens in 200 ms
    assert y["oracle_share"] == pytest.approx(9 / 20)
    assert summary["peers"]["far"] == {
        "prompts": 3,
        "tps": pytest.approx(40.0),
        "ratio_to_plain": pytest.approx(4.0),
        "tokens_per_round": None,
    }


def test_report_is_json_whatever_it_holds(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    write_json(out, {"nan": math.nan, "list": [math.inf, (1.5,)], "text": "\u00e9\n"})
    assert json.loads(out.read_text("utf-8")) == {"nan": None, "list": [None, [1.5]], "text": "\u00e9\n"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    out.write_text("old")

    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(ReportError, match="cannot be written: No space left on device"):
        write_atomic(out, fail)
    assert (out.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is a folder"):
        check_writable(tmp_path, "--json")
    with pytest.raises(ReportError, match="missing or read-only"):
        check_writable(tmp_path / "none" / "out.json", "--json")
