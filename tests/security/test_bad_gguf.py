"""Broken and hostile GGUF files as target and as drafter: our error, at once, in little memory, never a crash."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gguf_factory import ARRAY, GGML_Q8_0, I32, STRING, U8, U16, U32, U64, Gguf, number, text, tiny_target
from hostile import Bad, attempts_on_both_sides, check_both_sides, run_child, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the child limits its memory through /proc")

HUGE = 2**64 - 1


def base() -> Gguf:
    return Gguf().text("general.architecture", "llama")


def array(kind: int, count: int, payload: bytes = b"") -> bytes:
    return number(U32, kind) + number(U64, count) + payload


def test_01_wrong_beginnings(tmp_path: Path) -> None:
    bads = {
        "empty": Bad(b"", "it is empty"),
        "three-bytes": Bad(b"GGU", "truncated"),
        "magic-only": Bad(b"GGUF", "truncated"),
        "bad-magic": Bad(b"\x7fELF" + bytes(100), "does not begin with 'GGUF'"),
        "big-endian": Bad(b"GGUF\0\0\0\3" + bytes(16), "big-endian"),
    }
    for version in (0, 1, 99):
        bads[f"version-{version}"] = Bad(Gguf(version=version), f"version {version} is not supported")
    check_both_sides(tmp_path, bads)


def test_02_counts(tmp_path: Path) -> None:
    bads = {}
    for n in (2**63 - 1, 10**9, 16000):
        words = "over the limit" if n > 10**6 else "truncated"
        keys, tensors = base(), base()
        keys.n_keys = tensors.n_tensors = n
        bads[f"keys-{n}"] = Bad(keys, words, "key count")
        bads[f"tensors-{n}"] = Bad(tensors, words, "tensor count")
    check_both_sides(tmp_path, bads)


def test_03_lengths(tmp_path: Path) -> None:
    nested = (number(U32, ARRAY) + number(U64, 1)) * 10**5
    bads = {
        "string-2^63": Bad(base().raw("k", STRING, number(U64, 2**63)), "truncated", "k"),
        "string-2GB": Bad(base().raw("k", STRING, number(U64, 2**31)), "truncated", "k"),
        "array-2^40": Bad(base().raw("k", ARRAY, array(U8, 2**40)), "over the limit", "k"),
        "array-10^7": Bad(base().raw("k", ARRAY, array(U8, 10**7)), "truncated", "k"),
        "strings-10^7": Bad(base().raw("k", ARRAY, array(STRING, 10**7)), "truncated", "k"),
        "nested": Bad(base().raw("k", ARRAY, nested), "array of arrays", "k"),
    }
    check_both_sides(tmp_path, bads)


def test_03_lengths_in_a_file_that_is_large_enough(tmp_path: Path) -> None:
    """Sparse files: the lengths fit, so only our limits stop the walk."""
    several = base()
    for i in range(3):
        several.raw(f"k{i}", ARRAY, array(STRING, 2**24 - 1, bytes(8 * (2**24 - 1)) if i == 0 else b""))
    bads = {
        "walk": (several, "its header is longer"),
        "string": (base().raw("k", STRING, number(U64, 2**31)), "its header is longer"),
        "array": (base().raw("k", ARRAY, array(U8, 2**35)), "over the limit"),
    }
    for name, (file, words) in bads.items():
        path = write(tmp_path, f"{name}.gguf", file)
        os.truncate(path, 2**36)
        for report in run_child(attempts_on_both_sides(tmp_path, path)):
            assert report["error"] == "ModelLoadError", (name, report)
            assert words in report["message"], (name, report)


def test_04_names(tmp_path: Path) -> None:
    twice = base()
    twice.extra = text("k") + number(U32, U8) + b"\0" + text("k") + number(U32, U8) + b"\0"
    twice.n_keys = 3
    same_tensor = base().tensor("a", [1]).tensor("b", [1])
    same_tensor.tensors[b"b"].name = b"a"
    bads = {
        "key-twice": Bad(twice, "occurs twice", "k"),
        "tensor-twice": Bad(same_tensor, "occurs twice", "a"),
        "empty-key": Bad(base().raw("", U8, b"\0"), "0 bytes"),
        "empty-tensor": Bad(base().tensor("", [1]), "0 bytes"),
        "nul-key": Bad(base().raw(b"a\0b", U8, b"\0"), "NUL byte", "a\\x00b"),
        "nul-tensor": Bad(base().tensor(b"a\0b", [1]), "NUL byte", "a\\x00b"),
        "escape": Bad(
            base().raw(b"\x1b[2J\xff", 77, b""), "'\\x1b[2J\\xff' has the unknown value type", "\\x1b[2J\\xff"
        ),
    }
    check_both_sides(tmp_path, bads)


def test_04_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    odd = tiny_target().text("general.name", b"\xff\x1b]0;title\x07").raw(b"\xfe", U8, b"\0")
    reports = run_child([{"target": write(tmp_path, "odd.gguf", odd), "drafter": None}])
    assert reports[0]["error"] is None, reports


def test_05_alignment(tmp_path: Path) -> None:
    bads = {
        f"is-{n}": Bad(base().u32("general.alignment", n), "power of two", "general.alignment") for n in (0, 3, 2**31)
    }
    bads["wrong-type"] = Bad(base().text("general.alignment", "32"), "expected a u32", "general.alignment")
    check_both_sides(tmp_path, bads)


def test_06_tensor_shapes(tmp_path: Path) -> None:
    def shape(*ne: int, kind: int = 0, n_dims: int | None = None) -> Gguf:
        return base().raw_tensor("w", ne, kind, n_dims=n_dims)

    bads = {
        "no-dimensions": Bad(shape(), "0 dimensions", "w"),
        "five-dimensions": Bad(shape(1, 1, 1, 1, 1), "5 dimensions", "w"),
        "2^32-1-dimensions": Bad(shape(1, n_dims=2**32 - 1), "4294967295 dimensions", "w"),
        "zero": Bad(shape(4, 0), "dimension 0", "w"),
        "negative": Bad(shape(4, -4), "dimension -4", "w"),
        "product": Bad(shape(2**40, 2**40), "overflow", "w"),
        "bytes": Bad(shape(2**62), "overflow", "w"),
        "padding": Bad(shape(2**63 - 4, kind=24), "beyond the end", "w"),  # I8: one byte each
        "type": Bad(shape(32, kind=4), "unknown type 4", "w"),
        "type-2^32-1": Bad(shape(32, kind=2**32 - 1), "unknown type", "w"),
        "block": Bad(shape(33, kind=GGML_Q8_0), "no multiple of the block", "w"),
    }
    check_both_sides(tmp_path, bads)


def test_07_tensor_places(tmp_path: Path) -> None:
    def place(offset: int) -> bytes:
        return base().raw_tensor("w", [8], offset=offset).build() + bytes(32)

    overlapping = base().raw_tensor("a", [16]).raw_tensor("b", [8], offset=32)
    bads = {
        "beyond": Bad(place(1 << 20), "beyond the end", "w"),
        "wrapping": Bad(place(HUGE - 31), "beyond the end", "w"),
        "unaligned": Bad(place(8), "no multiple of the alignment", "w"),
        "overlapping": Bad(overlapping.build() + bytes(64), "overlap", "b"),
        "mid-data": Bad(base().tensor("w", [1024]).build()[:-100], "beyond the end", "w"),
    }
    check_both_sides(tmp_path, bads)


def test_07_cut_at_every_byte_of_the_header(tmp_path: Path) -> None:
    file = base().u32("n", 1).texts("words", ["a", "bc"]).numbers("ints", I32, [1, 2]).tensor("w", [8])
    header = file.header()
    paths = [write(tmp_path, f"cut-{n}.gguf", header[:n]) for n in range(len(header))]
    for report in run_child([{"target": path, "drafter": None} for path in paths]):
        assert report["error"] == "ModelLoadError", report


def test_08_split_models(tmp_path: Path) -> None:
    def part(no: int, count: int, n_tensors: int, tensor: str) -> Gguf:
        file = base().put("split.no", U16, no).put("split.count", U16, count)
        return file.put("split.tensors.count", I32, n_tensors).tensor(tensor, [8])

    write(tmp_path, "count-00002-of-00002.gguf", part(1, 2, 5, "b"))
    write(tmp_path, "other-00002-of-00002.gguf", part(0, 2, 2, "b"))
    files = {
        "missing-00001-of-00002.gguf": (part(0, 2, 2, "a"), "missing-00002-of-00002.gguf': no such file"),
        "count-00001-of-00002.gguf": (part(0, 2, 5, "a"), "its parts hold 2 tensors"),
        "other-00001-of-00002.gguf": (part(0, 2, 2, "a"), "not part 2 of 2 of the same model"),
        "many-00001-of-60000.gguf": (part(0, 60000, 2, "a"), "split.count is 60000"),
        "odd-name.gguf": (part(0, 2, 2, "a"), "its name does not say so"),
    }
    for name, (file, words) in files.items():
        for report in run_child(attempts_on_both_sides(tmp_path, write(tmp_path, name, file))):
            assert report["error"] == "ModelLoadError", (name, report)
            assert words in report["message"], (name, report)


def test_10_no_regular_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    loop = tmp_path / "loop.gguf"
    loop.symlink_to(loop)
    dangling = tmp_path / "dangling.gguf"
    dangling.symlink_to(tmp_path / "nowhere.gguf")
    for path in (tmp_path, fifo, loop, dangling, Path("/dev/zero")):
        for report in run_child(attempts_on_both_sides(tmp_path, str(path))):
            assert report["error"] == "ModelLoadError", (path, report)


def test_10_unreadable(tmp_path: Path) -> None:
    path = write(tmp_path, "secret.gguf", tiny_target())
    Path(path).chmod(0)
    for report in run_child([{"target": path, "drafter": None}], as_nobody=True):
        assert report["error"] == "ModelLoadError", report
        assert "ermission denied" in report["message"], report
