"""What the measurements mean, in plain words. Pure: a report in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_local.doctor.report import Report, TypeTime

PAYS = 1.03  # speed against plain from which drafting is worth it
CLEARLY = 0.85  # of the time in use: something else is clearly faster
WRONG_PAIR = 0.05  # share of first drafted tokens accepted below which a drafter does not know its target
ENOUGH_ROUNDS = 20
VERIFY_ROWS = 4


def speed(factor: float) -> str:
    """A speed against plain decoding: 1.42x."""
    return f"{factor:.2f}x"


def first_slot(report: Report) -> float | None:
    """Share of first drafted tokens accepted over all prompts, None with too few rounds to tell."""
    rounds = sum(trial.rounds for trial in report.trials)
    if rounds < ENOUGH_ROUNDS:
        return None
    return sum(trial.accepted[0] for trial in report.trials if trial.accepted) / rounds


def is_wrong_pair(report: Report) -> bool:
    """Does the drafter hardly ever guess right, on any prompt?"""
    share = first_slot(report)
    return share is not None and share < WRONG_PAIR


def _machine(report: Report) -> Iterator[str]:
    machine = report.machine
    if machine.busy and machine.busy_cores + report.threads > machine.cores + 0.5:
        names = ", ".join(f"{process.name} ({process.cores:.1f} cores)" for process in machine.busy[:3])
        free = max(1, round(machine.cores - machine.busy_cores))
        yield (
            f"Other programs keep {machine.busy_cores:.1f} of {machine.cores} cores busy now: {names}. Every figure "
            f"here was taken beside them. Stop them and run doctor again, or use --threads {free}: more threads than "
            "free cores make each round wait for the slowest."
        )
    elif machine.busy is None and machine.load is not None and machine.load > machine.cores:
        yield (
            f"The load is {machine.load:.1f} on {machine.cores} cores: other programs are running, and every figure "
            "here was taken beside them."
        )


def _threads(report: Report) -> Iterator[str]:
    def total(threads: int) -> float | None:
        return next((t.one_ms + t.four_ms for t in report.thread_times if t.threads == threads), None)

    now = total(report.threads)
    if now is None:
        return
    best = min(report.thread_times, key=lambda t: t.one_ms + t.four_ms)
    if best.one_ms + best.four_ms < CLEARLY * now:
        yield (
            f"Use --threads {best.threads}: it is {now / (best.one_ms + best.four_ms):.1f} times as fast here as the "
            f"{report.threads} threads in use."
        )


def _attention(report: Report) -> Iterator[str]:
    if report.flash not in ("on", "off"):
        return
    worse = []
    for cells in sorted({time.cells for time in report.attention}):
        times = [time for time in report.attention if time.cells == cells]
        off, on = sum(time.off_ms for time in times), sum(time.on_ms for time in times)
        used, other = (on, off) if report.flash == "on" else (off, on)
        if other < CLEARLY * used:
            worse.append((cells, used / other))
    if worse:
        other_mode = "off" if report.flash == "on" else "on"
        where = " and ".join(f"{factor:.1f} times as fast at {cells} cells" for cells, factor in worse)
        every = len(worse) == len({time.cells for time in report.attention})
        yield (
            f"Flash attention is {report.flash}; {other_mode} it takes less time for the attention: {where}. "
            + (f"Use --flash-attn {other_mode}." if every else f"With such contexts use --flash-attn {other_mode}.")
        )


def better_type(report: Report) -> tuple[TypeTime, TypeTime] | None:
    """The target's main type and one whose batches of four rows cost clearly less, or None."""
    main = max(report.types, key=lambda t: t.share, default=None)
    if main is None or main.share == 0.0:
        return None
    others = [t for t in report.types if t is not main and t.ms[VERIFY_ROWS] < CLEARLY * main.ms[VERIFY_ROWS]]
    found = min(others, key=lambda t: t.ms[VERIFY_ROWS] + t.ms[1], default=None)
    return None if found is None else (main, found)


def _types(report: Report) -> Iterator[str]:
    found = better_type(report)
    if found is None:
        return
    main, other = found
    why = "" if main.repacked or not other.repacked else f": this CPU has no repacked kernels for {main.name.upper()}"
    price = other.ms[1] / main.ms[1]
    plain = f", but one row takes {price:.1f} times as long" if price > 1.0 / CLEARLY else ""
    yield (
        f"{main.name.upper()} weights verify badly here: {VERIFY_ROWS} rows cost "
        f"{main.ms[VERIFY_ROWS] / main.ms[1]:.1f} times one row{why}. Prefer a {other.name.upper()} file of this "
        f"model: there {VERIFY_ROWS} rows cost {other.ms[VERIFY_ROWS] / main.ms[VERIFY_ROWS]:.0%} of that{plain}."
    )


def _drafter(report: Report) -> Iterator[str]:
    if report.drafter is None or not report.trials:
        return
    if is_wrong_pair(report):
        yield (
            f"The drafter guesses almost nothing right ({first_slot(report):.0%} of first tokens, on every prompt): it "
            "was most likely made for another target, or for another fine-tune of it. Use the drafter made for this "
            "model, or -d off."
        )
        return
    pays = [trial.category for trial in report.trials if report.choice(trial).speedup >= PAYS]
    if not pays:
        yield (
            "Drafting does not pay here: no width makes up for its cost. Leave --draft-rows on auto, it decodes "
            "plainly then, or use -d off to save its memory."
        )
    elif len(pays) == len(report.trials):
        yield "Drafting pays on every kind of text tried. Leave --draft-rows on auto."
    else:
        yield f"Drafting pays on {' and '.join(pays)} only. Leave --draft-rows on auto: it sees which text it is."


def _thinking(report: Report) -> Iterator[str]:
    drafter = report.drafter
    if drafter is None:
        return
    if report.target.thinks and drafter.thinks is False:
        yield (
            "The target can think before it answers, the drafter was trained on answers without thinking: expect fewer "
            "accepted tokens while it thinks. Switch thinking off, or use a drafter trained with it."
        )
    elif not report.target.thinks and drafter.thinks:
        yield (
            "The drafter was trained on texts with thinking, but the target's chat template knows of none: they may be "
            "of different versions."
        )


def _copies(report: Report) -> Iterator[str]:
    copies = report.copies()
    if report.drafter is not None or not copies:
        return
    rows, gain = max(copies.items(), key=lambda item: item[1])
    if gain >= PAYS:
        yield (
            f"Without a drafter ({report.draft_status}), text that repeats itself can still be copied: up to "
            f"{speed(gain)} of plain while {rows} rows of a copy are right. Edits, code changes and quotations gain "
            "most."
        )
    else:
        yield f"Without a drafter ({report.draft_status}), not even right copies would pay on this machine."


def advice(report: Report) -> tuple[str, ...]:
    """What to do, the weightiest first; one sentence that all is well where there is nothing."""
    found = [
        *_machine(report),
        *_threads(report),
        *_attention(report),
        *_types(report),
        *_drafter(report),
        *_thinking(report),
        *_copies(report),
    ]
    return tuple(found) or ("Nothing to change.",)
