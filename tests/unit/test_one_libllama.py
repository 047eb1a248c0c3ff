"""One libllama in the process, whatever the import order; a second one is refused. Each case in a child process."""

import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = "import dflash_local._native as native; "
COUNT = "assert len(native.mapped_libraries()) == 1, native.mapped_libraries()"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        f"import llama_cpp; {NATIVE}{COUNT}",
        f"import dflash_local, llama_cpp; {NATIVE}{COUNT}",
        f"import dflash_local; {NATIVE}import llama_cpp; {COUNT}",
        f"{NATIVE}import llama_cpp; {COUNT}",
        f"from dflash_local import _native as native; {COUNT}",
        f"import importlib; native = importlib.import_module('dflash_local._native'); {COUNT}",
    ],
)
def test_any_import_order_maps_one(code: str) -> None:
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_both_see_the_same_library() -> None:
    code = (
        f"{NATIVE}import llama_cpp, pathlib; path = pathlib.Path(native.mapped_libraries()[0]); "
        "assert path.parent.samefile(pathlib.Path(llama_cpp.__file__).parent / 'lib'), path"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_module_loaded_past_the_package_asks_for_llama_cpp() -> None:
    code = (
        "import sys, dflash_local; "
        "sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != 'dflash_local._load_order']; "
        "import dflash_local._native"
    )
    result = run(code)
    assert result.returncode == 1
    assert "ImportError: dflash_local._native was loaded before llama_cpp" in result.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the second copy is made for the Linux loader")
def test_second_copy_is_refused_with_both_paths(tmp_path: Path) -> None:
    copy = tmp_path / "libllama.so"
    code = (
        "import ctypes, pathlib, shutil, llama_cpp; "
        f"shutil.copyfile(pathlib.Path(llama_cpp.__file__).parent / 'lib' / 'libllama.so', {str(copy)!r}); "
        f"ctypes.CDLL({str(copy)!r}); import dflash_local._native"
    )
    result = run(code)
    assert result.returncode == 1
    assert "ImportError: this process has mapped 2 copies of libllama" in result.stderr
    assert str(copy) in result.stderr
    assert "llama_cpp" in result.stderr
    assert "import llama_cpp first" in result.stderr
