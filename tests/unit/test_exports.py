"""What `import dflash_local` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dflash_local
from dflash_local import _errors


def test_every_exported_name_is_there() -> None:
    for name in dflash_local.__all__:
        assert getattr(dflash_local, name) is not None
    assert dflash_local.Llama.__name__ == "Llama"


def test_every_error_is_exported() -> None:
    defined = {name for name, kind in vars(_errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert defined <= set(dflash_local.__all__)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Lama'"):
        dflash_local.Lama  # noqa: B018


def test_importing_loads_nothing_heavy() -> None:
    heavy = {"llama_cpp", "numpy", "dflash_local._native", "torch", "prompt_toolkit", "typer", "rich", "jinja2"}
    code = f"import sys, dflash_local; print({heavy!r} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"
