"""Has llama_cpp open libllama before the native module does, so that the process holds one copy of it."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_NATIVE = "dflash_local._native"


class _LlamaCppFirst(MetaPathFinder):
    """Finds nothing itself: it imports llama_cpp at the moment somebody looks for the native module."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == _NATIVE:
            importlib.import_module("llama_cpp")


def install() -> None:
    """Makes every import of `dflash_local._native`, from wherever, import llama_cpp before it."""
    sys.meta_path.insert(0, _LlamaCppFirst())
