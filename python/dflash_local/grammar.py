"""GBNF grammars: refused in words before llama.cpp sees what would exhaust or crash it."""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dflash_local._errors import GrammarError
from dflash_local._llama_log import captured_errors
from dflash_local._native_loader import llama_cpp

MAX_BYTES = 256 * 1024
MAX_DEPTH = 64  # of parentheses: the parser recurses
MAX_REPEATS = 10_000  # sum of all {m,n} bounds: each becomes a rule
ROOT = "root"

_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:,\s*(\d*)\s*)?\}")
# Literals, character classes and comments, where parentheses mean themselves.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)
_stderr_lock = threading.Lock()


def check_limits(text: str) -> None:
    """Raises GrammarError for a grammar that is empty, or too large or too deep to compile safely."""
    if not text.strip():
        raise GrammarError("the grammar is empty, expected GBNF rules with a rule named 'root'", "grammar")
    if "\0" in text:
        raise GrammarError("the grammar holds a NUL character", "grammar")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise GrammarError(f"the grammar has {size} bytes, at most {MAX_BYTES} are taken", "grammar")
    plain = _OPAQUE.sub(" ", text)
    depth = 0
    for char in plain:
        depth += (char == "(") - (char == ")")
        if depth > MAX_DEPTH:
            raise GrammarError(f"the grammar nests parentheses deeper than {MAX_DEPTH}", "grammar")
    repeats = sum(int((high or low)[:9]) for low, high in _REPEAT.findall(plain))
    if repeats > MAX_REPEATS:
        raise GrammarError(f"the grammar's repetitions add up to {repeats}, at most {MAX_REPEATS} are taken", "grammar")


@contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    # The parser reports with fprintf(stderr), outside llama.cpp's log.
    lines: list[str] = []
    with _stderr_lock, tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read(64 * 1024).decode("utf-8", "replace").splitlines()


def compile_grammar(vocab_address: int, text: str) -> Any:
    """A new llama_sampler (pointer) of the grammar for the vocabulary at `vocab_address`; the caller owns it.

    Raises GrammarError with the parser's reason."""
    check_limits(text)
    with _captured_stderr() as printed, captured_errors() as logged:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab_address, text.encode("utf-8"), ROOT.encode())
    if sampler:
        return sampler
    reasons = [line.removeprefix("parse: error parsing grammar: ") for line in printed[:1]] + logged
    reason = next((line for line in reasons if line), "llama.cpp gave no reason")
    raise GrammarError(f"the grammar cannot be compiled: {reason}", "grammar")
