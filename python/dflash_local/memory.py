"""Will a context fit into memory? Asked before llama.cpp takes it: the kernel kills, it does not refuse."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from llama_cpp._ggml import libggml

from dflash_local._errors import OutOfMemory
from dflash_local._native_loader import native

MAX_CTX = 2**31 - 1
MAX_LEAVES = 16  # of a draft tree, a sequence id each; llama.cpp holds the logits of that many rows from the start

_row_size = libggml.ggml_row_size
_row_size.argtypes, _row_size.restype = [ctypes.c_int, ctypes.c_int64], ctypes.c_size_t


def parse_available(meminfo: str) -> int | None:
    """Bytes that the text of /proc/meminfo calls available."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _cgroup_rooms() -> Iterable[int]:
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, limit, usage = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, usage = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / path.lstrip("/")
        for place in (folder, *folder.parents):
            top, used = _read(place / limit), _read(place / usage)
            if top and used and top.isdigit() and used.isdigit():
                yield int(top) - int(used)
            if place == base:
                break


def available_bytes() -> int | None:
    """Memory that this process may still take, None where the system does not say."""
    meminfo = _read(Path("/proc/meminfo"))
    free = parse_available(meminfo) if meminfo else None
    rooms = [room for room in (free, *_cgroup_rooms()) if room is not None]
    return min(rooms, default=None)


def kv_bytes(metadata: Mapping[str, str], n_ctx: int, type_k: int, type_v: int) -> int | None:
    """Bytes of the K/V of `n_ctx` cells; None where the layers differ (windows, recurrence) and no simple sum holds."""
    prefix = metadata.get("general.architecture", "")

    def find(key: str) -> int | None:
        text = metadata.get(f"{prefix}.{key}", "")
        return int(text) if text.isdigit() else None

    if any(key.startswith((f"{prefix}.ssm.", f"{prefix}.attention.sliding_window")) for key in metadata):
        return None
    n_layer, n_embd, n_head = find("block_count"), find("embedding_length"), find("attention.head_count")
    n_head_kv = find("attention.head_count_kv") or n_head
    if not (n_layer and n_embd and n_head and n_head_kv):
        return None
    size_k = find("attention.key_length") or n_embd // n_head
    size_v = find("attention.value_length") or n_embd // n_head
    row: int = _row_size(type_k, n_head_kv * size_k) + _row_size(type_v, n_head_kv * size_v)
    return row * n_layer * n_ctx


def check_context_fits(metadata: Mapping[str, str], params: Any) -> None:
    """Raises OutOfMemory for a context whose K/V is larger than the memory there is. Only where it lies in RAM."""
    if native.gpu_device():
        return
    need, free = kv_bytes(metadata, params.n_ctx, params.type_k, params.type_v), available_bytes()
    if need is not None and free is not None and need > free:
        raise OutOfMemory(
            f"a context of {params.n_ctx} tokens takes {need / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are "
            "there: ask for a smaller context",
            "n_ctx",
        )
