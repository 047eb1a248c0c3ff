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
    find CMakeLists.txt cmake pyproject.toml README.md native/include native/src native/bind native/cpu python -type f \
        ! -name '*.pyc' | LC_ALL=C sort
}

# quietly WHAT COMMAND...: shows the output of COMMAND only if it fails.
quietly() {
    what=$1
    shift
    mkdir -p build
    "$@" >build/last.log 2>&1 || { cat build/last.log >&2; die "$what"; }
}

# native_tests PRESET [-D...]: builds and runs the native tests of a CMake preset.
native_tests() {
    preset=$1
    shift
    say "native tests, preset $preset"
    quietly "CMake could not configure the preset $preset" cmake --preset "$preset" -DPython_EXECUTABLE="$py" "$@"
    quietly "the native tests of the preset $preset do not build" \
        cmake --build --preset "$preset" --target native_tests --parallel "$jobs"
    ctest --preset "$preset"
}
