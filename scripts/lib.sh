# Sourced by the scripts beside it: goes to the repository root and chooses the Python environment ($venv, $py).
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*"; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

venv=${VIRTUAL_ENV:-$PWD/build/venv}
bin=$venv/bin
[ ! -d "$venv/Scripts" ] || bin=$venv/Scripts
py=$bin/python

jobs=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

# Files that decide what the installed package is.
package_sources() {
    find CMakeLists.txt cmake pyproject.toml README.md native/include native/src native/bind python -type f \
        ! -name '*.pyc' | LC_ALL=C sort
}

# native_tests PRESET: builds and runs the native tests of a CMake preset.
native_tests() {
    say "native tests, preset $1"
    mkdir -p build
    cmake --preset "$1" -DPython_EXECUTABLE="$py" >"build/configure-$1.log" 2>&1 ||
        { cat "build/configure-$1.log" >&2; die "CMake could not configure the preset $1"; }
    cmake --build --preset "$1" --target dflash_tests --parallel "$jobs" >"build/build-$1.log" 2>&1 ||
        { cat "build/build-$1.log" >&2; die "the native tests of the preset $1 do not build"; }
    ctest --preset "$1"
}
