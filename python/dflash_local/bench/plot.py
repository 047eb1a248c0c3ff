"""The report as one picture: speed by category, every prompt, acceptance by slot, the cost curve."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_local._errors import Error
from dflash_local.bench.rounds import add_slots, tokens_by_slot
from dflash_local.bench.table import title

INK, SOFT, GRID, PALE = "#1f2933", "#7b8794", "#e4e7eb", "#a9c7e4"
PLAIN, DRAFT, OTHER, WARN = "#9aa5b1", "#2f6fb0", "#d08a2c", "#b8433a"
PEERS = ("#5b8c5a", "#8b5fa8", "#3f8f8a", "#a0683f")


class PlotError(Error):
    """A picture that cannot be drawn."""


def import_matplotlib() -> Any:
    """The drawing library without a window. Raises PlotError that says what to install."""
    try:
        import matplotlib
    except ImportError as error:
        raise PlotError("--plot needs matplotlib: pip install 'dflash-local[bench]'", "plot") from error
    matplotlib.use("Agg")
    return matplotlib


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Draws the report into a PNG file. Raises PlotError, OSError."""
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    style = {"font.size": 9, "axes.edgecolor": SOFT, "axes.labelcolor": INK, "text.color": INK}
    style |= {"xtick.color": INK, "ytick.color": INK, "axes.titlesize": 10, "axes.titleweight": "bold"}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(13, 9), dpi=110, layout="constrained")
        axes = figure.subplots(2, 2)
        for ax in axes.flat:
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(True, color=GRID, linewidth=0.8)
            ax.set_axisbelow(True)
        _speed(axes[0, 0], report["summary"])
        _prompts(axes[0, 1], report["rows"])
        _slots(axes[1, 0], report["rows"])
        _costs(axes[1, 1], report["rows"])
        figure.suptitle(
            f"{title(report)}, temperature {report['settings']['temperature']:g}, suite {report['suite']}",
            fontsize=11,
        )
        figure.savefig(path)


def _speed(ax: Any, summary: Mapping[str, Any]) -> None:
    """Speed-up by category: bars of the geometric mean, the worst prompt, the best fixed width, peers."""
    groups = [*summary["by_category"].items(), ("all", summary)]
    spots = range(len(groups))
    ax.bar(spots, [group["geomean_speedup"] or 0.0 for _, group in groups], 0.62, color=PALE, label="draft")
    ax.axhline(1.0, color=INK, linewidth=1)
    marks: list[tuple[str, Sequence[float | None], str, str]] = [
        ("worst prompt", [group["worst_speedup"] for _, group in groups], "v", WARN)
    ]
    if "fixed" in summary:
        best = [group.get("best_fixed_speedup") for _, group in groups]
        marks.append(("best fixed width", best, "_", OTHER))
    if "oracle_speedup" in summary:
        marks.append(("oracle", [group.get("oracle_speedup") for _, group in groups], "*", INK))
    for i, name in enumerate(summary.get("peers", ())):
        ratios = [group.get("peers", {}).get(name, {}).get("ratio_to_plain") for _, group in groups]
        marks.append((name, ratios, "o", PEERS[i % len(PEERS)]))
    for label, heights, marker, color in marks:
        points = [(x, y) for x, y in zip(spots, heights, strict=True) if y is not None]
        if points:
            size = 260 if marker == "_" else 34
            ax.scatter(*zip(*points, strict=True), s=size, marker=marker, color=color, zorder=3, label=label)
    ax.set_xticks(list(spots), [name for name, _ in groups], rotation=35, ha="right", rotation_mode="anchor")
    ax.set_ylabel("speed against plain")
    ax.set_title("Speed-up by category (geometric mean)", loc="left")
    ax.grid(False, axis="x")
    top = max((y for _, heights, _, _ in marks for y in heights if y is not None), default=1.0)
    top = max(top, *((group["geomean_speedup"] or 0.0) for _, group in groups), 1.0)
    ax.set_ylim(0, top * 1.22)
    ax.legend(frameon=False, loc="upper left", ncols=min(len(marks) + 1, 4), fontsize=8)


def _prompts(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every prompt's speed-up in rising order, with the bound below it."""
    found = sorted((row for row in rows if row["speedup"] is not None), key=lambda row: float(row["speedup"]))
    ax.set_title("Every prompt, slowest first", loc="left")
    ax.set_ylabel("speed against plain")
    ax.set_xlabel(f"{len(found)} prompts")
    ax.set_xticks([])
    if not found:
        return
    spots = range(len(found))
    values, lows = [row["speedup"] for row in found], [row["speedup_low"] for row in found]
    confidence = 100 * min(row["speedup_low_confidence"] for row in found)
    ax.vlines(spots, lows, values, color=PLAIN, linewidth=1.6, label=f"down to the bound ({confidence:.0f}%)")
    ax.scatter(spots, values, s=16, color=DRAFT, zorder=3, label="median of the pairs")
    ax.axhline(1.0, color=INK, linewidth=1)
    ax.axhline(0.97, color=WARN, linewidth=1, linestyle=(0, (4, 3)), label="0.97, the promise")
    ax.set_ylim(min(0.9, *lows) - 0.04, max(1.05, *values) * 1.06)
    ax.annotate(found[0]["id"], (0, values[0]), xytext=(6, -2), textcoords="offset points", fontsize=8, va="top")
    if len(found) > 1:
        last = (len(found) - 1, values[-1])
        ax.annotate(found[-1]["id"], last, xytext=(-6, 4), textcoords="offset points", fontsize=8, ha="right")
    ax.grid(False, axis="x")
    ax.legend(frameon=False, fontsize=8, loc="upper left")


def _slots(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """How often the draft of each slot is accepted where it was verified; what slots give in tokens per round."""
    lines: dict[str, list[list[list[int]]]] = {"auto": [row["slots"] for row in rows]}
    for row in rows:
        widest = max(row.get("fixed", {}), key=int, default=None)
        if widest is not None:
            lines.setdefault(f"{widest} rows, fixed", []).append(row["fixed"][widest]["slots"])
    ax.set_title("Acceptance by slot (line), tokens per round up to it (bars)", loc="left")
    ax.set_xlabel("slot of the block")
    ax.set_ylabel("accepted of the rounds that verified it")
    ax.set_ylim(0, 1)
    right = ax.twinx()
    right.spines[["top"]].set_visible(False)
    right.set_ylabel("tokens per round", color=SOFT)
    right.tick_params(colors=SOFT)
    drawn: list[tuple[str, list[float], list[float], str]] = []
    for (label, groups), color in zip(lines.items(), (DRAFT, OTHER), strict=False):
        slots = add_slots(groups)
        if slots:
            drawn.append((label, [slot[2] / slot[0] for slot in slots], tokens_by_slot(slots), color))
    if not drawn:
        ax.text(0.5, 0.5, "nothing was drafted", transform=ax.transAxes, ha="center", color=SOFT)
        right.set_axis_off()
        return
    # Bars of the longest line: it has seen every slot.
    sums = max((line[2] for line in drawn), key=len)
    right.bar(range(1, len(sums) + 1), sums, 0.6, color=GRID, zorder=0)
    right.set_ylim(0, max(sums) * 1.25)
    ax.set_zorder(right.get_zorder() + 1)
    ax.patch.set_visible(False)
    for label, rates, _, color in drawn:
        ax.plot(range(1, len(rates) + 1), rates, marker="o", color=color, label=label)
    n_slots = max(len(rates) for _, rates, _, _ in drawn)
    if n_slots <= 24:
        ax.set_xticks(range(1, n_slots + 1))
    ax.grid(False, axis="x")
    ax.legend(frameon=False, fontsize=8, loc="upper right")


def _costs(ax: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Milliseconds of a round by rows of its batch; bubbles: where the draft side worked."""
    target: dict[int, list[float]] = {}
    draft: dict[int, list[float]] = {}
    chosen: dict[int, int] = {}
    worked: dict[int, list[float]] = {}
    for row in rows:
        for rows_text, figures in row["rounds_by_rows"].items():
            n = int(rows_text)
            chosen[n] = chosen.get(n, 0) + figures["rounds"]
            worked.setdefault(n, []).append(figures["target_ms"] + figures["draft_ms"])
        for rows_text, ms in row.get("oracle", {}).get("target_ms", {}).items():
            target.setdefault(int(rows_text), []).append(ms)
        for slots, ms in row.get("oracle", {}).get("draft_ms", {}).items():
            draft.setdefault(int(slots) + 1, []).append(ms)
    ax.set_title("Cost of a round, and where the planner works", loc="left")
    ax.set_xlabel("rows of the target's batch")
    ax.set_ylabel("milliseconds")
    if target:
        curve = {n: statistics.median(ms) for n, ms in sorted(target.items())}
        ax.plot(list(curve), list(curve.values()), marker=".", color=SOFT, label="target's batch")
        passes = {n: curve[n] + statistics.median(ms) for n, ms in sorted(draft.items()) if n in curve}
        if passes:
            ax.plot(list(passes), list(passes.values()), marker=".", color=OTHER, label="with a draft pass")
        ax.plot(list(curve), [n * curve[1] for n in curve], color=PLAIN, linestyle=":", label="one row, times rows")
        ax.set_ylim(0, max(*curve.values(), *passes.values()) * 1.12)
    total = sum(chosen.values())
    if total:
        spots = sorted(chosen)
        sizes = [30 + 900 * chosen[n] / total for n in spots]
        heights = [statistics.median(worked[n]) for n in spots]
        ax.scatter(spots, heights, s=sizes, color=DRAFT, alpha=0.45, label="rounds of the draft side", zorder=3)
        for n, y in zip(spots, heights, strict=True):
            share = 100 * chosen[n] / total
            if share >= 1:
                above = {"xytext": (0, 8), "textcoords": "offset points"} if share < 15 else {}
                ax.annotate(f"{share:.0f}%", (n, y), ha="center", va="center", fontsize=8, zorder=4, **above)
    ax.set_xlim(0, max([*target, *chosen, 8]) + 1)
    if not target and worked:
        ax.set_ylim(0, 1.4 * max(ms for group in worked.values() for ms in group))
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        legend = ax.legend(handles, labels, frameon=False, fontsize=8, loc="lower right")
        for handle in legend.legend_handles:
            if hasattr(handle, "set_sizes"):
                handle.set_sizes([40])
