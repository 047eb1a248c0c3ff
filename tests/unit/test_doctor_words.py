"""The doctor's arithmetic and its sentences, from made-up measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_local.cli.doctor import lines
from dflash_local.doctor import estimate
from dflash_local.doctor.machine import BusyProcess, Machine, busy_between, parse_stat, thread_counts, watch_processes
from dflash_local.doctor.measure import PROMPTS, dummy_tokens, thinks
from dflash_local.doctor.report import (
    AttentionTime,
    Curve,
    DrafterFacts,
    Kernels,
    Report,
    Target,
    ThreadTime,
    Trial,
    TypeTime,
    as_object,
)
from dflash_local.doctor.words import advice, better_type, first_slot, is_wrong_pair

STEPS = {1: 10.0, 2: 11.0, 4: 12.0, 8: 20.0, 16: 40.0}
LINEAR = {rows: 10.0 * rows for rows in (1, 2, 4, 8, 16)}


def trial(category: str, *accepted: int, rounds: int = 20) -> Trial:
    return Trial(category, rounds, accepted, rounds + sum(accepted), 1000.0)


GOOD = tuple(trial(category, 18, 16, 14, 12, 10, 8, 6) for category in PROMPTS)
REPORT = Report(
    machine=Machine("a processor", 4, 8, 0.2, ()),
    build="llama.cpp",
    devices=("CPU: a processor",),
    target=Target("a model", "llama", 100_000_000, {"q4_0": 90, "f32": 10}, 4096, False),
    drafter=DrafterFacts("a drafter", 8, "CPU", None),
    draft_status="engaged",
    on_gpu=False,
    kernels=Kernels(True, 0.1, 0.4),
    threads=4,
    flash="off",
    tuning="4 threads (all cores), flash attention off",
    attention=(AttentionTime(256, 1, 1.0, 1.1), AttentionTime(2048, 1, 4.0, 6.0)),
    thread_times=(ThreadTime(2, 19.0, 24.0), ThreadTime(4, 10.0, 12.0)),
    types=(TypeTime("q4_0", 0.9, True, {1: 1.0, 2: 1.1, 4: 1.2, 8: 2.0}),),
    curves=(Curve(512, STEPS), Curve(2048, {rows: ms + 5.0 for rows, ms in STEPS.items()})),
    skipped=(),
    draft_ms=5.0,
    rest_ms=0.5,
    trials=GOOD,
)


def said(report: Report) -> str:
    return "\n".join(advice(report))


def test_break_even_counts_the_draft_pass_and_nothing_twice() -> None:
    assert estimate.break_even(STEPS, 5.0, 4) == pytest.approx(1.7)
    assert estimate.break_even(STEPS, 0.0, 8) == pytest.approx(2.0)
    # At the break-even point the speed is plain's, whatever a token costs besides.
    for rest_ms in (0.0, 0.5, 20.0):
        assert estimate.speedup(STEPS, 5.0, rest_ms, 4, 1.7) == pytest.approx(1.0)


def test_acceptance_by_slot_gives_tokens_per_round() -> None:
    reached = estimate.reach([10, 5, 1], 20)
    assert reached == [0.5, 0.25, 0.05]
    assert estimate.tokens_per_round(reached, 1) == 1.0
    assert estimate.tokens_per_round(reached, 3) == pytest.approx(1.75)
    assert estimate.tokens_per_round(reached, 99) == pytest.approx(1.8)
    assert estimate.reach([], 0) == []


@pytest.mark.parametrize(
    ("ms", "reached", "rows"),
    [
        (STEPS, [0.95] * 7, 8),
        (STEPS, [0.9, 0.8, 0.7, 0.2, 0.1, 0.0, 0.0], 4),
        (STEPS, [0.1] * 7, 1),
        (LINEAR, [0.95] * 7, 1),
        (STEPS, [], 1),
        # A width wider than the block is never chosen, however cheap.
        ({1: 10.0, 2: 11.0, 16: 11.0}, [0.95] * 3, 2),
    ],
)
def test_the_best_width_follows_costs_and_acceptance(ms: Mapping[int, float], reached: list[float], rows: int) -> None:
    found = estimate.best(ms, 5.0, 0.5, reached)
    assert found.rows == rows
    assert found.speedup >= 1.0
    assert (found.speedup == 1.0) == (rows == 1)


def test_right_copies_give_all_rows() -> None:
    assert estimate.copy_speedup(STEPS, 0.0, 8) == pytest.approx(4.0)
    assert estimate.copy_speedup(LINEAR, 0.0, 8) == pytest.approx(1.0)


def test_a_good_pair_on_a_quiet_machine_gets_one_sentence() -> None:
    assert advice(REPORT) == ("Drafting pays on every kind of text tried. Leave --draft-rows on auto.",)


def test_a_drafter_that_does_not_pay_is_named_so() -> None:
    report = replace(REPORT, curves=(Curve(512, LINEAR),))
    assert "Drafting does not pay here" in said(report)


def test_one_kind_of_text_may_pay_alone() -> None:
    poor = trial("prose", 4, 1, 0, 0, 0, 0, 0)
    report = replace(REPORT, trials=(poor, *GOOD[1:]))
    assert "Drafting pays on code and facts only." in said(report)


def test_a_wrong_pair_is_told_by_its_first_slot() -> None:
    wrong = tuple(trial(category, 0, 0, 0, 0, 0, 0, 0) for category in PROMPTS)
    assert is_wrong_pair(replace(REPORT, trials=wrong))
    assert "made for another target" in said(replace(REPORT, trials=wrong))
    assert "does not pay" not in said(replace(REPORT, trials=wrong))
    # A drafter that knows one kind of text is no wrong pair, and a few rounds tell nothing.
    assert not is_wrong_pair(replace(REPORT, trials=(*wrong[:2], GOOD[2])))
    few = replace(REPORT, trials=(trial("prose", 0, rounds=3),))
    assert first_slot(few) is None
    assert not is_wrong_pair(few)


def test_rounds_that_accepted_nothing_have_no_slots() -> None:
    empty = tuple(replace(one, accepted=()) for one in GOOD)
    assert is_wrong_pair(replace(REPORT, trials=empty))


def test_thinking_is_mentioned_only_where_the_drafter_says() -> None:
    thinker = replace(REPORT.target, thinks=True)
    assert REPORT.drafter is not None
    trained_without = replace(REPORT.drafter, thinks=False)
    trained_with = replace(REPORT.drafter, thinks=True)
    assert "think" not in said(replace(REPORT, target=thinker))
    assert "Switch thinking off" in said(replace(REPORT, target=thinker, drafter=trained_without))
    assert "think" not in said(replace(REPORT, target=thinker, drafter=trained_with))
    assert "different versions" in said(replace(REPORT, drafter=trained_with))


def test_thinking_is_read_from_the_template() -> None:
    assert thinks("{% if enable_thinking %}")
    assert thinks("a <think> b")
    assert not thinks("{{ messages }}")


def test_busy_programs_are_named_with_the_threads_that_are_left() -> None:
    busy = (BusyProcess(7, "miner", 2.0), BusyProcess(8, "browser", 0.5))
    text = said(replace(REPORT, machine=replace(REPORT.machine, busy=busy)))
    assert "keep 2.5 of 4 cores busy now: miner (2.0 cores), browser (0.5 cores)" in text
    assert "--threads 2" in text
    # Cores that are free anyway are nobody's business.
    assert "miner" not in said(replace(REPORT, threads=1, machine=replace(REPORT.machine, busy=busy)))


def test_without_a_process_list_the_load_speaks() -> None:
    machine = replace(REPORT.machine, busy=None, load=6.0)
    assert "The load is 6.0 on 4 cores" in said(replace(REPORT, machine=machine))
    assert "load" not in said(replace(REPORT, machine=replace(machine, load=None)))


def test_fewer_threads_are_advised_only_where_clearly_faster() -> None:
    faster = (ThreadTime(2, 5.0, 6.0), ThreadTime(4, 10.0, 12.0))
    assert "Use --threads 2: it is 2.0 times as fast" in said(replace(REPORT, thread_times=faster))
    close = (ThreadTime(2, 9.5, 11.5), ThreadTime(4, 10.0, 12.0))
    assert "--threads" not in said(replace(REPORT, thread_times=close))
    assert "--threads" not in said(replace(REPORT, thread_times=()))


def test_the_other_attention_mode_is_advised_by_context() -> None:
    far = (AttentionTime(256, 1, 1.0, 1.0), AttentionTime(2048, 1, 9.0, 3.0))
    assert "3.0 times as fast at 2048 cells. With such contexts use --flash-attn on" in said(
        replace(REPORT, attention=far)
    )
    everywhere = (AttentionTime(256, 1, 1.0, 2.0), AttentionTime(2048, 1, 3.0, 9.0))
    assert "Use --flash-attn off." in said(replace(REPORT, attention=everywhere, flash="on"))
    assert "flash" not in said(replace(REPORT, attention=everywhere, flash="auto"))


def test_a_type_that_verifies_badly_is_named_with_a_better_one() -> None:
    main = TypeTime("q4_1", 0.9, False, {1: 1.0, 2: 1.6, 4: 2.4, 8: 3.5})
    good = TypeTime("q4_0", 0.0, True, {1: 1.0, 2: 1.2, 4: 1.2, 8: 2.0})
    heavy = TypeTime("q8_0", 0.0, True, {1: 1.8, 2: 1.9, 4: 2.0, 8: 2.4})
    text = said(replace(REPORT, types=(main, good, heavy)))
    assert "Q4_1 weights verify badly here: 4 rows cost 2.4 times one row" in text
    assert "no repacked kernels for Q4_1" in text
    assert "Prefer a Q4_0 file of this model: there 4 rows cost 50% of that." in text
    assert "but one row takes 1.8 times as long" in said(replace(REPORT, types=(main, heavy)))
    assert better_type(replace(REPORT, types=(replace(good, share=0.9), heavy))) is None
    assert better_type(replace(REPORT, types=())) is None


@pytest.mark.parametrize(("ms", "words"), [(STEPS, "up to 4.11x of plain while 16"), (LINEAR, "not even right copies")])
def test_without_a_drafter_copies_are_what_is_left(ms: Mapping[int, float], words: str) -> None:
    report = replace(
        REPORT, drafter=None, draft_status="off", draft_ms=0.0, rest_ms=0.0, trials=(), curves=(Curve(512, ms),)
    )
    if ms is STEPS:
        words = "up to 4.00x of plain while"
    assert words in said(report)
    assert "Without a drafter (off)" in said(report)


def test_nothing_to_change_is_said_too() -> None:
    assert advice(replace(REPORT, trials=())) == ("Nothing to change.",)


def test_the_report_in_words_holds_every_table() -> None:
    text = "\n".join(lines(replace(REPORT, advice=advice(REPORT), seconds=12.0, skipped=("2048 cells: too slow",))))
    for words in (
        "a processor, 4 cores (8 logical), load 0.2",
        "no other program",
        "a model (llama, 100 MB, Q4_0 90%, F32 10%), context 4096",
        "Threads: ms of a target batch",
        "flash attention on",
        "Q4_0 (90% of the target, repacked)",
        "not measured: 2048 cells: too slow",
        "a draft pass takes 5.0 ms",
        "Break-even",
        "Acceptance",
        "Do this\n- Drafting pays",
        "(measured in 12 s)",
    ):
        assert words in text
    for line in text.splitlines():
        assert line == line.rstrip()


def test_the_report_without_a_drafter_has_copies_in_the_place_of_break_evens() -> None:
    report = replace(REPORT, drafter=None, draft_status="off", draft_ms=0.0, trials=(), attention=(), types=())
    text = "\n".join(lines(replace(report, advice=advice(report))))
    assert "Copies: speed against plain" in text
    assert "Break-even" not in text
    assert "Weights" not in text


def test_json_holds_what_was_measured_and_what_follows() -> None:
    found = json.loads(json.dumps(as_object(REPORT)))
    assert found["curves"][0] == {"cells": 512, "ms": {str(rows): ms for rows, ms in STEPS.items()}}
    assert found["break_even"]["512"] == {"2": 1.6, "4": 1.7, "8": 2.5}
    assert found["trials"][0]["reach"] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]
    assert found["trials"][0]["tokens_per_round"] == 5.2
    assert found["trials"][0]["expected"]["rows"] == 8
    assert found["machine"]["busy"] == []
    assert found["copies"]["8"] > 1.0


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("12 (a b) c) R 1 1 1 0 -1 4 1 2 3 4 70 30 0 0 20 0 1", ("a b) c", 100)),
        ("12 (x", None),
        ("", None),
        ("12 (x) R 1", None),
    ],
)
def test_process_lines_are_parsed_whatever_the_name(text: str, parsed: tuple[str, int] | None) -> None:
    assert parse_stat(text) == parsed


def test_busy_processes_are_those_that_gained_ticks() -> None:
    before = {1: ("init", 0), 2: ("own", 0), 3: ("busy", 100), 4: ("busier", 0)}
    after = {1: ("init", 1), 2: ("own", 99), 3: ("busy", 130), 4: ("busier", 90), 5: ("new", 50)}
    assert busy_between(before, after, 100.0, 2) == (BusyProcess(4, "busier", 0.9), BusyProcess(3, "busy", 0.3))


def test_where_there_is_no_process_list_nobody_is_blamed(tmp_path: Path) -> None:
    assert watch_processes(0.0, tmp_path) is None


def test_thread_counts_cover_small_and_large_machines() -> None:
    assert thread_counts(1) == [1]
    assert thread_counts(3) == [1, 2, 3]
    assert thread_counts(16) == [1, 2, 4, 8, 12, 16]
    assert thread_counts(64) == [1, 2, 4, 16, 32, 48, 64]


def test_dummy_tokens_are_in_the_vocabulary_and_differ() -> None:
    tokens = dummy_tokens(64, 1000)
    assert all(0 <= token < 1000 for token in tokens)
    assert len(set(tokens)) > 50
