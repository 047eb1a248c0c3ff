"""Settings that the tests of Llama share with those of its parent."""

from __future__ import annotations

from typing import Any

# One thread: results do not depend on it, and a busy machine does not stall.
MODEL_OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "flash_attn": False, "verbose": False}
