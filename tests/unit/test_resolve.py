"""From a request to a pair: explicit drafters raise, found ones are passed over; nothing is loaded."""

from pathlib import Path
from typing import Any

import pytest

from dflash_local import IncompatibleDrafter, ModelLoadError, OutOfMemory
from dflash_local._native_loader import native
from dflash_local.pairs import resolve
from dflash_local.pairs.registry import MODELS_DIR
from dflash_local.pairs.resolve import describe_memory, estimate_pair, resolve_pair

DRAFTER = MODELS_DIR / "smollm2-135m-dflash.gguf"
TARGET_INFO = {"kind": "target", "architecture": "llama", "name": "other", "problem": ""}
MISMATCH = {
    "field": "n_embd",
    "drafter_value": "576",
    "target_value": "2048",
    "advice": "use the target it was made for",
}


class FakeNative:
    """Headers from tables: files are targets unless their name begins with dflash."""

    def __init__(self) -> None:
        self.mismatches: list[dict[str, str]] = []
        self.problem = ""
        self.fault: Exception | None = None
        self.asked: dict[str, Any] = {}

    def inspect(self, path: str) -> dict[str, Any]:
        name = Path(path).name
        if "broken" in name:
            raise ModelLoadError(f"{name} is truncated")
        if name.startswith("dflash"):
            return {
                "kind": "drafter",
                "architecture": "dflash",
                "name": "",
                "problem": self.problem,
                "problem_field": "",
            }
        if name.startswith("mmproj"):
            return {**TARGET_INFO, "kind": "other", "architecture": "clip"}
        return dict(TARGET_INFO)

    def check_pair(self, drafter: str, target: str) -> list[dict[str, str]]:
        return self.mismatches

    def estimate_memory(self, drafter: str, target: str, **asked: Any) -> dict[str, int]:
        self.asked = asked
        if self.fault:
            raise self.fault
        return {"weights": 2**20, "context": 2**21, "compute": 0, "taps": 0, "total": 3 * 2**20}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNative:
    found = FakeNative()
    monkeypatch.setattr(resolve, "native", found)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model.gguf", "dflash-model.gguf", "mmproj.gguf"):
        (tmp_path / name).touch()
    return tmp_path


def test_sidecar_is_found(fake: FakeNative, folder: Path) -> None:
    pair = resolve_pair(folder / "model.gguf")
    assert (pair.drafter, pair.drafter_name, pair.status) == (folder / "dflash-model.gguf", "dflash-model", "engaged")
    assert not pair.explicit


def test_off_looks_for_none(fake: FakeNative, folder: Path) -> None:
    pair = resolve_pair(folder / "model.gguf", "off")
    assert (pair.drafter, pair.status) == (None, "off")


def test_none_known(fake: FakeNative, folder: Path) -> None:
    (folder / "dflash-model.gguf").unlink()
    assert resolve_pair(folder / "model.gguf").status == f"declined: {resolve.NONE_KNOWN}"


def test_found_drafter_that_does_not_fit_is_a_warning(fake: FakeNative, folder: Path) -> None:
    fake.mismatches = [MISMATCH]
    told: list[str] = []
    pair = resolve_pair(folder / "model.gguf", notify=told.append)
    assert pair.drafter is None
    assert told == [
        "warning: drafter dflash-model.gguf does not fit target model.gguf: "
        "n_embd: drafter 576, target 2048 (use the target it was made for)"
    ]
    assert pair.status == f"declined: {told[0].removeprefix('warning: ')}"


def test_broken_sidecar_gives_way_to_the_next(fake: FakeNative, folder: Path) -> None:
    (folder / "dflash-a-broken.gguf").touch()
    (folder / "dflash-model.gguf").rename(folder / "dflash-z.gguf")
    told: list[str] = []
    assert resolve_pair(folder / "model.gguf", notify=told.append).drafter == folder / "dflash-z.gguf"
    assert told == ["warning: dflash-a-broken.gguf is truncated"]


def test_named_drafter_that_does_not_fit_raises_with_every_field(fake: FakeNative, folder: Path) -> None:
    fake.mismatches = [MISMATCH, {**MISMATCH, "field": "vocabulary", "advice": ""}]
    with pytest.raises(IncompatibleDrafter, match=r"n_embd: drafter 576.*; vocabulary: drafter 576") as caught:
        resolve_pair(folder / "model.gguf", folder / "dflash-model.gguf")
    assert caught.value.field == "n_embd, vocabulary"


def test_named_drafter_of_a_family_that_cannot_run(fake: FakeNative, folder: Path) -> None:
    fake.problem = "DFlash2 is not supported"
    with pytest.raises(IncompatibleDrafter, match="DFlash2 is not"):
        resolve_pair(folder / "model.gguf", folder / "dflash-model.gguf")


def test_target_named_as_drafter(fake: FakeNative, folder: Path) -> None:
    with pytest.raises(IncompatibleDrafter, match=r"general\.architecture is llama, expected dflash"):
        resolve_pair(folder / "model.gguf", folder / "model.gguf")


def test_missing_drafter(fake: FakeNative, folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="no such drafter file"):
        resolve_pair(folder / "model.gguf", folder / "none.gguf")


def test_drafter_named_as_target(fake: FakeNative, folder: Path) -> None:
    with pytest.raises(ModelLoadError, match="is a DFlash drafter, not a target"):
        resolve_pair(folder / "dflash-model.gguf")


def test_no_language_model(fake: FakeNative, folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"is no language model: its general\.architecture is clip"):
        resolve_pair(folder / "mmproj.gguf")


def test_memory_is_told_in_one_line(fake: FakeNative, folder: Path) -> None:
    pair, memory = estimate_pair(resolve_pair(folder / "model.gguf"), n_batch=512)
    assert pair.drafter is not None
    assert memory is not None
    assert describe_memory(memory) == (
        "drafting adds 3.0 MiB of memory (weights 1.0, context 2.0, compute 0.0, taps 0.0)"
    )


def test_memory_is_estimated_for_the_devices_in_use(fake: FakeNative, folder: Path) -> None:
    pair = resolve_pair(folder / "model.gguf")
    estimate_pair(pair, n_batch=64)
    assert fake.asked == {"n_batch": 64, "device": "", "layers_on_device": False}
    estimate_pair(pair, n_batch=64, device="GPU7", layers_on_device=True)
    assert fake.asked == {"n_batch": 64, "device": "GPU7", "layers_on_device": True}


def test_estimate_that_fails(fake: FakeNative, folder: Path) -> None:
    fake.fault = OutOfMemory("too large")
    told: list[str] = []
    pair, memory = estimate_pair(resolve_pair(folder / "model.gguf"), n_batch=512, notify=told.append)
    assert (pair.drafter, pair.status, memory) == (None, "declined: too large", None)
    assert told == ["warning: decoding without a drafter: too large"]
    named = resolve_pair(folder / "model.gguf", folder / "dflash-model.gguf")
    with pytest.raises(OutOfMemory):
        estimate_pair(named, n_batch=512)


def test_the_packaged_pair_fits() -> None:
    pair = resolve_pair("smollm2-135m-instruct")
    assert pair.drafter == DRAFTER
    assert not native.check_pair(str(pair.drafter), str(pair.target))
