"""DFlash drafting for GGUF models: the same text, sooner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dflash_local import _load_order, _openmp
from dflash_local._errors import (
    Cancelled,
    ContextOverflow,
    DecodeError,
    Error,
    GrammarError,
    IncompatibleDrafter,
    ModelLoadError,
    OutOfMemory,
    Unsupported,
)

if TYPE_CHECKING:
    from dflash_local.llama import Llama
    from dflash_local.runtime import Runtime, load_runtime
    from dflash_local.sampling import SamplingParams

_openmp.spin_briefly()
_load_order.install()

__version__ = "0.1.0"

# Loaded on first use: importing the package itself opens no library.
_LAZY = {
    "Llama": "dflash_local.llama",
    "Runtime": "dflash_local.runtime",
    "SamplingParams": "dflash_local.sampling",
    "load_runtime": "dflash_local.runtime",
}

__all__ = [
    "Cancelled",
    "ContextOverflow",
    "DecodeError",
    "Error",
    "GrammarError",
    "IncompatibleDrafter",
    "Llama",
    "ModelLoadError",
    "OutOfMemory",
    "Runtime",
    "SamplingParams",
    "Unsupported",
    "__version__",
    "load_runtime",
]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
