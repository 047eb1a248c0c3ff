"""`dflash-local generate`: one prompt, one text, with its figures and on request its proof."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dflash_local._errors import Error
from dflash_local.chat.sanitize import Sanitizer
from dflash_local.chat.template import ChatTemplate, Message
from dflash_local.cli.run import FAILED, tell
from dflash_local.generation import Generation, Result, generate, status_line

if TYPE_CHECKING:
    from dflash_local._native import Replay
    from dflash_local.runtime import Runtime
    from dflash_local.sampling import SamplingParams

MAX_PROMPT_BYTES = 16 * 2**20


class PromptError(Error):
    """A prompt that is empty, unreadable or no text."""


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    params: SamplingParams
    raw: bool
    system: str | None
    max_tokens: int
    stop: list[str]
    draft_rows: int
    as_json: bool
    prove: bool


def _decode(data: bytes, source: str) -> str:
    if len(data) > MAX_PROMPT_BYTES:
        raise PromptError(f"{source} is larger than {MAX_PROMPT_BYTES >> 20} MiB, the most that is read")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{source} is no UTF-8 text: {error.reason} at byte {error.start}") from error
    if "\0" in text:
        raise PromptError(f"{source} is a binary file: it holds NUL bytes")
    return text.removesuffix("\n").removesuffix("\r")


def read_text_file(path: Path, what: str) -> str:
    """A UTF-8 text file, `-` for standard input. Raises PromptError in words."""
    source = f"{what} on standard input" if str(path) == "-" else f"{what} {path}"
    try:
        if str(path) == "-":
            return _decode(sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1), source)
        with path.open("rb") as file:
            return _decode(file.read(MAX_PROMPT_BYTES + 1), source)
    except OSError as error:
        raise PromptError(f"{source} cannot be read: {error.strerror or error}") from error


def chosen_source(context: typer.Context, prompt: str | None, file: Path | None) -> tuple[str | None, Path | None]:
    """Prompt and file, without the one from the environment where the other stands on the command line."""
    sources = [context.get_parameter_source(name) for name in ("prompt", "file")]
    given = [source is not None and source.name == "COMMANDLINE" for source in sources]
    return prompt if given[0] or not given[1] else None, file if given[1] or not given[0] else None


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt from its one source. Raises typer.BadParameter (several, none), PromptError."""
    if prompt is not None and file is not None:
        raise typer.BadParameter(
            "a prompt comes from -p (DFLASH_PROMPT) or from -f (DFLASH_FILE), not from both", param_hint="-p / -f"
        )
    if prompt is None and file is None and sys.stdin.isatty():
        raise typer.BadParameter("no prompt: give -p TEXT, -f FILE, or pipe it in", param_hint="-p / -f")
    text = prompt if prompt is not None else read_text_file(file or Path("-"), "the prompt")
    if not text.strip():
        raise PromptError("the prompt is empty")
    return text


def prompt_tokens(runtime: Runtime, text: str, options: GenerateOptions) -> list[int]:
    """Tokens of the prompt: raw, special tokens parsed, or as one user message of the chat template."""
    if options.raw:
        return runtime.vocab.tokenize(text, add_special=True, parse_special=True)
    template = ChatTemplate(runtime.metadata, runtime.vocab)
    messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    messages.append({"role": "user", "content": text})
    return template.tokenize(template.render(messages))


def _stream(run: Generation) -> None:
    """Writes the text as it comes; made safe where it goes to a terminal, as it is elsewhere."""
    sanitizer = Sanitizer() if sys.stdout.isatty() else None
    last = ""
    try:
        for chunk in run:
            text = sanitizer.feed(chunk.text) if sanitizer else chunk.text
            if text:
                sys.stdout.write(text)
                sys.stdout.flush()
                last = text
    finally:
        run.close()
        rest = sanitizer.finish() if sanitizer else ""
        shown = last + rest
        sys.stdout.write(rest if not shown or shown.endswith("\n") else f"{rest}\n")
        sys.stdout.flush()


def as_object(runtime: Runtime, result: Result, proof: Replay | None) -> dict[str, Any]:
    """The object of --json."""
    drafter = runtime.pair.drafter
    found: dict[str, Any] = {
        "text": result.text,
        "tokens": list(result.tokens),
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": len(result.tokens),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "model": runtime.pair.target.name,
        "drafter": drafter.name if drafter is not None else None,
        "draft_status": result.draft_status,
        "timings": result.timings,
    }
    if proof is not None:
        found["proof"] = {"tokens": proof["tokens"], "exact": proof["exact"]}
    return found


def run_generate(runtime: Runtime, prompt: str, options: GenerateOptions) -> int:
    """Generates, prints, proves; returns the exit code."""
    run = generate(
        runtime,
        prompt_tokens(runtime, prompt, options),
        options.params,
        max_tokens=options.max_tokens or None,
        stop=options.stop,
        draft_rows=options.draft_rows,
    )
    if options.as_json:
        for _ in run:
            pass
    else:
        _stream(run)
    result = run.result
    proof: Replay | None = None
    if options.prove:
        with runtime.new_sampler(run.params) as fresh:
            proof = runtime.engine.replay(fresh.address)
    if options.as_json:
        sys.stdout.write(json.dumps(as_object(runtime, result, proof)) + "\n")
    seed = f", seed {result.seed}" if result.seed is not None else ""
    tell(f"[{status_line(result)}{seed}]")
    if proof is None or proof["exact"] == proof["tokens"]:
        if proof is not None:
            tell(f"[proof: all {proof['tokens']} tokens are exactly the target's]")
        return 0
    tell(
        f"dflash-local: proof failed: {proof['exact']} of {proof['tokens']} tokens are the target's, "
        f"the first other one is number {proof['first_mismatch'] + 1}"
    )
    return FAILED
