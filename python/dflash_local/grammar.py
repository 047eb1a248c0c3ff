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
MAX_EXPANSION = 1_000_000  # elements that {m,n} may write out: each copies what it repeats
MAX_BOUND = 2000  # llama.cpp takes a higher upper bound as no bound, and refuses a higher lower one

_MARK = "\x01"  # stands for a character of a literal
_SPACE = re.compile(r"\s+")
_REPEAT = re.compile(rf"(?<!{_MARK})({_MARK}*) ?\{{ ?(\d+) ?(?:, ?(\d*) ?)?\}}")
# Literals, character classes and comments, where parentheses mean themselves; an open one goes on to the end.
_OPAQUE = re.compile(r'"(?:\\.|[^"\\])*(?:"|\\?\Z)|\[(?:\\.|[^\]\\])*(?:\]|\\?\Z)|#[^\n]*', re.DOTALL)
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
    plain = _OPAQUE.sub(lambda found: _MARK * len(found[0]) if found[0].startswith('"') else " ", text)
    depth = 0
    for char in plain:
        depth += (char == "(") - (char == ")")
        if depth > MAX_DEPTH:
            raise GrammarError(f"the grammar nests parentheses deeper than {MAX_DEPTH}", "grammar")
    written = 0
    for literal, low, high in _REPEAT.findall(_SPACE.sub(" ", plain)):
        bounds = [int(bound[:9]) for bound in (low, high) if bound]
        written += max(len(literal), 1) * max(bound for bound in (*bounds, 1) if bound <= MAX_BOUND)
    if written > MAX_EXPANSION:
        raise GrammarError(
            f"the grammar's repetitions write out {written} elements, at most {MAX_EXPANSION} are taken", "grammar"
        )


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


def compile_grammar(vocab_address: int, text: str, root: str = "root") -> Any:
    """A new llama_sampler (pointer) of the grammar for the vocabulary at `vocab_address`; the caller owns it.

    Raises GrammarError with the parser's reason."""
    check_limits(text)
    with _captured_stderr() as printed, captured_errors() as logged:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab_address, text.encode("utf-8"), root.encode("utf-8"))
    if sampler:
        return sampler
    reasons = [line.removeprefix("parse: error parsing grammar: ") for line in printed[:1]] + logged
    reason = next((line for line in reasons if line), "llama.cpp gave no reason")
    raise GrammarError(f"llama.cpp cannot compile this grammar: {reason}", "grammar")
