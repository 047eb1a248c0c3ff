"""The installed package: version, data files, native module and its stub."""

import importlib.metadata
import importlib.resources
import subprocess
import sys
from pathlib import Path

import dflash_local
from dflash_local import _native

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_version_is_that_of_the_metadata() -> None:
    assert dflash_local.__version__ == importlib.metadata.version("dflash-local")


def test_types_and_default_drafter_are_shipped() -> None:
    package = importlib.resources.files("dflash_local")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("_native.pyi").is_file()
    drafter = package.joinpath("models", "smollm2-135m-dflash.gguf")
    with drafter.open("rb") as file:
        assert file.read(4) == b"GGUF"


def test_stub_matches_the_native_module() -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPTS / "check_stubs.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_attention_is_timed_in_both_forms() -> None:
    for flash in (False, True):
        ms = _native.time_attention(9, 3, 64, 64, 2, flash=flash, n_threads=1, budget_ms=1.0)
        assert 0.0 < ms < 60_000.0
