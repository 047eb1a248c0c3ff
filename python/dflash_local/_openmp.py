"""Settings of the OpenMP runtime that must stand before llama.cpp's libraries load it."""

from __future__ import annotations

import os

# libgomp's team spins 300,000 times before it sleeps: beside one busy process a decode of 8 ms takes seconds. A short
# spin is as fast on a quiet machine and bearable on a busy one (docs/benchmarks.md).
SPIN_COUNT = 1000


def spin_briefly() -> None:
    """Shortens libgomp's spinning unless the user set it. No effect where libgomp is loaded already."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
