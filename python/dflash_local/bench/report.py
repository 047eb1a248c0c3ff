"""The JSON report: rows, summaries, and how it is written."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_local._atomic import write_atomic
from dflash_local._errors import Error
from dflash_local.bench.compare import DRAFT, OTHER_PLAIN, PLAIN, Measured
from dflash_local.bench.figures import geomean, paired_ratio
from dflash_local.bench.left import oracle_row, oracle_summary
from dflash_local.bench.peer import PREFIX
from dflash_local.bench.rounds import add_sources, by_source, slots_of
from dflash_local.bench.runs import Run, tokens_per_round

Row = dict[str, Any]
SAMPLE = 600  # characters of text that a row keeps


class ReportError(Error):
    """A report that cannot be written."""


def _tps(runs: Sequence[Run]) -> list[float]:
    return [tps for run in runs if (tps := run.tps) is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def baseline_of(measured: Measured) -> str:
    """The plain side that is the baseline: the faster of those that were run."""
    names = [name for name in (PLAIN, OTHER_PLAIN) if measured.runs.get(name)]
    return max(names, key=lambda name: _median(_tps(measured.runs[name])) or 0.0)


def _versus(runs: Sequence[Run], plain: Sequence[Run], whole: bool = False) -> Row:
    """Speed of a side and its ratio to plain, pair by pair."""
    pairs = [
        (a, b)
        for run, other in zip(runs, plain, strict=False)
        if (a := run.whole_tps if whole else run.tps) is not None
        and (b := other.whole_tps if whole else other.tps) is not None
    ]
    if not pairs:
        return {"tps": _median(_tps(runs)), "speedup": None, "low": None, "confidence": None}
    ratio = paired_ratio(*zip(*pairs, strict=True))
    return {
        "tps": statistics.median(a for a, _ in pairs),
        "speedup": ratio.median,
        "low": ratio.low,
        "confidence": ratio.confidence,
    }


def make_row(measured: Measured) -> Row:
    """One prompt of the report: the contract's fields first, then what lies behind them."""
    base = baseline_of(measured)
    plain, draft = measured.runs[base], measured.runs[DRAFT]
    ratio, whole, last = _versus(draft, plain), _versus(draft, plain, whole=True), draft[-1]
    row: Row = {
        "id": measured.task.prompt.id,
        "category": measured.task.prompt.category,
        "plain_tps": _median(_tps(plain)),
        "draft_tps": ratio["tps"],
        "speedup": ratio["speedup"],
        "tokens_per_round": tokens_per_round(draft),
        "identical": measured.runs[PLAIN][0].tokens == draft[0].tokens,
        "first_divergence_margin": measured.margin,
        "predicted_n": draft[0].predicted_n,
        "prompt_n": len(measured.task.ids),
        "speedup_low": ratio["low"],
        "speedup_low_confidence": ratio["confidence"],
        "whole_speedup": whole["speedup"],
        "plain_tps_all": _tps(plain),
        "draft_tps_all": _tps(draft),
        "baseline": base,
        "draft_status": last.status,
        "finish_reason": last.finish_reason,
        "draft_rounds": [run.draft_rounds for run in draft],
        "plain_rounds": [run.plain_rounds for run in draft],
        "draft_n": [run.draft_n for run in draft],
        "draft_n_accepted": [run.draft_n_accepted for run in draft],
        "sources": by_source(draft),
        "slots": _slots(draft),
        "rounds_by_rows": _by_rows(draft),
        "text": draft[0].text[:SAMPLE],
    }
    widths = {name: runs for name, runs in measured.runs.items() if name.isdigit() and runs}
    if widths:
        row["fixed"] = {
            name: _versus(runs, plain) | {"tokens_per_round": tokens_per_round(runs), "slots": _slots(runs)}
            for name, runs in widths.items()
        }
    peers = {name: runs for name, runs in measured.runs.items() if name.startswith(PREFIX) and runs}
    if peers:
        row["peers"] = {name.removeprefix(PREFIX): _peer(runs, plain) for name, runs in peers.items()}
    if measured.oracle is not None:
        same = measured.runs[PLAIN]
        # Sampled texts differ from seed to seed, and the oracle has seen the first.
        pairs = len(draft) if measured.task.params.temperature == 0.0 else 1
        speedup = _versus(draft[:pairs], same[:pairs])["speedup"]
        baseline = (_median(_tps(same)) or 0.0) / (row["plain_tps"] or 1.0)
        row["oracle"] = oracle_row(measured.oracle, speedup, baseline, draft[0], same[0])
    return row


def _peer(runs: Sequence[Run], plain: Sequence[Run]) -> Row:
    return _versus(runs, plain) | {
        "tokens_per_round": tokens_per_round(runs),
        "predicted_n": runs[0].predicted_n,
        "tps_all": _tps(runs),
    }


def _slots(runs: Sequence[Run]) -> list[list[int]]:
    return slots_of(one for run in runs for one in run.rounds)


def _by_rows(runs: Sequence[Run]) -> dict[str, Row]:
    """Rounds by the rows of their batch: how many, and medians of their milliseconds."""
    groups: dict[int, list[Any]] = {}
    for run in runs:
        for one in run.rounds:
            groups.setdefault(one.rows, []).append(one)
    return {
        str(rows): {
            "rounds": len(group),
            "emitted": sum(one.emitted for one in group),
            "target_ms": statistics.median(one.target_ms for one in group),
            "draft_ms": statistics.median(one.draft_ms for one in group),
        }
        for rows, group in sorted(groups.items())
    }


def by_category(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by category, in order of appearance."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["category"], []).append(row)
    return groups


def values(rows: Sequence[Row], *path: str) -> list[Any]:
    """What stands under these nested keys in each row that has it and is not null."""
    found: list[Any] = []
    for row in rows:
        value: Any = row
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            found.append(value)
    return found


def summarize(rows: Sequence[Row], *, oracle: bool) -> Row:
    """Figures of a group of rows: geometric means, the worst, sums over rounds; `oracle`: of one too, where rows have
    it."""
    compared = [row for row in rows if row["speedup"] is not None]
    worst = min(compared, key=lambda row: row["speedup"], default=None)
    lowest = min(compared, key=lambda row: row["speedup_low"], default=None)
    rounds = sum(sum(row["draft_rounds"]) for row in rows)
    accepted = sum(sum(row["draft_n_accepted"]) for row in rows)
    found: Row = {
        "prompts": len(rows),
        "geomean_speedup": geomean(values(compared, "speedup")),
        "worst_speedup": worst and worst["speedup"],
        "worst_id": worst and worst["id"],
        "worst_low": lowest and lowest["speedup_low"],
        "worst_low_id": lowest and lowest["id"],
        "geomean_whole_speedup": geomean(values(rows, "whole_speedup")),
        "tokens_per_round": (rounds + accepted) / rounds if rounds else None,
        "identical_share": statistics.fmean(row["identical"] for row in rows) if rows else None,
        "plain_tps": geomean(values(compared, "plain_tps")),
        "draft_tps": geomean(values(compared, "draft_tps")),
        "sources": add_sources(row["sources"] for row in rows),
    }
    if any("fixed" in row for row in rows):
        found["fixed"] = _fixed(rows)
        # Width 0 is plain decoding, whose ratio to itself is 1.
        best = max(("0", *found["fixed"]), key=lambda width: found["fixed"].get(width) or float(width == "0"))
        found["best_fixed"], found["best_fixed_speedup"] = int(best), found["fixed"].get(best, 1.0)
    if oracle:
        found |= oracle_summary(rows)
    names = list(dict.fromkeys(name for row in rows for name in row.get("peers", ())))
    if names:
        found["peers"] = {name: _peer_summary(rows, name) for name in names}
    return found


def _fixed(rows: Sequence[Row]) -> dict[str, float]:
    widths = dict.fromkeys(width for row in rows for width in row.get("fixed", ()))
    means = {width: geomean(values(rows, "fixed", width, "speedup")) for width in widths}
    return {width: mean for width, mean in means.items() if mean is not None}


def _peer_summary(rows: Sequence[Row], name: str) -> Row:
    return {
        "prompts": len(values(rows, "peers", name)),
        "tps": geomean(values(rows, "peers", name, "tps")),
        "ratio_to_plain": geomean(values(rows, "peers", name, "speedup")),
        "tokens_per_round": geomean(values(rows, "peers", name, "tokens_per_round")),
    }


def make_report(head: Mapping[str, Any], rows: Sequence[Row], *, partial: bool, errors: Mapping[str, str]) -> Row:
    """The whole report; `partial` while prompts are missing."""
    # An interrupted prompt has no oracle, and may be the only one of its category.
    oracle = any("oracle" in row for row in rows)
    groups = {name: summarize(group, oracle=oracle) for name, group in by_category(rows).items()}
    summary = summarize(rows, oracle=oracle) | {"by_category": groups}
    if any("fixed" in row for row in rows):
        summary["best_fixed_by_category_speedup"] = geomean(
            group["best_fixed_speedup"] for group in groups.values() for _ in range(group["prompts"])
        )
    report: Row = {**head, "partial": partial, "rows": list(rows), "summary": summary}
    if errors:
        report["peer_errors"] = dict(errors)
    return report


def finite(value: Any) -> Any:
    """The same with null in the place of numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_writable(path: Path, what: str) -> None:
    """Raises ReportError before hours of measuring would end in a file that cannot be written."""
    if path.is_dir():
        raise ReportError(f"{what} {path} is a folder, expected a file", what)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ReportError(f"{what} {path} cannot be written: its folder is missing or read-only", what)


def write_report_file(path: Path, write: Callable[[Path], None]) -> None:
    """Puts what `write` makes in the place of `path`, whole or not at all. Raises ReportError."""
    try:
        write_atomic(path, write)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror or error}", str(path)) from error


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Writes the report. Raises ReportError."""
    text = json.dumps(finite(report), indent=1, ensure_ascii=False) + "\n"

    def write(temporary: Path) -> None:
        temporary.write_text(text, "utf-8")

    write_report_file(path, write)
