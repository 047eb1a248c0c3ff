"""The inspect command: what it says of files and pairs, its exit codes, and names that try to steer the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dflash_local.cli.inspect import inspect_files, quantization, taps_in_words
from gguf_factory import BOOL, F32, GGML_I64, GGML_Q8_0, I64, Gguf, number, tiny_drafter, tiny_target, vocabulary


def write(folder: Path, name: str, file: Gguf) -> Path:
    path = folder / name
    path.write_bytes(file.build())
    return path


def lines(output: str) -> dict[str, str]:
    """Label -> value of the printed lines of one file."""
    return {line[2:19].strip(): line[19:] for line in output.splitlines() if line.startswith("  ")}


def test_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny_target().tensor("token_embd.weight", [32, 10], GGML_Q8_0).tensor("output_norm.weight", [8])
    path = write(tmp_path, "t.gguf", file)
    assert inspect_files([path], False) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == str(path)
    assert lines(out) == {
        "kind": "target",
        "name": "tiny target",
        "architecture": "llama",
        "layers": "4",
        "width": "8",
        "vocabulary": "10",
        "context": "128 tokens in training",
        "size": "0.0 MB",
        "quantization": "Q8_0 91%, F32 9%",
        "tensors": "2 (1 F32, 1 Q8_0)",
    }


def test_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect_files([write(tmp_path, "d.gguf", tiny_drafter())], False) == 0
    found = lines(capsys.readouterr().out)
    assert found["kind"] == "drafter"
    assert found["family"] == "DFlash"
    assert found["block size"] == "4 (the anchor and 3 drafted tokens)"
    assert found["taps"] == "1, 3 (the outputs of target layers 0 and 2, counted from 0)"
    assert found["mask token"] == "3"
    assert found["embeddings"] == "borrowed from the target"
    assert found["head"] == "borrowed from the target"
    assert found["sliding window"] == "none"
    assert found["causal in block"] == "no layer"
    assert found["acceptance"] == "no priors"


def test_drafter_with_parts_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny_drafter().u32("dflash.attention.sliding_window", 16)
    file.numbers("dflash.attention.sliding_window_pattern", BOOL, [1, 0])
    ids = number(I64, 4) + number(I64, 2)
    file.tensor("token_embd.weight", [8, 10]).tensor("output.weight", [8, 2]).tensor("d2t", [2], GGML_I64, ids)
    assert inspect_files([write(tmp_path, "d.gguf", file)], False) == 0
    found = lines(capsys.readouterr().out)
    assert found["embeddings"] == "its own"
    assert found["head"] == "its own, 2 tokens"
    assert found["sliding window"] == "16 (layer 0)"
    assert found["causal in block"] == "layer 0"


PRIORS = [1.0, 1.0, 0.1, 1.2, 0.0, 0.0, 1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (PRIORS, "priors for 1 slot"),
        ([2.0, *PRIORS[1:]], "priors not used: acceptance priors: found 10 values of version 2"),
    ],
)
def test_drafter_with_priors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: list[float], words: str
) -> None:
    path = write(tmp_path, "d.gguf", tiny_drafter().numbers("dflash_local.acceptance", F32, values))
    assert inspect_files([path], False) == 0
    assert lines(capsys.readouterr().out)["acceptance"].startswith(words)


def test_drafter_of_a_later_family(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "d.gguf", tiny_drafter().u32("dflash.selector_rank", 4))
    assert inspect_files([path], False) == 0
    found = lines(capsys.readouterr().out)
    assert found["family"] == "DFlash2"
    assert "does not run" in found["cannot run here"]
    assert "layers" not in found


def test_file_of_another_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "c.gguf", Gguf().text("general.architecture", "clip"))
    assert inspect_files([path], False) == 0
    found = lines(capsys.readouterr().out)
    assert found["kind"] == "neither target nor drafter"
    assert found["quantization"] == "no tensors"
    assert found["tensors"] == "0"


def test_pair_that_fits_in_either_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = [write(tmp_path, "t.gguf", tiny_target()), write(tmp_path, "d.gguf", tiny_drafter())]
    for files in (pair, pair[::-1]):
        assert inspect_files(files, False) == 0
        assert capsys.readouterr().out.endswith("They fit.\n")


def test_pair_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tiny_target().u32("llama.block_count", 3).texts("tokenizer.ggml.tokens", vocabulary(12))
    target.tensor("token_embd.weight", [8, 12])
    files = [write(tmp_path, "t.gguf", target), write(tmp_path, "d.gguf", tiny_drafter())]
    assert inspect_files(files, False) == 1
    out = capsys.readouterr().out
    assert "They do not fit: target_layers, vocab_size\n" in out
    verdict = out[out.index("They do not fit") :]
    assert "drafter          1, 3\n" in verdict
    assert "target           3 layers (1 to 2 can be read)\n" in verdict
    assert "what to do       this drafter was trained for a deeper target; use a drafter trained for" in verdict


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("t.gguf", "t2.gguf"), "two targets are no pair"),
        (("d.gguf", "d.gguf"), "one file given twice is no pair"),
        (("t.gguf", "later.gguf"), "a family that this version does not run"),
    ],
)
def test_files_that_make_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, str], words: str
) -> None:
    write(tmp_path, "t.gguf", tiny_target())
    write(tmp_path, "t2.gguf", tiny_target())
    write(tmp_path, "d.gguf", tiny_drafter())
    write(tmp_path, "later.gguf", tiny_drafter().u32("dflash.conv_group_size", 4))
    assert inspect_files([tmp_path / name for name in names], False) == 1
    said = capsys.readouterr()
    last = said.out.splitlines()[-1]
    assert said.err == "error: these two files make no pair\n"
    assert last.startswith("They do not fit: ")
    assert words in last


def test_unreadable_file_is_one_line_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    good = write(tmp_path, "t.gguf", tiny_target())
    assert inspect_files([bad, good], False) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: cannot load '{bad}': it is truncated")
    assert captured.err.count("\n") == 1
    assert lines(captured.out)["kind"] == "target"


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path, "t.gguf", tiny_target()), write(tmp_path, "d.gguf", tiny_drafter())]
    assert inspect_files(files, True) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in result["files"]] == ["target", "drafter"]
    assert result["files"][1]["tap_inputs"] == [1, 3]
    assert result["pair"] == {"fits": True, "problem": "", "mismatches": []}
    assert inspect_files(files[:1], True) == 0
    assert json.loads(capsys.readouterr().out)["pair"] is None


def test_names_cannot_steer_the_terminal_or_the_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = b"[red]\x1b]0;owned\x07\xff\xe2\x80\xae:smile:\xc2\x9b2J"
    file = tiny_target().text("general.name", name).text("general.architecture", b"\x1b[31mllama")
    assert inspect_files([write(tmp_path, "t.gguf", file)], False) == 0
    out = capsys.readouterr().out
    assert lines(out)["name"] == "[red]\\x1b]0;owned\\x07\\xff\\xe2\\x80\\xae:smile:\\xc2\\x9b2J"
    assert lines(out)["architecture"] == "\\x1b[31mllama"
    assert all(line.isprintable() for line in out.splitlines())


def test_quantization_leaves_out_small_shares() -> None:
    assert quantization({"q4_0": 900, "f32": 1, "q8_0": 99}) == "Q4_0 90%, Q8_0 10%"


def test_taps_in_words() -> None:
    assert taps_in_words([2]) == "2 (the outputs of target layer 1, counted from 0)"
