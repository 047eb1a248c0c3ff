"""Opens llama.cpp in the one order that works: `llama_cpp` first, our native module after it."""

from __future__ import annotations

from dflash_local._errors import Unsupported

LLAMA_CPP_VERSION = "0.3.36"
_REINSTALL = f"reinstall it: pip install llama-cpp-python=={LLAMA_CPP_VERSION}"


def check_version(found: str) -> None:
    """Raises Unsupported unless `found` is the llama-cpp-python that the native module was built against."""
    if found != LLAMA_CPP_VERSION:
        raise Unsupported(
            f"dflash-local was built against llama-cpp-python {LLAMA_CPP_VERSION}, installed is {found}; {_REINSTALL}",
            "llama-cpp-python",
        )


try:
    import llama_cpp
except (ImportError, OSError, RuntimeError) as error:
    raise Unsupported(f"llama-cpp-python cannot be loaded ({error}); {_REINSTALL}", "llama-cpp-python") from error

check_version(llama_cpp.__version__)

try:
    from dflash_local import _native as native
except ImportError as error:
    raise Unsupported(f"the native module cannot be loaded ({error}); reinstall dflash-local", "_native") from error

__all__ = ["LLAMA_CPP_VERSION", "check_version", "llama_cpp", "native"]
