"""Writes the planner's priors of acceptance into a copy of a drafter file; all else in it stays byte for byte."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dflash_local._atomic import write_atomic
from dflash_local._errors import Error, ModelLoadError
from dflash_local._native_loader import native

KEY = "dflash_local.acceptance"
_ARRAY, _FLOAT32 = 9, 6  # value types of GGUF
_HEADER = struct.Struct("<4sIQQ")  # magic, version, tensors, metadata entries


class PriorsError(Error):
    """Priors that cannot be written."""


def write_priors(drafter: Path, out: Path, values: Sequence[float]) -> None:
    """Writes `drafter` to `out` with `values` (laid out as `DraftAcceptance.priors` of the native module gives them)
    under `dflash_local.acceptance`, in the place of those it may have. `out` may be the same file.

    Other metadata and all tensor data keep their bytes and their order. Raises PriorsError (values that a planner would
    not take, a file in parts, no gguf package, a place that cannot be written), ModelLoadError."""
    info = native.inspect(str(drafter))
    if info["kind"] != "drafter" or info["problem"]:
        raise ModelLoadError(f"{drafter}: {info['problem'] or 'a target, expected a drafter'}", "general.architecture")
    _check(values, info["block_size"])
    reader = _reader(drafter)
    if "split.count" in reader.fields:
        raise PriorsError(f"{drafter} is one part of several: merge them first", "split.count")
    head = _head(reader, values)

    def write(path: Path) -> None:
        with drafter.open("rb") as source, path.open("wb") as target:
            target.write(head)
            source.seek(reader.data_offset)
            shutil.copyfileobj(source, target)

    try:
        write_atomic(out, write)
    except OSError as error:
        raise PriorsError(f"{out} cannot be written: {error.strerror or error}", str(out)) from error


def _reader(path: Path) -> Any:
    try:
        import gguf
    except ImportError as error:
        raise PriorsError("writing priors needs the package gguf: pip install 'gguf>=0.19,<0.20'", "gguf") from error
    return gguf.GGUFReader(path)


def _check(values: Sequence[float], block_size: int) -> None:
    try:
        native.DraftAcceptance().set_priors(list(values))
    except ValueError as error:
        raise PriorsError(str(error), KEY) from error
    if values[1] >= block_size:
        raise PriorsError(f"the priors are for {values[1]:.0f} slots, the drafter has {block_size - 1}", KEY)


def _head(reader: Any, values: Sequence[float]) -> bytes:
    """All that comes before the tensor data, with the new entry last among the metadata."""
    entries = [field for field in reader.fields.values() if not field.name.startswith("GGUF.")]
    infos = [tensor.field for tensor in reader.tensors]
    kept = [_bytes(field) for field in entries if field.name != KEY]
    magic, version, n_tensors, _ = _HEADER.unpack(reader.data[: _HEADER.size].tobytes())
    head = _HEADER.pack(magic, version, n_tensors, len(kept) + 1) + b"".join([*kept, _entry(values)])
    head += b"".join(_bytes(field) for field in infos)
    return head + bytes(-len(head) % int(reader.alignment))


def _bytes(field: Any) -> bytes:
    """An entry or a tensor's description as it stands in the file."""
    return b"".join(part.tobytes() for part in field.parts)


def _entry(values: Sequence[float]) -> bytes:
    name = KEY.encode()
    kind = struct.pack("<IIQ", _ARRAY, _FLOAT32, len(values))
    return struct.pack("<Q", len(name)) + name + kind + struct.pack(f"<{len(values)}f", *values)
