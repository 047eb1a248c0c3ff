"""Rules for every tracked file: length of sources, ASCII in C++, no machine paths, no names of package registries."""

import re
import subprocess
import sys
from pathlib import Path

MAX_LINES = 900
SOURCES = {".py", ".pyi", ".cpp", ".h", ".cu", ".cuh", ".cmake"}
NATIVE = {".cpp", ".h", ".cu", ".cuh"}
BINARY = {".gguf", ".png"}
FORBIDDEN = {
    "an absolute machine path": re.compile(r"(?<![\w.])/(?:work|root|home/\w+)/\w"),
    "the host of a package registry": re.compile(
        r"(?:pypi|pythonhosted|npmjs)\.(?:org|com)|deb\.debian\.org|conda\.anaconda\.org|crates\.io"
    ),
}


def problems(path: Path) -> list[str]:
    if path.suffix in BINARY:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ["is not UTF-8; a binary kind of file belongs into BINARY of scripts/check_tree.py"]
    lines = text.splitlines()
    found = []
    if path.suffix in SOURCES and len(lines) > MAX_LINES:
        found.append(f"has {len(lines)} lines, at most {MAX_LINES} are allowed: split it by role")
    for number, line in enumerate(lines, 1):
        if path.suffix in NATIVE and not line.isascii():
            found.append(f"line {number} is not ASCII")
        found += [f"line {number} holds {what}" for what, pattern in FORBIDDEN.items() if pattern.search(line)]
    return found


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    found = [
        f"{name}: {problem}"
        for name in listed.split("\0")
        if name and Path(name).is_file()
        for problem in problems(Path(name))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
