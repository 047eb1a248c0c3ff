"""Runs clang-tidy on the sources of native/, two at a time, only on those whose inputs changed since they passed."""

import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

JOBS = 2


def digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


# Diagnostics of the compiler are for the compiler of the build; these two would speak of flags and headers of GCC.
EXTRA = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-deprecated-declarations"]


def passes(source: Path, build: Path, stamp: Path) -> bool:
    """Checks one source; leaves `stamp` behind when it is clean."""
    result = subprocess.run(
        ["clang-tidy", "--quiet", *EXTRA, "-p", str(build), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        stamp.touch()
        return True
    print(result.stdout, result.stderr, sep="", flush=True)
    return False


def main(build: Path) -> int:
    database = build / "compile_commands.json"
    if not database.is_file():
        print(f"{database} is missing: configure the CMake preset first")
        return 1
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    headers = [path.read_bytes() for path in sorted(Path("native").rglob("*.h"))]
    configs = [path.read_bytes() for path in (Path(".clang-tidy"), Path("native/tests/.clang-tidy"))]
    common = digest(version, *configs, *headers).encode()
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    todo = []
    for source in sorted(Path("native").rglob("*.cpp")):
        stamp = stamps / digest(common, str(source).encode(), source.read_bytes())
        if not stamp.exists():
            todo.append((source, stamp))
    with ThreadPoolExecutor(JOBS) as pool:
        clean = list(pool.map(lambda item: passes(item[0], build, item[1]), todo))
    print(f"{len(todo)} sources checked, {clean.count(False)} with findings")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
