"""How every command ends: its exit code, one line for a failure, quiet on a closed pipe."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer

from dflash_local._errors import Error
from dflash_local.chat.sanitize import clean_line

FAILED, INTERRUPTED = 1, 130


def open_missing_streams() -> None:
    """Gives the process a null device where it was started with a standard stream closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 open as long as the process
            setattr(sys, name, stream)


def tell(text: str) -> None:
    """One line on stderr, made safe for a terminal. A stderr that takes nothing must not cost the answer."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{clean_line(text)}\n")
        sys.stderr.flush()


def finish(command: Callable[[], int], *, verbose: bool = False) -> NoReturn:
    """Runs a command's body and leaves with its exit code: 1 on failure, 130 when interrupted.

    Wrong usage (typer.BadParameter) passes through to typer, which exits with 2."""
    try:
        code = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has left: what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Error as error:
        tell(f"dflash-local: {error}")
        code = FAILED
    except (OSError, ValueError, RuntimeError, MemoryError, ArithmeticError, LookupError, TypeError) as error:
        if isinstance(error, typer.Exit):
            raise
        if verbose:
            traceback.print_exc()
        tell(f"dflash-local: {type(error).__name__}: {error}" + ("" if verbose else " (--verbose shows where)"))
        code = FAILED
    raise typer.Exit(code)
