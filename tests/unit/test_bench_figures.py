"""Means, bounds, the oracle over a text, and the summary of a report, on numbers made by hand."""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

from dflash_local.bench.compare import DRAFT, OTHER_PLAIN, PLAIN, Measured, Oracle
from dflash_local.bench.figures import first_difference, geomean, median_bound, paired_ratio
from dflash_local.bench.local import agreeing, copies
from dflash_local.bench.oracle import Best, Costs, chain_rows, fastest, tree_rows
from dflash_local.bench.report import (
    ReportError,
    check_writable,
    make_report,
    make_row,
    summarize,
    write_json,
    write_report_file,
)
from dflash_local.bench.rounds import add_slots, add_sources, by_source, slots_of, tokens_by_slot, wasted_ms
from dflash_local.bench.runs import Round, Run, Task, tokens_per_round
from dflash_local.bench.suite import Prompt
from dflash_local.bench.table import print_report
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


def chains(draft: list[int], copy: list[int]) -> dict[str, list[Any]]:
    return {"draft": [chain_rows(n) for n in draft], "copy": [chain_rows(n) for n in copy]}


def test_oracle_takes_the_plain_way_where_nothing_is_accepted() -> None:
    best = fastest(5, chains([0] * 5, [0] * 5), COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(4 * 10.5), {"plain": 4})


def test_oracle_prefers_what_is_cheapest() -> None:
    # Three copied tokens and the target's own cost one batch of four; the last token is left to a plain round.
    best = fastest(6, chains([3] * 6, [3] * 6), COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(15 + 10 + 5 * 0.5), {"copy": 1, "plain": 1})
    assert fastest(6, chains([3] * 6, [0] * 6), COSTS).rounds == {"draft": 1, "plain": 1}


def test_oracle_leaves_a_token_to_the_target() -> None:
    # Of two tokens left one at most is accepted, however many a copy would bring.
    best = fastest(3, chains([0] * 3, [9] * 3), COSTS)
    assert (best.ms, best.rounds) == (pytest.approx(12 + 2 * 0.5), {"copy": 1})
    assert fastest(1, chains([9], [9]), COSTS).ms == 0.0


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
        assert fastest(n, chains(drafted, copies), COSTS).ms == pytest.approx(brute_force(n, drafted, copies, COSTS))


def test_trees_cost_the_rows_that_hold_the_text() -> None:
    # Nodes in order of growth: 5 and 6 below the anchor, 7 below 6, 7 below 5, 8 below that.
    tokens, parents = [5, 6, 7, 7, 8], [-1, -1, 1, 0, 3]
    assert tree_rows(tokens, parents, [6, 7, 9]) == [3, 4]
    assert tree_rows(tokens, parents, [5, 7, 8, 1]) == [2, 5, 6]
    assert tree_rows(tokens, parents, [9]) == []


def test_oracle_pays_for_trees_what_they_were_measured_to_cost() -> None:
    costs = Costs({1: 10.0, 2: 14.0, 4: 15.0, 8: 30.0}, COSTS.draft_ms, COSTS.rest_ms, {4: 0.25, 8: 0.5})
    assert [costs.tree(rows) for rows in (3, 5, 9)] == [15.25, 30.5, None]
    assert COSTS.tree(3) is None
    trees = {"tree": [(3, 4)] * 5, "draft": [chain_rows(1)] * 5}
    best = fastest(5, trees, costs)
    # Two tokens accepted in four rows and the target's own, then the rest plainly.
    assert (best.ms, best.rounds) == (pytest.approx(15.25 + 2.0 + 10 + 4 * 0.5), {"tree": 1, "plain": 1})
    assert fastest(5, trees | {"tree": [(3, 9)] * 5}, costs).rounds == {"draft": 2}


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
    rounds = (Round(4, 3, 15.0, 2.0, 0.5, "drafter", (1, 1, 1)), Round(1, 1, 10.0, 0.0, 0.5))
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
    assert row["slots"] == [[3, 3, 3], [3, 3, 3], [3, 3, 0]]
    assert row["sources"]["drafter"] == {"rounds": 3, "emitted": 9, "ms": 52.5, "slots": row["slots"]}
    assert row["sources"]["plain"]["slots"] == []
    assert row["rounds_by_rows"]["4"] == {"rounds": 3, "emitted": 9, "target_ms": 15.0, "draft_ms": 2.0}


def test_the_faster_plain_is_the_baseline() -> None:
    runs = {PLAIN: [run(10.0)], OTHER_PLAIN: [run(20.0)], DRAFT: [drafted(15.0)]}
    row = make_row(measured("p", "c", runs))
    assert (row["baseline"], row["speedup"]) == (OTHER_PLAIN, pytest.approx(0.75))


def test_an_answer_of_one_token_has_no_speed() -> None:
    row = make_row(measured("p", "c", {PLAIN: [run(1.0, (1,))], DRAFT: [run(1.0, (1,))]}))
    assert (row["speedup"], row["speedup_low"], row["plain_tps"]) == (None, None, None)
    summary = summarize([row], oracle=False)
    assert (summary["geomean_speedup"], summary["worst_id"], summary["identical_share"]) == (None, None, 1.0)


def rows_of_three() -> list[dict[str, Any]]:
    def one(name: str, category: str, draft: float, wide: float, tokens: tuple[int, ...]) -> dict[str, Any]:
        # Four tokens, plainly in 42 ms: twice as fast at best, four times with a perfect drafter.
        oracle = Oracle(Best(21.0, {"plain": 4}), 5, COSTS, Best(10.5, {"draft": 1}))
        peers = {"peer far": [run(40.0, tokens=(1, 2, 3), draft_rounds=None, draft_n_accepted=None)]}
        plain = run(10.0, rounds=(Round(1, 1, 5.0, 0.0, 0.5),))
        runs = {PLAIN: [plain], DRAFT: [drafted(draft, tokens)], "3": [drafted(wide)]}
        return make_row(measured(name, category, runs | peers, margin=0.25, oracle=oracle))

    same, other = (1, 2, 3, 4, 5), (1, 2, 9, 4, 5)
    return [one("a", "x", 10.0, 5.0, same), one("b", "x", 40.0, 5.0, other), one("c", "y", 9.0, 20.0, same)]


def test_rounds_by_source_and_slot() -> None:
    tree = Round(5, 2, 20.0, 4.0, 1.0, "drafter", (2, 2))
    empty = Round(1, 1, 10.0, 4.0, 1.0, "drafter")
    copy = Round(4, 4, 16.0, 0.0, 1.0, "copy", (1, 1, 1))
    plain = Round(1, 1, 10.0, 0.0, 1.0)
    slots = slots_of([tree, empty, copy, plain])
    assert slots == [[2, 3, 2], [2, 3, 1], [1, 1, 1]]
    assert tokens_by_slot(slots) == [2.0, 2.5, 3.0]
    assert add_slots([slots, [[1, 1, 0]]]) == [[3, 4, 2], [2, 3, 1], [1, 1, 1]]
    found = by_source([run(1.0, rounds=(tree, empty, copy, plain))])
    assert list(found) == ["copy", "drafter", "plain"]
    assert found["drafter"] == {"rounds": 2, "emitted": 3, "ms": 40.0, "slots": [[1, 2, 1], [1, 2, 0]]}
    both = add_sources([found, {"plain": {"rounds": 2, "emitted": 2, "ms": 20.0, "slots": []}}])
    assert (both["plain"]["rounds"], both["copy"]) == (3, found["copy"])
    # Tree: 25 ms for two tokens, 22 plainly; the empty pass 4 more; the copy was worth it.
    assert wasted_ms(run(1.0, rounds=(tree, empty, copy)), run(1.0, rounds=(plain,))) == pytest.approx(7.0)
    assert wasted_ms(run(1.0), run(1.0, rounds=(plain,))) is None


def test_tables_show_sources_slots_and_what_is_left() -> None:
    rows = rows_of_three()
    head = {"model": "m", "drafter": "d", "device": "c", "threads": 1, "settings": {"repeat": 1}}
    report = make_report(head, rows, partial=False, errors={})
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(report, console)
    text = console.export_text()
    assert "| drafter |" in text
    assert re.search(r"drafter +\| +1 \| +3 \| +3 \| +3 \| +100% \| +2\.00", text)
    assert "of oracle" in text
    assert "categories with 85% of the oracle or more: 1 of 2" in text


def test_a_prompt_cut_off_before_its_oracle_leaves_the_tables_whole() -> None:
    cut_off = make_row(measured("d", "z", {PLAIN: [run(10.0)], DRAFT: [drafted(11.0)], "3": [drafted(9.0)]}))
    head = {"model": "m", "drafter": "d", "device": "c", "threads": 1, "settings": {"repeat": 1}}
    report = make_report(head, [*rows_of_three(), cut_off], partial=True, errors={})
    assert report["summary"]["by_category"]["z"]["oracle_share"] is None
    console = Console(width=200, record=True, file=io.StringIO())
    print_report(report, console)
    assert re.search(r"\| z +\| +- \|", console.export_text())


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
    assert (summary["oracle_speedup"], summary["perfect_speedup"]) == (pytest.approx(2.0), pytest.approx(4.0))
    assert y["oracle_share"] == pytest.approx(9 / 20)
    # The drafted round took 17.5 ms for three tokens, 16.5 plainly; both rounds 28.
    left = {"planner": 0.55, "wasted": 1 / 28, "missed": 0.55 - 1 / 28, "drafter": 0.45 - 0.9 / 4}
    assert y["left"] == pytest.approx(left)
    assert x["sources"]["drafter"]["rounds"] == 2
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
        write_report_file(out, fail)
    assert (out.read_text(), len(list(tmp_path.iterdir()))) == ("old", 1)


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="is a folder"):
        check_writable(tmp_path, "--json")
    with pytest.raises(ReportError, match="missing or read-only"):
        check_writable(tmp_path / "none" / "out.json", "--json")
