"""Well-formed files that are no drafter for their target: refused by field, before anything is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gguf_factory import GGML_I64, I32, Gguf, number, tiny_drafter, tiny_target, vocabulary
from hostile import Bad, check_drafters, run_child, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the child limits its memory through /proc")

TAPS = "dflash.target_layers"
BLOCK = "dflash.block_size"
MASK = "tokenizer.ggml.mask_token_id"


def test_09_architecture(tmp_path: Path) -> None:
    key = "general.architecture"
    check_drafters(
        tmp_path,
        {
            "old-dialect": Bad(tiny_drafter().text(key, "dflash-draft"), "older 'dflash-draft' dialect", key),
            "eagle": Bad(tiny_drafter().text(key, "eagle3"), "", key),
            "unknown": Bad(tiny_drafter().text(key, "\x1b[31mred"), "\\x1b[31mred", key),
        },
    )


def test_09_target_layers(tmp_path: Path) -> None:
    def taps(*values: int) -> Gguf:
        return tiny_drafter().numbers(TAPS, I32, values)

    check_drafters(
        tmp_path,
        {
            "missing": Bad(tiny_drafter().drop(TAPS), "does not say which target layers", TAPS),
            "empty": Bad(taps(), "0 values", TAPS),
            "negative": Bad(taps(1, -1), "is -1", TAPS),
            "twice": Bad(taps(2, 2), "twice", TAPS),
            "million": Bad(taps(*[1] * 10**6), "1000000 values", TAPS),
            "not-an-array": Bad(tiny_drafter().u32(TAPS, 1), "must be an array", TAPS),
            "beyond-any-target": Bad(taps(1, 10**6), "is 1000000", TAPS),
            "beyond-this-target": Bad(taps(1, 4), "4 layers (1 to 3 can be read)", "target_layers"),
        },
    )


def test_09_block_size(tmp_path: Path) -> None:
    bads = {
        f"is-{n}": Bad(tiny_drafter().put(BLOCK, I32, n), f"is {n}, expected 2 to 128", BLOCK)
        for n in (0, 1, -1, 10**6)
    }
    bads["text"] = Bad(tiny_drafter().text(BLOCK, "8"), "expected an integer", BLOCK)
    bads["missing"] = Bad(tiny_drafter().drop(BLOCK), "has no", BLOCK)
    check_drafters(tmp_path, bads)


def test_09_mask_token_and_sizes(tmp_path: Path) -> None:
    small_vocab = tiny_drafter().texts("tokenizer.ggml.tokens", vocabulary(6))
    wide = tiny_drafter().u32("dflash.embedding_length", 16)
    wider_taps = tiny_drafter().tensor("fc.weight", [32, 8])
    check_drafters(
        tmp_path,
        {
            "mask-missing": Bad(tiny_drafter().drop(MASK), "has no", MASK),
            "mask-beyond": Bad(tiny_drafter().u32(MASK, 10), "is 10, expected 0 to 9", MASK),
            "mask-beyond-target": Bad(
                tiny_drafter().drop("tokenizer.ggml.tokens").u32(MASK, 10), "10", "mask_token_id"
            ),
            "vocab": Bad(small_vocab, "drafter 6, target 10", "vocab_size"),
            "width": Bad(wide, "16 x 8, expected 16 x 16", "fc.weight"),
            "tap-width": Bad(wider_taps, "16 values per tapped layer", "fc.weight"),
        },
    )


def test_09_reduced_head(tmp_path: Path) -> None:
    def mapped(*ids: int) -> Gguf:
        data = b"".join(number(11, i) for i in ids)
        return tiny_drafter().tensor("output.weight", [8, len(ids)]).tensor("d2t", [len(ids)], GGML_I64, data)

    check_drafters(
        tmp_path,
        {
            "no-map": Bad(tiny_drafter().tensor("output.weight", [8, 4]), "no 'd2t'", "output.weight"),
            "no-head": Bad(mapped(1, 2).drop("output.weight"), "no head of its own", "d2t"),
            "outside": Bad(mapped(1, 2**62), "outside the vocabulary", "d2t"),
            "offsets": Bad(mapped(0, 0), "absolute token ids", "d2t"),
        },
    )


@pytest.mark.parametrize(
    ("target", "drafter", "error", "words"),
    [
        ("target", "target", "IncompatibleDrafter", "given both as target and as drafter"),
        ("drafter", "drafter", "IncompatibleDrafter", "given both as target and as drafter"),
        ("drafter", "target", "IncompatibleDrafter", "swapped"),
        ("drafter", None, "ModelLoadError", "is a DFlash drafter, not a target"),
    ],
)
def test_09_files_in_the_wrong_places(tmp_path: Path, target: str, drafter: str | None, error: str, words: str) -> None:
    paths = {
        "target": write(tmp_path, "t.gguf", tiny_target()),
        "drafter": write(tmp_path, "d.gguf", tiny_drafter()),
    }
    report = run_child([{"target": paths[target], "drafter": paths[drafter] if drafter else None}])[0]
    assert report["error"] == error, report
    assert report["field"] == "general.architecture", report
    assert words in report["message"], report


def test_09_target_on_which_loading_would_abort(tmp_path: Path) -> None:
    targets = {
        "llama.block_count": tiny_target().u32("llama.block_count", 100_000),
        "llama.expert_count": tiny_target().u32("llama.expert_count", 5000),
        "llama.expert_used_count": tiny_target().u32("llama.expert_used_count", 2),
        "llama.embedding_length": tiny_target().u32("llama.embedding_length", 0),
        "tokenizer.ggml.tokens": tiny_target().texts("tokenizer.ggml.tokens", ["a", "b", "a"]),
        "tokenizer.ggml.model": tiny_target().text("tokenizer.ggml.model", "no_vocab"),
    }
    paths = [write(tmp_path, f"{key}.gguf", file) for key, file in targets.items()]
    reports = run_child([{"target": path, "drafter": None} for path in paths])
    for key, report in zip(targets, reports, strict=True):
        assert (report["error"], report["field"]) == ("ModelLoadError", key), report
