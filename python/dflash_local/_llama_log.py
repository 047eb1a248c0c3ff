"""llama.cpp's log: silent unless asked for, its error lines kept for our own messages."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from llama_cpp import _logger

from dflash_local._native_loader import llama_cpp

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_MAX_LINES = 50
_sinks: list[list[str]] = []
_verbose = False


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _callback(level: int, text: bytes, _user_data: int | None) -> None:
    line = text.decode("utf-8", "replace")
    if _verbose:
        sys.stderr.write(line)
    if _sinks and level == _ERROR_LEVEL and len(_sinks[-1]) < _MAX_LINES and line.strip():
        _sinks[-1].append(line.strip())


_installed = _logger.llama_log_callback


def set_verbose(verbose: bool) -> None:
    """Takes llama.cpp's log over for this process: shown on stderr, or silent. (llama_cpp's own quiet mode shows
    warnings, since it numbers the levels differently from ggml.)"""
    global _verbose, _installed
    _verbose = verbose
    _installed = _callback
    _logger.set_verbose(verbose)
    llama_cpp.llama_log_set(_installed, ctypes.c_void_p(0))


@contextmanager
def captured_errors(verbose: bool = False) -> Iterator[list[str]]:
    """Collects llama.cpp's error lines instead of printing them; with `verbose` the whole log is printed too."""
    global _verbose
    lines: list[str] = []
    before = _verbose
    _verbose = verbose
    _sinks.append(lines)
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))
    try:
        yield lines
    finally:
        _sinks.remove(lines)
        _verbose = before
        llama_cpp.llama_log_set(_installed, ctypes.c_void_p(0))
