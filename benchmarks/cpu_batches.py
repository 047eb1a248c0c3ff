"""Times whole decodes by rows and context: our CPU kernels against ggml's with flash attention off and on.

    python benchmarks/cpu_batches.py [--target FILE ...] [--threads 2] [--contexts 128,512,2048] [--repeat 2]

Each side decodes in a process of its own, the sides take turns, figures are medians in milliseconds. `best` is the
faster of ggml's two attention modes at that width. Quiet machine: nothing else may run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from common import default_target
from llama_cpp import _internals

from dflash_local import cpu_backend
from dflash_local._llama_log import set_verbose
from dflash_local.runtime import load_model

SIDES = {"ggml, flash off": ("ggml", 0), "ggml, flash on": ("ggml", 1), "ours": ("dflash", 1)}
CHUNK = 512
RUNS = 7  # of each width in one process


def decode(context: _internals.LlamaContext, tokens: Sequence[int], first: int, all_logits: bool) -> float:
    """Milliseconds of one batch at positions [first, first + n)."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, all_logits or i + 1 == len(tokens)
    start = time.perf_counter()
    code = llama_cpp.llama_decode(context.ctx, batch)
    llama_cpp.llama_synchronize(context.ctx)
    ms = 1e3 * (time.perf_counter() - start)
    llama_cpp.llama_batch_free(batch)
    if code != 0:
        raise RuntimeError(f"llama_decode returned {code}")
    return ms


def measure(
    target: Path, backend: str, flash: int, threads: int, contexts: Sequence[int], widths: Sequence[int]
) -> dict[str, Any]:
    """Milliseconds by context and rows, of the prompt's last whole chunk, and of loading."""
    set_verbose(False)
    use = cpu_backend.choose("dflash" if backend == "dflash" else "ggml", threads)
    start = time.perf_counter()
    model = load_model(target, use_cpu_backend=use)
    load_s = time.perf_counter() - start
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = max(contexts) + 64, CHUNK, CHUNK
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = flash
    context = _internals.LlamaContext(model=model, params=params, verbose=False)
    n_vocab = llama_cpp.llama_vocab_n_tokens(model.vocab)
    tokens = [int(token) for token in np.random.default_rng(1).integers(100, min(n_vocab, 40000), max(contexts) + 64)]
    memory = llama_cpp.llama_get_memory(context.ctx)
    out: dict[str, Any] = {"load_s": load_s, "ms": {}, "prompt_ms": {}}
    decode(context, tokens[:CHUNK], 0, all_logits=False)
    for n in contexts:
        llama_cpp.llama_memory_clear(memory, True)
        chunks = [decode(context, tokens[i : min(i + CHUNK, n)], i, all_logits=False) for i in range(0, n, CHUNK)]
        out["prompt_ms"][n] = sum(chunks)
        times: dict[int, list[float]] = {rows: [] for rows in widths}
        for _ in range(RUNS):
            for rows, found in times.items():
                llama_cpp.llama_memory_seq_rm(memory, 0, n, -1)
                found.append(decode(context, tokens[n : n + rows], n, all_logits=True))
        out["ms"][n] = times
    return out


def child(args: argparse.Namespace, target: Path, side: str) -> dict[str, Any]:
    """One side in a process of its own."""
    backend, flash = SIDES[side]
    command = [sys.executable, __file__, "--side", side, "--target", str(target), "--threads", str(args.threads)]
    command += ["--contexts", args.contexts, "--widths", args.widths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{side} ({backend}, flash {flash}) failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(args: argparse.Namespace, target: Path) -> None:
    """Prints the table of one target."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for _ in range(args.repeat):
        for side, found in runs.items():
            found.append(child(args, target, side))
    widths, contexts = args.widths.split(","), args.contexts.split(",")

    def median(side: str, context: str, rows: str) -> float:
        return statistics.median(ms for run in runs[side] for ms in run["ms"][context][rows])

    print(
        f"\n{target.name}, {args.threads} threads, ms (load: "
        + ", ".join(f"{side} {min(run['load_s'] for run in found):.2f} s" for side, found in runs.items())
        + ")\n"
    )
    print("| cells | side | " + " | ".join(widths) + " | T(8)/T(1) | T(16)/T(1) | prompt |")
    print("| --- | --- |" + " --- |" * (len(widths) + 3))
    for context in contexts:
        table = {side: {rows: median(side, context, rows) for rows in widths} for side in SIDES}
        for side, ms in table.items():
            ratios = [f"{ms[rows] / ms['1']:.2f}" if rows in ms else "-" for rows in ("8", "16")]
            prompt = statistics.median(run["prompt_ms"][context] for run in runs[side])
            cells = [f"{ms[rows]:.1f}" for rows in widths] + ratios + [f"{prompt:.0f}"]
            print(f"| {context} | {side} | " + " | ".join(cells) + " |")
        gains = [min(table[side][rows] for side in list(SIDES)[:2]) / table["ours"][rows] for rows in widths]
        print(f"| {context} | best / ours | " + " | ".join(f"{gain:.2f}" for gain in gains) + " | | | |")


def main() -> None:
    """Compares the sides, or is one of them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--target", type=Path, action="append", help="GGUF file; several times for several")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--contexts", default="128,512,2048")
    options.add_argument("--widths", default="1,2,4,8,16,32")
    options.add_argument("--repeat", type=int, default=2)
    options.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    args = options.parse_args()
    targets = args.target or [default_target()]
    if args.side:
        contexts, widths = ([int(n) for n in text.split(",")] for text in (args.contexts, args.widths))
        print(json.dumps(measure(targets[0], *SIDES[args.side], args.threads, contexts, widths)))
        return
    for target in targets:
        compare(args, target)


if __name__ == "__main__":
    main()
