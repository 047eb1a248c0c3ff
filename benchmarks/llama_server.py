"""llama.cpp's own DFlash on the same prompts: one llama-server without a drafter, one with it, asked in turn.

    python benchmarks/llama_server.py --server PATH/llama-server [--n-max 1,2,3,7] [--repeat 3] [--json OUT]

Both servers stand on loopback with the same threads, context and flash attention; prompts go as token ids to
/completion, greedy, without prompt reuse, and each setting's speed is that of the response's `timings`. The best
setting is the one with the highest ratio to the plain server.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import common

HOST = "127.0.0.1"
ROUNDS_COUNTER = "llamacpp:spec_decode_num_drafts_total"
START_SECONDS = 120
ANSWER_SECONDS = 300


@contextlib.contextmanager
def server(args: Any, extra: Sequence[str]) -> Iterator[str]:
    """A running llama-server; yields its address and always ends it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [
        str(args.server),
        "-m",
        str(args.target),
        "--host",
        HOST,
        "--port",
        str(port),
        "--offline",
        "--no-ui",
        "--metrics",
    ]
    command += ["-c", str(args.n_ctx), "-np", "1", "-t", str(args.threads), "-tb", str(args.threads)]
    command += ["-b", "512", "-ub", "512", "-fa", args.flash, "-fit", "off", "-ngl", "0", "-cram", "0", *extra]
    with args.log.open("ab") if args.log else contextlib.nullcontext(subprocess.DEVNULL) as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            wait_until_ready(process, f"http://{HOST}:{port}")
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], address: str) -> None:
    """Returns when /health answers; raises where the server ends or takes too long."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"llama-server ended with {process.returncode}: run it with --log FILE to see why")
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.1)
    raise SystemExit(f"llama-server was not ready within {START_SECONDS} s")


def complete(address: str, ids: Sequence[int], max_tokens: int) -> dict[str, Any]:
    """One greedy completion: ids and timings."""
    body = {"prompt": list(ids), "n_predict": max_tokens, "temperature": 0, "cache_prompt": False}
    body |= {"return_tokens": True, "stream": False, "samplers": ["temperature"]}
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:
        answer: dict[str, Any] = json.load(response)
    return {"tokens": answer["tokens"], **answer["timings"]}


def draft_rounds(address: str) -> int:
    """Verification rounds since the server started, 0 without a drafter."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=ANSWER_SECONDS) as response:
        lines = response.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(ROUNDS_COUNTER))


def compare(args: Any, model: common.Model, prompts: Sequence[common.Prompt], n_max: int) -> list[dict[str, Any]]:
    """One row a prompt: the plain server and the drafting one with n_max, in turn."""
    drafting = ["-md", str(args.drafter), "--spec-type", "draft-dflash", "--spec-draft-n-max", str(n_max), "-ngld", "0"]
    drafting += ["-td", str(args.threads), "-tbd", str(args.threads)]
    rows = []
    with server(args, []) as plain, server(args, drafting) as draft:
        warm = model.chat_ids(prompts[0].prompt)
        for address in (plain, draft):
            complete(address, warm, 16)
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), f"n_max {n_max} {prompt.id}")
            ids = model.chat_ids(prompt.prompt)
            runs: dict[str, list[dict[str, Any]]] = {plain: [], draft: []}
            for repeat in range(args.repeat):
                for address in (plain, draft) if repeat % 2 == 0 else (draft, plain):
                    before = draft_rounds(address)
                    run = complete(address, ids, prompt.max_tokens)
                    runs[address].append(run | {"rounds": draft_rounds(address) - before})
            rows.append({"id": prompt.id, "category": prompt.category, **reduce(runs[plain], runs[draft])})
    common.progress(len(prompts), len(prompts), f"n_max {n_max}")
    return rows


def reduce(plain: Sequence[Mapping[str, Any]], draft: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of both sides; counts are those of the last run."""
    tps = [statistics.median(r["predicted_per_second"] for r in side) for side in (plain, draft)]
    last = draft[-1]
    return {
        "plain_tps": tps[0],
        "draft_tps": tps[1],
        "ratio": tps[1] / tps[0],
        "predicted_n": last["predicted_n"],
        "draft_n": last.get("draft_n", 0),
        "accepted": last.get("draft_n_accepted", 0),
        "rounds": last["rounds"],
        "identical": plain[-1]["tokens"] == last["tokens"],
    }


def summarize(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratio, tokens per round and equal texts of a group of prompts."""
    n_rounds = sum(r["rounds"] for r in rows)
    worst = min(rows, key=lambda r: r["ratio"])
    return {
        "prompts": len(rows),
        "plain_tps": statistics.median(r["plain_tps"] for r in rows),
        "draft_tps": statistics.median(r["draft_tps"] for r in rows),
        "ratio": common.geomean(r["ratio"] for r in rows),
        "worst": worst["ratio"],
        "tokens_per_round": 1 + sum(r["accepted"] for r in rows) / n_rounds if n_rounds else math.nan,
        "identical": sum(r["identical"] for r in rows),
    }


def main() -> None:
    """Compares for each n_max and prints."""
    options = common.parser(__doc__)
    options.add_argument("--server", type=Path, required=True, help="a llama-server binary")
    options.add_argument("--n-max", type=common.int_list, default=[1, 2, 3, 7], help="tokens that llama.cpp drafts")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--log", type=Path, default=None, help="append the servers' output here")
    args, prompts = common.parse(options)
    if not args.server.is_file():
        raise SystemExit(f"{args.server}: no such file")
    with common.Model(args.target) as model:
        rows = {str(n_max): compare(args, model, prompts, n_max) for n_max in args.n_max}
    summary = {n_max: common.by_category(group, summarize) for n_max, group in rows.items()}
    overall = {n_max: s["all"] for n_max, s in summary.items()}
    best = max(overall, key=lambda n_max: overall[n_max]["ratio"])
    common.table(
        f"llama-server with its own DFlash, {args.target.name}, {args.threads} threads, best n_max {best}",
        ("n_max", "plain t/s", "draft t/s", "ratio", "worst", "tokens per round", "as plain"),
        [
            (
                n_max,
                s["plain_tps"],
                s["draft_tps"],
                s["ratio"],
                s["worst"],
                s["tokens_per_round"],
                f"{s['identical']} of {s['prompts']}",
            )
            for n_max, s in overall.items()
        ],
    )
    common.table(
        "Ratio to plain by category",
        ("category", *(f"n_max {n_max}" for n_max in summary)),
        [(category, *(s[category]["ratio"] for s in summary.values())) for category in summary[best]],
    )
    report = {"settings": common.settings(args), "best": best, "summary": summary, "rows": rows}
    common.write_json(args.json, report)


if __name__ == "__main__":
    main()
