"""Our CPU kernels for narrow batches, a ggml device in a library of its own: is it there, and which models use it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from dflash_local._llama_log import captured_errors
from dflash_local._native_loader import llama_cpp, native

CpuBackend = Literal["auto", "dflash", "ggml"]
ENVIRONMENT = "DFLASH_CPU_BACKEND"
DEVICE = "DFlash"
ALL_LAYERS = 2**31 - 1
_OFF = ("0", "off", "false")
# The timing that decides for `auto`: a product of 8 rows, the width that drafting lives on.
_TYPE, _N_IN, _N_OUT, _ROWS, _BUDGET_MS = "q4_0", 1024, 2048, 8, 10.0
_CLEARLY_SLOWER = 1.2
_TRIES = 3


def parse(text: str) -> CpuBackend:
    """A choice as the user writes it; 0 stands for ggml. Raises ValueError."""
    if text.lower() in _OFF:
        return "ggml"
    for known in get_args(CpuBackend):
        if text == known:
            return known  # type: ignore[no-any-return]
    raise ValueError(f"{text!r} is no CPU backend, expected auto, dflash or ggml (or 0 for ggml)")


def library() -> Path:
    """Where the package keeps the library; other llama.cpp programs may load it with `ggml_backend_load`."""
    return Path(native.__file__).with_name("libggml-dflash.so")


def _open() -> bool:
    """Puts the device into llama.cpp's registry, for models of ours alone where nobody else has loaded it."""
    if native.cpu_backend_device():
        return True
    with captured_errors(verbose=False):
        if not library().is_file() or not native.load_cpu_backend(str(library())):
            return False
    native.hide_cpu_backend(True)
    return True


def load() -> bool:
    """Gives the kernels to every model that this process loads from now on, by llama_cpp too.

    False where there are none for this CPU or platform. Models of this package need no such call."""
    found = _open()
    native.hide_cpu_backend(False)
    return found


@functools.cache
def build() -> str:
    """Tells one build of the library from another, "" where there is none."""
    return hashlib.sha256(library().read_bytes()).hexdigest()[:16] if library().is_file() else ""


def timings(n_threads: int) -> tuple[float, float]:
    """Milliseconds of one product of 8 rows: ours, and ggml's. Some 30 ms."""
    args = (_TYPE, _N_IN, _N_OUT, _ROWS, n_threads, _BUDGET_MS)
    with captured_errors(verbose=False):
        return native.time_matmul(*args, ours=True)[0], native.time_matmul(*args)[0]


@functools.cache
def pays(n_threads: int) -> bool:
    """Are our kernels no slower than ggml's here? Timed once a process.

    A busy moment must not decide: a program shall give the same text today and tomorrow."""
    return any(ours < _CLEARLY_SLOWER * ggmls for ours, ggmls in (timings(n_threads) for _ in range(_TRIES)))


def choose(wanted: CpuBackend | None, n_threads: int) -> bool:
    """Shall a model that is loaded now use our kernels? None: what the environment says, else `auto`.

    `auto` declines where they are clearly slower than ggml's. Raises ValueError on a bad environment variable, and
    where `dflash` is asked for and there is no library for this CPU."""
    if wanted is None:
        wanted = parse(os.environ.get(ENVIRONMENT) or "auto")
    if wanted == "ggml":
        return False
    if not _open():
        if wanted == "dflash":
            raise ValueError(f"there are no CPU kernels of ours for this machine ({library()}); use auto or ggml")
        return False
    if wanted == "dflash":
        return True
    return pays(n_threads)


def uses(model: Any) -> bool:
    """Does this loaded llama_model keep its head in our layout?"""
    return native.head_device(model) == DEVICE


@contextmanager
def placed(params: Any, use: bool, *, offloads: bool) -> Iterator[Any]:
    """llama_model_params to load a model with, a copy of `params`; no other model may be loaded meanwhile. `use`: what
    `choose` said.

    Without a GPU all layers go to our device, as if to one: then a whole decode is one graph for it. With one, it gets
    the weights that stay on the CPU, and from then on those of every other model too."""
    own = type(params).from_buffer_copy(params)
    if use and not offloads:
        own.devices = ctypes.addressof(_device_list())
        own.n_gpu_layers = ALL_LAYERS
        own.split_mode = llama_cpp.LLAMA_SPLIT_MODE_LAYER
    before = native.hide_cpu_backend(not use)
    try:
        yield own
    finally:
        native.hide_cpu_backend(before and not (use and offloads))


@functools.cache
def _device_list() -> ctypes.Array[ctypes.c_void_p]:
    """Ends with a null, and lives as long as the process: loaded models keep its address."""
    return (ctypes.c_void_p * 2)(native.cpu_backend_device(), None)
