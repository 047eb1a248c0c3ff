"""llama.cpp's log: silent unless asked for, its error lines kept for our own messages."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from llama_cpp import _logger

from dflash_local._native_loader import llama_cpp

_ERROR_LEVEL = 3  # GGML_LOG_LEVEL_ERROR
_MAX_LINES = 50


def set_verbose(verbose: bool) -> None:
    """Shows llama.cpp's log on stderr, or its errors only."""
    _logger.set_verbose(verbose)


@contextmanager
def captured_errors(verbose: bool) -> Iterator[list[str]]:
    """Collects llama.cpp's error lines instead of printing them; with `verbose` the whole log is printed too."""
    lines: list[str] = []

    def keep(level: int, text: bytes, _user_data: int | None) -> None:
        line = text.decode("utf-8", "replace")
        if verbose:
            sys.stderr.write(line)
        if level == _ERROR_LEVEL and len(lines) < _MAX_LINES and line.strip():
            lines.append(line.strip())

    callback = llama_cpp.llama_log_callback(keep)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield lines
    finally:
        llama_cpp.llama_log_set(_logger.llama_log_callback, ctypes.c_void_p(0))
