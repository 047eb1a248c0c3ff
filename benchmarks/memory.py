"""Memory that drafting adds: what is printed before loading against the growth that is measured.

    python benchmarks/memory.py [--n-ctx 1024] [--repeat 3] [--json OUT]

Child processes do the same work, a full prompt batch and some rounds, with and without the drafter; the difference of
their resident sizes (after malloc_trim) is what drafting added, tap buffers included.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import common
import psutil

N_BATCH = 512


def trim() -> None:
    """Gives freed heap pages back, where the C library can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def resident() -> int:
    """Resident bytes of this process."""
    trim()
    return int(psutil.Process().memory_info().rss)


def child(args: Any) -> None:
    """Loads, works, and prints the resident size at each stage as JSON."""
    from dflash_local.memory import MAX_LEAVES
    from dflash_local.pairs.resolve import estimate_pair, resolve_pair

    sizes: dict[str, Any] = {}
    with common.Model(args.target) as model:
        params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash, n_batch=N_BATCH)
        drafter = args.drafter if args.child == "draft" else None
        if drafter:
            params.n_seq_max, params.kv_unified = MAX_LEAVES, True
            _, estimate = estimate_pair(resolve_pair(args.target, drafter), n_batch=N_BATCH)
            sizes["estimate"] = dict(estimate or {})
        prompt = model.tokenize("A long walk along the coast takes a whole day. " * 200)[: min(600, args.n_ctx - 64)]
        with common.open_engine(model, params, drafter) as engine, common.sampler() as chain:
            for _ in range(2):
                common.run_engine(engine, model, prompt, chain, 32, 7 if drafter else 0)
            sizes["resident"] = resident()
            if drafter:
                sizes["reported"] = dict(engine.draft_memory())
                sizes["tap_mode"] = engine.tap_mode
    print(json.dumps(sizes))


def spawn(args: Any, kind: str) -> dict[str, Any]:
    """One child process."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", kind, "--n-ctx", str(args.n_ctx)]
    command += ["--target", str(args.target), "--drafter", str(args.drafter), "--threads", str(args.threads)]
    done = subprocess.run([*command, "--flash", args.flash], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise SystemExit(f"child process failed with {done.returncode}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Compares and prints."""
    options = common.parser(__doc__)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--child", choices=("plain", "draft"), default="", help="internal: work, print sizes")
    args, _ = common.parse(options)
    if args.child:
        child(args)
        return
    plain = [spawn(args, "plain") for _ in range(args.repeat)]
    draft = [spawn(args, "draft") for _ in range(args.repeat)]
    measured = statistics.median(r["resident"] for r in draft) - statistics.median(r["resident"] for r in plain)
    estimate, reported = draft[0]["estimate"], draft[0]["reported"]
    mib = 1 << 20
    common.table(
        f"Memory of drafting, {args.target.name}, n_ctx {args.n_ctx}, taps by {draft[0]['tap_mode']}, MiB",
        ("", *estimate),
        [
            ("printed before loading", *(v / mib for v in estimate.values())),
            ("in use, as the engine says", *(reported[k] / mib for k in estimate)),
        ],
    )
    deviation = measured / estimate["total"] - 1
    print(f"\nmeasured growth: {measured / mib:.2f} MiB, {100 * deviation:+.1f}% of what is printed")
    report = {"settings": common.settings(args), "estimate": estimate, "reported": reported, "measured": measured}
    common.write_json(args.json, report | {"deviation": deviation, "plain": plain, "draft": draft})


if __name__ == "__main__":
    main()
