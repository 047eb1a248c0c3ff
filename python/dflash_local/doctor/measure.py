"""Runs the doctor's measurements on a loaded pair, each within its share of a minute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from dflash_local import cpu_backend
from dflash_local._errors import Unsupported
from dflash_local._native_loader import LLAMA_CPP_VERSION, llama_cpp, native
from dflash_local.chat.template import KEY as TEMPLATE_KEY
from dflash_local.chat.template import ChatTemplate
from dflash_local.costs import BUDGET_MS
from dflash_local.doctor.machine import look_at, thread_counts
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
)
from dflash_local.generation import generate
from dflash_local.runtime import device_name, head_shape
from dflash_local.sampling import SamplingParams
from dflash_local.tune import available_cores

if TYPE_CHECKING:
    from dflash_local.runtime import Runtime

Progress = Callable[[str], None]

CURVE_CELLS = (512, 2048)
CURVE_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
ATTENTION_CELLS = (256, 2048)
ATTENTION_ROWS = (1, 4)
TYPE_ROWS = (1, 2, 4, 8)
PREFERRED_TYPES = ("q4_0", "q8_0")
PROMPTS: Mapping[str, str] = {
    "prose": "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "code": "Write a Python function that returns the prime numbers below n, with a docstring and an example.",
    "facts": "Explain step by step how rain forms, and name three kinds of clouds.",
}
TRIAL_TOKENS = 64
_TRIAL_SECONDS = 6.0
_TRIAL_ROUNDS = 9  # of each prompt at least, the plain first one included: enough to tell a wrong pair
_THREAD_SECONDS = 8.0
_FILL_SECONDS = 18.0
_CURVE_SECONDS = 4.0
_REPEATS = 3
_TYPE_BYTES = 24 << 20  # larger than most caches: one row is bound by memory, as in the model
_TYPE_BLOCK = 256
_TYPE_BUDGET_MS = 30.0
_ATTENTION_BUDGET_MS = 10.0
_LARGE_SHARE = 0.05
_FLASH = {-1: "auto", 0: "off", 1: "on"}


def thinks(template: str) -> bool:
    """Does a chat template know of thinking?"""
    return "enable_thinking" in template or "<think>" in template


def dummy_tokens(n: int, n_vocab: int) -> list[int]:
    """Ids spread over the vocabulary."""
    return [(i + 1) * 2654435761 % n_vocab for i in range(n)]


def _median_batch(runtime: Runtime, rows: int, repeats: int = _REPEATS) -> float:
    return median(runtime.engine.time_batch(rows) for _ in range(repeats))


def time_threads(runtime: Runtime) -> tuple[ThreadTime, ...]:
    """Batches of one and of four rows for each number of threads, on an empty context."""
    engine = runtime.engine
    found: list[ThreadTime] = []
    rows = min(4, engine.n_batch, engine.n_ctx)

    def use(threads: int) -> None:
        llama_cpp.llama_set_n_threads(engine.ctx, threads, threads)

    engine.reset()
    in_use = runtime.tuning.n_threads
    end = time.monotonic() + _THREAD_SECONDS
    try:
        for threads in (in_use, *(n for n in reversed(thread_counts(available_cores())) if n != in_use)):
            if found and time.monotonic() > end:
                break
            use(threads)
            engine.time_batch(1)  # the team starts
            found.append(ThreadTime(threads, _median_batch(runtime, 1), _median_batch(runtime, rows)))
    finally:
        use(in_use)
    return tuple(sorted(found, key=lambda timed: timed.threads))


def time_attention(runtime: Runtime) -> tuple[AttentionTime, ...]:
    """Flash attention off and on, near and far, all layers together."""
    shape = head_shape(runtime.model, runtime.metadata)
    n_layer: int = llama_cpp.llama_model_n_layer(runtime.model.model)
    if min(shape.n_head, shape.n_head_kv, shape.head_dim) < 1:
        return ()

    def one(cells: int, rows: int, flash: bool) -> float:
        return n_layer * native.time_attention(
            shape.n_head,
            shape.n_head_kv,
            shape.head_dim,
            cells,
            rows,
            flash,
            runtime.tuning.n_threads,
            _ATTENTION_BUDGET_MS,
            ours=flash and runtime.uses_cpu_backend,
        )

    return tuple(
        AttentionTime(cells, rows, one(cells, rows, False), one(cells, rows, True))
        for cells in sorted({min(cells, runtime.n_ctx) for cells in ATTENTION_CELLS})
        for rows in ATTENTION_ROWS
    )


def time_kernels(runtime: Runtime) -> Kernels:
    """Whose kernels the target runs on, and what both take where both are there."""
    ours = cpu_backend.timings(runtime.tuning.n_threads) if native.cpu_backend_device() else None
    return Kernels(runtime.uses_cpu_backend, *(ours or (None, None)))


def time_types(runtime: Runtime) -> tuple[TypeTime, ...]:
    """One multiplication by weights of each large type of the target, and of the types that usually verify well."""
    info = runtime.pair.target_info
    total = sum(info["tensor_bytes"].values()) or 1
    shares = {name: n / total for name, n in info["tensor_bytes"].items() if n / total >= _LARGE_SHARE}
    n_in = -(-(info["n_embd"] or _TYPE_BLOCK) // _TYPE_BLOCK) * _TYPE_BLOCK
    found = []
    for name in sorted({*shares, *PREFERRED_TYPES}, key=lambda name: -shares.get(name, 0.0)):
        n_out = max(_TYPE_BLOCK, _TYPE_BYTES // n_in)
        times = None
        for ours in (True, False) if runtime.uses_cpu_backend else (False,):
            with contextlib.suppress(Unsupported):
                times = {
                    rows: native.time_matmul(name, n_in, n_out, rows, runtime.tuning.n_threads, _TYPE_BUDGET_MS, ours)
                    for rows in TYPE_ROWS
                }
                break
        if times is None:
            continue
        repacked = all(repacked for _, repacked in times.values())
        found.append(TypeTime(name, shares.get(name, 0.0), repacked, {rows: ms for rows, (ms, _) in times.items()}))
    return tuple(found)


def fill(runtime: Runtime, cells: int) -> None:
    """Puts `cells` dummy tokens into the context."""
    engine = runtime.engine
    tokens = dummy_tokens(cells, runtime.vocab.n_tokens)
    engine.reset()
    for start in range(0, cells, engine.n_batch):
        engine.eval(tokens[start : start + engine.n_batch])


def time_curve(runtime: Runtime, cells: int) -> Curve:
    """Target batches by rows behind `cells` tokens of context."""
    engine = runtime.engine
    room = min(engine.n_batch, engine.n_ctx - engine.n_decoded)
    end = time.monotonic() + _CURVE_SECONDS
    ms: dict[int, float] = {}
    for rows in CURVE_ROWS:
        if rows > room or (len(ms) > 1 and time.monotonic() > end):
            break
        ms[rows] = _median_batch(runtime, rows)
    return Curve(cells, ms)


def time_curves(runtime: Runtime, cell_ms: float, progress: Progress) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """Curves at each context length that fits and fills in time. `cell_ms`: what a cell takes to fill, at most."""
    curves: list[Curve] = []
    skipped: list[str] = []
    room = max(1, runtime.n_ctx - max(CURVE_ROWS))
    for cells in sorted({min(cells, room) for cells in CURVE_CELLS}):
        if cells * cell_ms > 1e3 * _FILL_SECONDS:
            skipped.append(f"{cells} cells of context: filling them would take {cells * cell_ms / 1e3:.0f} s")
            if curves:
                continue
            cells = max(1, int(1e3 * _FILL_SECONDS / cell_ms))
        progress(f"batches by rows at {cells} cells")
        start = time.monotonic()
        fill(runtime, cells)
        cell_ms = (time.monotonic() - start) * 1e3 / cells
        curves.append(time_curve(runtime, cells))
    return tuple(curves), tuple(skipped)


def prompt_tokens(runtime: Runtime, text: str) -> list[int]:
    """The prompt through the chat template, or as it is where the model has none."""
    if not runtime.metadata.get(TEMPLATE_KEY):
        return runtime.vocab.tokenize(text, add_special=True, parse_special=False)
    template = ChatTemplate(runtime.metadata, runtime.vocab)
    return template.tokenize(template.render([{"role": "user", "content": text}]))


def run_trial(runtime: Runtime, category: str, text: str, draft_rows: int) -> Trial:
    """Greedy text with `draft_rows` drafted rows verified every round."""
    tokens = prompt_tokens(runtime, text)
    room = runtime.n_ctx - len(tokens)
    if room < draft_rows + 2:
        return Trial(category, 0, (), 0, 0.0)
    run = generate(
        runtime,
        tokens,
        SamplingParams(temperature=0.0),
        max_tokens=min(TRIAL_TOKENS, room),
        draft_rows=draft_rows,
    )
    end = time.monotonic() + _TRIAL_SECONDS
    for n_rounds, _ in enumerate(run, 1):
        if n_rounds >= _TRIAL_ROUNDS and time.monotonic() > end:
            break
    run.close()
    stats = run.result.stats
    return Trial(
        category,
        stats["draft_rounds"],
        tuple(stats["accepted_per_slot"]),
        stats["predicted_n"],
        stats["predicted_ms"],
    )


def _drafter_facts(runtime: Runtime) -> DrafterFacts | None:
    drafter = runtime.pair.drafter
    if drafter is None:
        return None
    info = native.inspect(str(drafter))
    return DrafterFacts(
        runtime.drafter_name or drafter.stem, info["block_size"], device_name() or "CPU", info["thinks"]
    )


def _target(runtime: Runtime) -> Target:
    info: Mapping[str, Any] = runtime.pair.target_info
    return Target(
        runtime.name,
        info["architecture"],
        info["size"],
        info["tensor_bytes"],
        runtime.n_ctx,
        thinks(runtime.metadata.get(TEMPLATE_KEY, "")),
    )


def _cpu(devices: Sequence[Mapping[str, Any]]) -> str:
    return next((str(device["description"]) for device in devices if device["type"] == "cpu"), "CPU")


def examine(runtime: Runtime, *, on_gpu: bool, progress: Progress = lambda _: None) -> Report:
    """All measurements. Raises DecodeError, ModelLoadError (a broken chat template), KeyboardInterrupt."""
    start = time.monotonic()
    devices = native.devices()
    progress("who else is busy")
    machine = look_at(_cpu(devices))
    progress("one round's parts")
    runtime.engine.reset()
    prior = runtime.engine.time_costs(BUDGET_MS)
    widest = prior["widths"][-1]
    progress("threads")
    thread_times = () if on_gpu else time_threads(runtime)
    progress("attention")
    attention = () if on_gpu else time_attention(runtime)
    progress("quantization types")
    types = () if on_gpu else time_types(runtime)
    curves, skipped = time_curves(runtime, widest["base_ms"] / widest["rows"], progress)
    drafter = _drafter_facts(runtime)
    trials: list[Trial] = []
    if drafter is not None:
        for category, text in PROMPTS.items():
            progress(f"acceptance on {category}")
            trials.append(run_trial(runtime, category, text, drafter.block_size - 1))
    runtime.engine.reset()
    return Report(
        machine=machine,
        build=f"llama-cpp-python {LLAMA_CPP_VERSION}",
        devices=tuple(f"{device['name']}: {device['description']}" for device in devices),
        target=_target(runtime),
        drafter=drafter,
        draft_status=runtime.draft_status,
        on_gpu=on_gpu,
        threads=runtime.tuning.n_threads,
        flash=_FLASH[runtime.tuning.flash_attn_type],
        tuning=runtime.tuning.note,
        kernels=time_kernels(runtime),
        attention=attention,
        thread_times=thread_times,
        types=types,
        curves=curves,
        skipped=skipped,
        draft_ms=prior["draft_ms"],
        rest_ms=prior["rest_ms"],
        trials=tuple(trial for trial in trials if trial.rounds),
        seconds=time.monotonic() - start,
    )
