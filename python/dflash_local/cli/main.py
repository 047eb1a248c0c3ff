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
            verbose=verbose,
            draft_rows=rows,
        ) as runtime:
            greet = sys.stdin.isatty() and sys.stdout.isatty()
            return run_chat(runtime, ChatOptions(params, system, max_tokens, rows, greet))

    finish(body, verbose=verbose)


@app.command()
def generate(
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
        from dflash_local.cli.generate import GenerateOptions, read_prompt, read_text_file, run_generate
        from dflash_local.textstream import check_stops

        try:
            stops = list(check_stops(stop or []))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--stop") from error
        text = read_prompt(prompt, file)
        rules = read_text_file(grammar, "the grammar") if grammar is not None else None
        params = opt.make_params(temperature, top_k, top_p, min_p, seed, rules)
        with opt.open_runtime(
            model,
            pair,
            ctx=ctx,
            threads=threads,
            gpu_layers=gpu_layers,
            flash_attn=flash_attn,
            verbose=verbose,
            draft_rows=rows,
        ) as runtime:
            wanted = GenerateOptions(params, raw, system, max_tokens, stops, rows, as_json, prove)
            return run_generate(runtime, text, wanted)

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
