"""The report as tables for people; Markdown, so that they can go into a document as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dflash_local.bench.left import AIM
from dflash_local.bench.rounds import tokens_by_slot
from dflash_local.chat.sanitize import clean_line

N_WORST = 5
N_SLOTS = 8  # shown of each source


def cell(value: Any) -> str:
    """Text of a cell; a dash for what is not known."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return clean_line(str(value))


def percent(share: float | None) -> str:
    """Rounded down, so that only all of them is 100%."""
    return "-" if share is None else f"{int(100 * share + 1e-9)}%"


def count(n: int, what: str) -> str:
    """A number with its noun."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def title(report: Mapping[str, Any]) -> str:
    """What was measured where."""
    pair = f"{report['model']} with {report['drafter'] or 'no drafter'}"
    return f"{pair}, {report['device']}, {count(report['threads'], 'thread')}"


def _table(console: Console, heading: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    table = Table(box=MARKDOWN, header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell(value)) for value in row))
    console.print(Text(f"\n{heading}", style="bold"), soft_wrap=True)
    console.print(table)


def _groups(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [*summary["by_category"].items(), ("all", summary)]


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """Speed by category with whatever else was compared, the slowest prompts, and a closing line."""
    summary = report["summary"]
    if not report["rows"]:
        console.print("nothing was measured")
        return
    _print_speed(report, summary, console)
    if "fixed" in summary:
        widths = list(summary["fixed"])
        _table(
            console,
            "Speed-up over plain by drafted rows (geometric mean)",
            ("category", *widths, "auto", "best fixed"),
            [
                (
                    name,
                    *(group["fixed"].get(width) for width in widths),
                    group["geomean_speedup"],
                    group["best_fixed"],
                )
                for name, group in _groups(summary)
            ],
        )
    _print_sources(summary, console)
    if "oracle_share" in summary:
        _print_left(summary, console)
    worst = sorted(
        (row for row in report["rows"] if row["speedup"] is not None), key=lambda row: float(row["speedup"])
    )[:N_WORST]
    _table(
        console,
        "Slowest prompts against plain",
        ("prompt", "speed-up", "at least", "plain t/s", "draft t/s", "tokens", "drafter"),
        [
            (
                row["id"],
                row["speedup"],
                row["speedup_low"],
                row["plain_tps"],
                row["draft_tps"],
                row["predicted_n"],
                row["draft_status"],
            )
            for row in worst
        ],
    )
    console.print(Text(f"\n{closing_line(report)}"), soft_wrap=True)


def _print_speed(report: Mapping[str, Any], summary: Mapping[str, Any], console: Console) -> None:
    peers = list(summary.get("peers", ()))
    oracle = "oracle_share" in summary
    header = ["category", "prompts", "plain t/s", "draft t/s", "speed-up", "worst", "tokens/round", "as plain"]
    header += ["oracle", "of oracle"] if oracle else []
    header += [text for name in peers for text in (f"{name} t/s", f"{name} tokens/round")]

    def line(name: str, group: Mapping[str, Any]) -> list[Any]:
        found = [
            name,
            group["prompts"],
            group["plain_tps"],
            group["draft_tps"],
            group["geomean_speedup"],
            group["worst_speedup"],
            group["tokens_per_round"],
            percent(group["identical_share"]),
        ]
        if oracle:
            found += [group["oracle_speedup"], percent(group["oracle_share"])]
        for peer in peers:
            figures = group.get("peers", {}).get(peer, {})
            found += [figures.get("tps"), figures.get("tokens_per_round")]
        return found

    _table(console, title(report), header, [line(name, group) for name, group in _groups(summary)])


def _print_sources(summary: Mapping[str, Any], console: Console) -> None:
    sources: Mapping[str, Any] = summary["sources"]
    total = sum(figures["ms"] for figures in sources.values())
    if not total:
        return
    _table(
        console,
        "What rounds were drafted from (drafter: wherever a draft pass was made)",
        ("source", "rounds", "tokens/round", "nodes/round", "share of time"),
        [
            (
                name,
                figures["rounds"],
                figures["emitted"] / figures["rounds"],
                sum(slot[1] for slot in figures["slots"]) / figures["rounds"],
                percent(figures["ms"] / total),
            )
            for name, figures in sources.items()
        ],
    )
    lines = [
        (name, depth, *slot, percent(slot[2] / slot[0]), tokens)
        for name, figures in sources.items()
        for depth, (slot, tokens) in enumerate(
            zip(figures["slots"][:N_SLOTS], tokens_by_slot(figures["slots"]), strict=False), 1
        )
    ]
    if lines:
        header = ("source", "slot", "rounds", "nodes", "accepted", "of rounds", "tokens/round up to it")
        _table(console, "Chains and trees by slot (depth), rounds that verified it", header, lines)


def _print_left(summary: Mapping[str, Any], console: Console) -> None:
    groups = _groups(summary)
    _table(
        console,
        "What is left, in shares of the draft side's time",
        (
            "category",
            "of oracle",
            "to the planner",
            "of it wasted",
            "of it missed",
            "perfect drafter",
            "to the drafter",
        ),
        [
            (
                name,
                percent(group["oracle_share"]),
                *(_share(group["left"][part]) for part in ("planner", "wasted", "missed")),
                group["perfect_speedup"],
                _share(group["left"]["drafter"]),
            )
            for name, group in groups
        ],
    )
    known = [group["oracle_share"] for _, group in groups[:-1] if group["oracle_share"] is not None]
    met = sum(share >= AIM for share in known)
    console.print(Text(f"categories with {percent(AIM)} of the oracle or more: {met} of {len(known)}"))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def closing_line(report: Mapping[str, Any]) -> str:
    """The whole in one line."""
    summary = report["summary"]
    if summary["geomean_speedup"] is None:
        return f"{count(summary['prompts'], 'prompt')}, no answer long enough to compare"
    parts = [
        f"{count(summary['prompts'], 'prompt')}, {count(report['settings']['repeat'], 'repeat')}: "
        f"speed-up {summary['geomean_speedup']:.2f} (geometric mean)",
        f"worst {summary['worst_speedup']:.2f} ({clean_line(summary['worst_id'])})",
        f"no prompt below {summary['worst_low']:.2f} with {_confidence(report):.0f}% confidence each",
    ]
    if "best_fixed_by_category_speedup" in summary:
        parts.append(f"best fixed widths by category {summary['best_fixed_by_category_speedup']:.2f}")
    if summary.get("oracle_share") is not None:
        parts.append(f"{percent(summary['oracle_share'])} of an oracle")
    text = ", ".join(parts)
    return f"{text}; interrupted, prompts are missing" if report["partial"] else text


def _confidence(report: Mapping[str, Any]) -> float:
    found = [row["speedup_low_confidence"] for row in report["rows"] if row["speedup_low_confidence"] is not None]
    return 100 * min(found, default=0.0)
