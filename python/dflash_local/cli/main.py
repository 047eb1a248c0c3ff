"""The `dflash-local` command. Heavy modules are imported inside the commands, so that --help is quick."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from dflash_local.cli import options as opt
from dflash_local.cli.run import FAILED, INTERRUPTED, open_missing_streams, tell

app = typer.Typer(
    name="dflash-local",
    help="DFlash drafting for GGUF models on your own machine: the same text, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from dflash_local import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def chat(
    model: opt.ModelOption = opt.DEFAULT_MODEL,
    draft: opt.DraftOption = "auto",
    draft_rows: opt.DraftRowsOption = "auto",
    system: opt.SystemOption = None,
    ctx: opt.CtxOption = None,
    threads: opt.ThreadsOption = None,
    gpu_layers: opt.GpuLayersOption = -1,
    flash_attn: opt.FlashAttnOption = opt.FlashAttn.auto,
    cpu_backend: opt.CpuBackendOption = "auto",
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", envvar="DFLASH_MAX_TOKENS", min=0, help="Tokens an answer may have; 0: no limit."),
    ] = 1024,
    temperature: opt.TemperatureOption = opt.TEMPERATURE,
    top_k: opt.TopKOption = opt.TOP_K,
    top_p: opt.TopPOption = opt.TOP_P,
    min_p: opt.MinPOption = opt.MIN_P,
    seed: opt.SeedOption = None,
    verbose: opt.VerboseOption = False,
) -> None:
    """Talk with a model. With piped input, each line is a message."""
    from dflash_local.cli.run import finish

    def body() -> int:
        params = opt.make_params(temperature, top_k, top_p, min_p, seed)
        pair = opt.parse_draft(draft)
        rows = opt.parse_draft_rows(draft_rows)
        from dflash_local.cli.chat import ChatOptions, run_chat

        with opt.open_runtime(
            model,
            pair,
            ctx=ctx,
            threads=threads,
            gpu_layers=gpu_layers,
            flash_attn=flash_attn,
            cpu_backend=cpu_backend,
            verbose=verbose,
            draft_rows=rows,
        ) as runtime:
            greet = sys.stdin.isatty() and sys.stdout.isatty()
            return run_chat(runtime, ChatOptions(params, system, max_tokens, rows, greet))

    finish(body, verbose=verbose)


@app.command()
def generate(
    context: typer.Context,
    model: opt.ModelOption = opt.DEFAULT_MODEL,
    draft: opt.DraftOption = "auto",
    draft_rows: opt.DraftRowsOption = "auto",
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", envvar="DFLASH_PROMPT", metavar="TEXT", help="The prompt.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", envvar="DFLASH_FILE", help="A text file with the prompt; - or nothing: stdin."),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", envvar="DFLASH_RAW", help="No chat template: continue the prompt as it is.")
    ] = False,
    system: opt.SystemOption = None,
    ctx: opt.CtxOption = None,
    threads: opt.ThreadsOption = None,
    gpu_layers: opt.GpuLayersOption = -1,
    flash_attn: opt.FlashAttnOption = opt.FlashAttn.auto,
    cpu_backend: opt.CpuBackendOption = "auto",
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", envvar="DFLASH_MAX_TOKENS", min=0, help="Tokens at most; 0: no limit."),
    ] = 512,
    temperature: opt.TemperatureOption = opt.TEMPERATURE,
    top_k: opt.TopKOption = opt.TOP_K,
    top_p: opt.TopPOption = opt.TOP_P,
    min_p: opt.MinPOption = opt.MIN_P,
    seed: opt.SeedOption = None,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", envvar="DFLASH_STOP", metavar="TEXT", help="End before this text; may be repeated."),
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option("--grammar", envvar="DFLASH_GRAMMAR", help="A GBNF file that the text must follow.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="DFLASH_JSON", help="Print one JSON object with text, tokens and figures.")
    ] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove", envvar="DFLASH_PROVE", help="Decode again and check each token; exit 1 if one differs."
        ),
    ] = False,
    verbose: opt.VerboseOption = False,
) -> None:
    """Answer one prompt. The text goes to stdout as it is made, the figures to stderr."""
    from dflash_local.cli.run import finish

    def body() -> int:
        if raw and system:
            raise typer.BadParameter("--raw uses no chat template, so there is no place for a system prompt")
        pair = opt.parse_draft(draft)
        rows = opt.parse_draft_rows(draft_rows)
        opt.make_params(temperature, top_k, top_p, min_p, seed)
        from dflash_local.cli.generate import (
            GenerateOptions,
            chosen_source,
            read_prompt,
            read_text_file,
            run_generate,
        )
        from dflash_local.textstream import check_stops

        try:
            stops = list(check_stops(stop or []))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--stop") from error
        text = read_prompt(*chosen_source(context, prompt, file))
        rules = read_text_file(grammar, "the grammar") if grammar is not None else None
        params = opt.make_params(temperature, top_k, top_p, min_p, seed, rules)
        with opt.open_runtime(
            model,
            pair,
            ctx=ctx,
            threads=threads,
            gpu_layers=gpu_layers,
            flash_attn=flash_attn,
            cpu_backend=cpu_backend,
            verbose=verbose,
            draft_rows=rows,
        ) as runtime:
            wanted = GenerateOptions(params, raw, system, max_tokens, stops, rows, as_json, prove)
            return run_generate(runtime, text, wanted)

    finish(body, verbose=verbose)


@app.command()
def bench(
    model: opt.ModelOption = opt.DEFAULT_MODEL,
    draft: opt.DraftOption = "auto",
    draft_rows: opt.DraftRowsOption = "auto",
    suite: Annotated[
        str,
        typer.Option(
            "--suite",
            envvar="DFLASH_SUITE",
            metavar="builtin|humaneval|mtbench|FILE",
            help="Prompts to measure; a file is JSONL with id, category, max_tokens and prompt or messages.",
        ),
    ] = "builtin",
    category: Annotated[
        list[str] | None,
        typer.Option("--category", envvar="DFLASH_CATEGORY", help="Only this category; may be repeated."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", envvar="DFLASH_LIMIT", min=0, help="Prompts of each category; 0: all.")
    ] = 0,
    repeat: Annotated[
        int, typer.Option("--repeat", envvar="DFLASH_REPEAT", min=1, max=1000, help="Times that each side runs.")
    ] = 3,
    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", envvar="DFLASH_MAX_TOKENS", min=0, help="Tokens an answer; 0: the suite's own."),
    ] = 0,
    baseline: Annotated[
        opt.Baseline,
        typer.Option(
            "--baseline",
            envvar="DFLASH_BASELINE",
            help="Plain decoding in the same attention mode, or the better of both (one context more).",
        ),
    ] = opt.Baseline.same,
    sweep: Annotated[
        bool, typer.Option("--sweep", envvar="DFLASH_SWEEP", help="Fixed numbers of drafted rows beside auto.")
    ] = False,
    oracle: Annotated[
        bool,
        typer.Option(
            "--oracle",
            envvar="DFLASH_ORACLE",
            help="What a planner would reach that knows the text, at measured costs.",
        ),
    ] = False,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            "--peer", envvar="DFLASH_PEER", metavar="[NAME=]URL", help="An OpenAI-compatible server; may be repeated."
        ),
    ] = None,
    peer_model: Annotated[
        str, typer.Option("--peer-model", envvar="DFLASH_PEER_MODEL", metavar="NAME", help="[default: its only one]")
    ] = "",
    peer_timeout: Annotated[
        float,
        typer.Option(
            "--peer-timeout",
            envvar="DFLASH_PEER_TIMEOUT",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="Silence that is borne.",
        ),
    ] = 120.0,
    json_out: Annotated[
        Path | None, typer.Option("--json", envvar="DFLASH_BENCH_JSON", metavar="OUT", help="Write the report here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", envvar="DFLASH_PLOT", metavar="OUT.png", help="Draw the report.")
    ] = None,
    ctx: opt.CtxOption = None,
    threads: opt.ThreadsOption = None,
    gpu_layers: opt.GpuLayersOption = -1,
    flash_attn: opt.FlashAttnOption = opt.FlashAttn.auto,
    cpu_backend: opt.CpuBackendOption = "auto",
    temperature: opt.TemperatureOption = 0.0,
    top_k: opt.TopKOption = opt.TOP_K,
    top_p: opt.TopPOption = opt.TOP_P,
    min_p: opt.MinPOption = opt.MIN_P,
    seed: opt.SeedOption = 0,
    verbose: opt.VerboseOption = False,
) -> None:
    """Measure plain decoding against drafting. The table goes to stdout; Ctrl-C keeps what is done."""
    from dflash_local.cli.run import finish

    def body() -> int:
        params = opt.make_params(temperature, top_k, top_p, min_p, seed)
        pair = opt.parse_draft(draft)
        rows = opt.parse_draft_rows(draft_rows)
        if pair == "off" or rows == 0:
            raise typer.BadParameter("bench compares drafting with plain decoding, so drafting cannot be off")
        if sweep and rows > 0:
            raise typer.BadParameter("--sweep compares all fixed widths with auto, so it takes no --draft-rows")
        if plot is not None and plot.suffix.lower() != ".png":
            raise typer.BadParameter(f"{plot} does not end in .png", param_hint="--plot")
        peers = opt.parse_peers(peer or [])
        from dflash_local.bench.compare import Settings
        from dflash_local.bench.session import Outputs
        from dflash_local.cli.bench import BenchOptions, run_bench_command

        settings = Settings(params, repeat, max_tokens, rows, baseline is opt.Baseline.best, sweep, oracle)
        wanted = BenchOptions(
            settings, suite, category or [], limit, peers, peer_model, peer_timeout, Outputs(json_out, plot)
        )
        return run_bench_command(
            lambda: opt.open_runtime(
                model,
                pair,
                ctx=ctx,
                threads=threads,
                gpu_layers=gpu_layers,
                flash_attn=flash_attn,
                cpu_backend=cpu_backend,
                verbose=verbose,
            ),
            wanted,
        )

    finish(body, verbose=verbose)


@app.command()
def inspect(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="GGUF files; two are checked as a pair.")],
    as_json: Annotated[bool, typer.Option("--json", envvar="DFLASH_JSON", help="Print JSON.")] = False,
) -> None:
    """Say what GGUF files are, and whether a drafter fits a target."""
    from dflash_local.cli.run import finish

    def body() -> int:
        from dflash_local.cli.inspect import inspect_files

        return inspect_files(files, as_json)

    finish(body)


@app.command()
def doctor(
    model: opt.ModelOption = opt.DEFAULT_MODEL,
    draft: opt.DraftOption = "auto",
    ctx: opt.CtxOption = None,
    threads: opt.ThreadsOption = None,
    gpu_layers: opt.GpuLayersOption = -1,
    flash_attn: opt.FlashAttnOption = opt.FlashAttn.auto,
    cpu_backend: opt.CpuBackendOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", envvar="DFLASH_JSON", help="Print JSON.")] = False,
    verbose: opt.VerboseOption = False,
) -> None:
    """Measure this machine and this pair, and say what to expect. Takes less than a minute."""
    from dflash_local.cli.run import finish

    def body() -> int:
        pair = opt.parse_draft(draft)
        from dflash_local.cli.doctor import run_doctor
        from dflash_local.runtime import offloads

        with opt.open_runtime(
            model,
            pair,
            ctx=ctx,
            threads=threads,
            gpu_layers=gpu_layers,
            flash_attn=flash_attn,
            cpu_backend=cpu_backend,
            verbose=verbose,
        ) as runtime:
            return run_doctor(runtime, on_gpu=offloads(gpu_layers), as_json=as_json, verbose=verbose)

    finish(body, verbose=verbose)


def main() -> None:
    """Entry point of the `dflash-local` command."""
    open_missing_streams()
    # Input is UTF-8 or refused; output that a terminal cannot show must not end a run.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as error:
        tell(f"dflash-local: {error}")
        sys.exit(FAILED)
