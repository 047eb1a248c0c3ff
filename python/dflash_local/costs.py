"""The measured cost table of one pair on one machine: its prior at load, and its cache on disk between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import platformdirs

from dflash_local import __version__
from dflash_local._errors import Cancelled, Error
from dflash_local._native_loader import LLAMA_CPP_VERSION, llama_cpp, native

if TYPE_CHECKING:
    from dflash_local._native import CostTable, Engine
    from dflash_local.pairs.resolve import Pair

VERSION = 1  # of the file, and of what its numbers mean
BUDGET_MS = 3000.0  # most that the prior may take; a small model takes a fraction of it
MAX_FILES = 64
MAX_FILE_BYTES = 1 << 16
ENVIRONMENT = "DFLASH_CACHE_DIR"
_PREFIX, _SUFFIX = "costs-", ".json"


@dataclass(frozen=True)
class CostKey:
    """What a cost table depends on."""

    parts: Mapping[str, str | int]

    @cached_property
    def file_name(self) -> str:
        text = json.dumps(dict(self.parts), sort_keys=True)
        return f"{_PREFIX}{hashlib.sha256(text.encode()).hexdigest()[:32]}{_SUFFIX}"


def _fingerprint(info: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> str:
    # Size, tensors and metadata, never the path: a moved file keeps its table.
    known = {key: value for key, value in info.items() if key != "path"}
    text = json.dumps([known, dict(metadata or {})], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def key_of(
    pair: Pair,
    metadata: Mapping[str, str],
    context_params: Any,
    *,
    tap_mode: str,
    n_gpu_layers: int = 0,
    kernels: str = "ggml",
) -> CostKey:
    """The key of a loaded pair. `metadata`: the target's; `context_params`: the llama_context_params in use; `kernels`:
    the build of our CPU kernels, or ggml."""
    system = llama_cpp.llama_print_system_info().decode(errors="replace")
    return CostKey(
        {
            "target": _fingerprint(pair.target_info, metadata),
            "drafter": "" if pair.drafter is None else _fingerprint(native.inspect(str(pair.drafter))),
            "build": f"dflash-local {__version__}, llama-cpp-python {LLAMA_CPP_VERSION}, {system}",
            "devices": "; ".join(f"{device['name']}: {device['description']}" for device in native.devices()),
            "cores": os.cpu_count() or 0,
            "threads": int(context_params.n_threads),
            "flash_attn": int(context_params.flash_attn_type),
            "type_k": int(context_params.type_k),
            "type_v": int(context_params.type_v),
            "tap_mode": tap_mode,
            "gpu_layers": n_gpu_layers,
            "kernels": kernels,
        }
    )


def cache_dir() -> Path:
    """Folder of the tables: DFLASH_CACHE_DIR, or the platform's cache folder."""
    chosen = os.environ.get(ENVIRONMENT)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("dflash-local", appauthor=False))


def load(key: CostKey) -> CostTable | None:
    """The stored table, None where there is none to be used: whatever is wrong with a file, it is as if absent."""
    try:
        with (cache_dir() / key.file_name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        found = json.loads(data) if len(data) <= MAX_FILE_BYTES else None
        if not isinstance(found, dict) or found.get("version") != VERSION or found.get("key") != dict(key.parts):
            return None
        table = native.check_costs(cast("CostTable", found.get("table")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return table if table["widths"] else None


def store(key: CostKey, table: CostTable) -> str:
    """Writes a table, whole or not at all; returns "" or why it was not written. Raises ValueError on a bad table."""
    content = {"version": VERSION, "key": dict(key.parts), "table": native.check_costs(table)}
    folder = cache_dir()
    temporary: str | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{_PREFIX}", suffix=".tmp", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        Path(temporary).replace(folder / key.file_name)
        temporary = None
        _drop_oldest(folder)
    except (OSError, ValueError) as error:
        return f"measured costs are not kept: {folder}: {getattr(error, 'strerror', None) or error}"
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink(missing_ok=True)
    return ""


def _drop_oldest(folder: Path) -> None:
    # Another process may be dropping the same files.
    def age(path: Path) -> float:
        try:
            return path.stat().st_mtime
        except OSError:
            return 0.0

    for pattern in (f"{_PREFIX}*{_SUFFIX}", f".{_PREFIX}*.tmp"):
        for path in sorted(folder.glob(pattern), key=age)[:-MAX_FILES]:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def prior(
    engine: Engine,
    key: CostKey,
    *,
    warn: Callable[[str], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> CostTable | None:
    """The stored table, else one that is timed now and stored. None, with a warning, where timing fails.

    To be called before anything is decoded. Raises Cancelled, KeyboardInterrupt."""
    found = load(key)
    if found is not None:
        note(f"costs: from {cache_dir() / key.file_name}")
        return found
    try:
        table = engine.time_costs(BUDGET_MS)
    except Cancelled:
        raise
    except Error as error:
        warn(f"warning: the costs of rounds could not be measured: {error}")
        return None
    problem = store(key, table)
    if problem:
        note(problem)
    return table
