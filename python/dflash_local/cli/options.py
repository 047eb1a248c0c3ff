"""Options that several commands share, each with its DFLASH_ environment twin, and what they mean together."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from dflash_local.cpu_backend import CpuBackend
    from dflash_local.pairs.resolve import Draft
    from dflash_local.runtime import Runtime
    from dflash_local.sampling import SamplingParams

DEFAULT_MODEL = "smollm2-135m-instruct"
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.7, 40, 0.95, 0.05


class FlashAttn(StrEnum):
    """When to use flash attention."""

    auto = "auto"
    on = "on"
    off = "off"


class Baseline(StrEnum):
    """What plain decoding a benchmark compares with."""

    same = "same"
    best = "best"


ModelOption = Annotated[
    str, typer.Option("-m", "--model", envvar="DFLASH_MODEL", help="A GGUF file, or the name of a known model.")
]
DraftOption = Annotated[
    str,
    typer.Option(
        "-d",
        "--draft",
        envvar="DFLASH_DRAFT",
        metavar="auto|off|ngram|PATH",
        help="auto finds the drafter of a known model, or dflash-*.gguf beside the model; ngram: only copies of what "
        "stands in the text; or name its file.",
    ),
]
DraftRowsOption = Annotated[
    str,
    typer.Option(
        "--draft-rows",
        envvar="DFLASH_DRAFT_ROWS",
        metavar="auto|N",
        help="Drafted rows verified each round; auto leaves it to measurement.",
    ),
]
SystemOption = Annotated[
    str | None, typer.Option("--system", envvar="DFLASH_SYSTEM", metavar="TEXT", help="System prompt.")
]
CtxOption = Annotated[
    int | None,
    typer.Option(
        "--ctx",
        envvar="DFLASH_CTX",
        min=0,
        max=2**31 - 1,
        help="Context in tokens; 0: the model's own. [default: 4096 at most]",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option("--threads", envvar="DFLASH_THREADS", min=1, max=512, help="CPU threads. [default: measured]"),
]
GpuLayersOption = Annotated[
    int,
    typer.Option(
        "--gpu-layers",
        envvar="DFLASH_GPU_LAYERS",
        min=-1,
        max=2**31 - 1,
        help="Layers on the GPU, where this build has one; -1: all.",
    ),
]
FlashAttnOption = Annotated[
    FlashAttn,
    typer.Option("--flash-attn", envvar="DFLASH_FLASH_ATTN", help="Flash attention; auto is measured on a CPU."),
]
CpuBackendOption = Annotated[
    str,
    typer.Option(
        "--cpu-backend",
        envvar="DFLASH_CPU_BACKEND",
        metavar="auto|dflash|ggml",
        help="CPU kernels: ours, which check several tokens at little more than the cost of one, or ggml's; auto: ours "
        "unless they are clearly slower here.",
    ),
]
TemperatureOption = Annotated[
    float, typer.Option("--temperature", envvar="DFLASH_TEMPERATURE", help="0: always the likeliest token.")
]
TopKOption = Annotated[int, typer.Option("--top-k", envvar="DFLASH_TOP_K", help="Keep the K likeliest; 0: all.")]
TopPOption = Annotated[
    float, typer.Option("--top-p", envvar="DFLASH_TOP_P", help="Keep the likeliest up to this probability.")
]
MinPOption = Annotated[
    float, typer.Option("--min-p", envvar="DFLASH_MIN_P", help="Drop what is this much less likely than the likeliest.")
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", envvar="DFLASH_SEED", help="Seed of the sampling. [default: random, reported]")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", envvar="DFLASH_VERBOSE", help="Show llama.cpp's log and our measurements.")
]


def parse_draft(text: str) -> Draft:
    """auto, off, ngram, or a path."""
    if text == "auto":
        return "auto"
    if text == "off":
        return "off"
    if text == "ngram":
        return "ngram"
    if not text:
        raise typer.BadParameter("it is empty, expected auto, off, ngram or a path", param_hint="--draft")
    return Path(text)


def parse_cpu_backend(text: str) -> CpuBackend:
    """auto, dflash or ggml; 0 stands for ggml."""
    from dflash_local.cpu_backend import parse

    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--cpu-backend") from error


def parse_draft_rows(text: str) -> int:
    """-1 for auto, else the number of rows."""
    if text == "auto":
        return -1
    if not (text.isascii() and text.isdigit()) or len(text) > 4:
        raise typer.BadParameter(f"{text!r} is neither auto nor a number of rows", param_hint="--draft-rows")
    return int(text)


def parse_peers(texts: list[str]) -> list[tuple[str, str]]:
    """Name and base address of each server."""
    from dflash_local.bench.peer import parse_peer

    peers: list[tuple[str, str]] = []
    for text in texts:
        try:
            name, base = parse_peer(text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--peer") from error
        if name in dict(peers):
            raise typer.BadParameter(f"two are named {name!r}: give names, NAME=URL", param_hint="--peer")
        peers.append((name, base))
    return peers


def make_params(
    temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None, grammar: str | None = None
) -> SamplingParams:
    """Sampling settings; a bad one is wrong usage."""
    from dflash_local.sampling import SamplingParams

    try:
        return SamplingParams(
            temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, grammar=grammar
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def open_runtime(
    model: str,
    draft: Draft,
    *,
    ctx: int | None,
    threads: int | None,
    gpu_layers: int,
    flash_attn: FlashAttn,
    cpu_backend: str,
    verbose: bool,
    draft_rows: int = -1,
) -> Runtime:
    """Loads target and drafter; warnings and the memory that drafting adds go to stderr."""
    from dflash_local.cli.run import tell
    from dflash_local.runtime import load_runtime
    from dflash_local.tune import available_cores

    if threads is not None and threads > available_cores():
        tell(f"warning: {threads} threads on {available_cores()} cores: more threads than cores make decoding slow")
    runtime = load_runtime(
        model,
        draft,
        n_ctx=ctx,
        n_threads=threads,
        n_gpu_layers=gpu_layers,
        flash_attn=None if flash_attn is FlashAttn.auto else flash_attn is FlashAttn.on,
        cpu_kernels=parse_cpu_backend(cpu_backend),
        verbose=verbose,
        notify=tell,
    )
    slots = runtime.draft_slots
    if slots is not None and draft_rows > slots:
        runtime.close()
        raise typer.BadParameter(
            f"{draft_rows} is more than the {slots} slots of this drafter", param_hint="--draft-rows"
        )
    if verbose:
        tell(runtime.tuning.note)
        tell(f"CPU kernels: {'ours' if runtime.uses_cpu_backend else 'those of ggml'}")
        tell(f"drafter: {runtime.draft_status}, taps by {runtime.engine.tap_mode or 'none'}")
    return runtime
