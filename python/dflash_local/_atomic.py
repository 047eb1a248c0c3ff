"""Puts a new file in the place of an old one, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from dflash_local._interrupt import held_interrupt


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Puts what `write` makes in the place of `path`, Ctrl-C included. Raises OSError, and what `write` raises."""
    with held_interrupt():
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        try:
            write(Path(name))
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
