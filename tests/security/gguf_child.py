"""Child process of the hostile-file tests: opens each file as a user would and reports what came of it, as JSON.

Input (stdin): {"attempts": [{"target": path, "drafter": path or null}, ...], "as_nobody": bool}.
Output: one object per attempt: error (class name or null), field, message, mismatches, seconds.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from dflash_local._errors import Error
from dflash_local._native_loader import native
from dflash_local.pairs.resolve import resolve_pair

EXTRA_MEMORY = 256 << 20  # address space allowed beyond what the interpreter and libraries take
NOBODY = 65534


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + EXTRA_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def attempt(target: str, drafter: str | None) -> dict[str, Any]:
    """Checks the files in the native module and on the way that every command takes before it loads anything."""
    started = time.perf_counter()
    report: dict[str, Any] = {"error": None, "field": "", "message": "", "mismatches": []}
    try:
        if drafter is not None:
            report["mismatches"] = [found["field"] for found in native.check_pair(drafter, target)]
        resolve_pair(Path(target), "off" if drafter is None else Path(drafter))
    except Error as error:
        report |= {"error": type(error).__name__, "field": error.field, "message": str(error)}
    report["seconds"] = time.perf_counter() - started
    return report


def main() -> None:
    job = json.load(sys.stdin)
    limit_memory()
    if job["as_nobody"] and os.geteuid() == 0:
        os.seteuid(NOBODY)
    json.dump([attempt(one["target"], one["drafter"]) for one in job["attempts"]], sys.stdout)


if __name__ == "__main__":
    main()
