"""From what the user asked for to a target and a drafter that fits it, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dflash_local._errors import Error, IncompatibleDrafter, ModelLoadError
from dflash_local._native_loader import native
from dflash_local.memory import MAX_LEAVES
from dflash_local.pairs.registry import file_mode, packaged_drafters, resolve_model, sidecar_drafters

if TYPE_CHECKING:
    from dflash_local._native import DraftMemory, PairMismatch

Draft = Literal["auto", "off", "ngram"] | Path
Notify = Callable[[str], None]
NONE_KNOWN = "no drafter known for this model, name one with -d PATH"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and perhaps its drafter. `status`: "engaged", "off" or "declined: why", of the drafter where one was
    looked for."""

    target: Path
    target_info: Mapping[str, Any]  # native `inspect`
    drafter: Path | None
    drafter_name: str | None
    status: str
    explicit: bool = False  # the user named the drafter: failures raise instead of ending in plain decoding
    copies: bool = True  # what repeats itself in the text is drafted too

    @property
    def kind(self) -> str | None:
        """What may be drafted from, None: nothing."""
        if self.drafter is None:
            return "ngram" if self.copies else None
        return "dflash+ngram" if self.copies else "dflash"

    def declined(self, why: str) -> Pair:
        """The same target without a drafter."""
        return replace(self, drafter=None, drafter_name=None, status=f"declined: {why}")


def describe_mismatches(drafter: Path, target: Path, mismatches: list[PairMismatch]) -> str:
    """One line that names each field in which the two do not fit."""
    fields = "; ".join(
        f"{found['field']}: drafter {found['drafter_value']}, target {found['target_value']}"
        + (f" ({found['advice']})" if found["advice"] else "")
        for found in mismatches
    )
    return f"drafter {drafter.name} does not fit target {target.name}: {fields}"


def _drafter_info(drafter: Path, target: Path) -> Mapping[str, Any]:
    """What the drafter says of itself. Raises IncompatibleDrafter unless it fits the target and can run here."""
    info = native.inspect(str(drafter))
    if info["kind"] != "drafter":
        raise IncompatibleDrafter(
            f"{drafter} is no DFlash drafter: its general.architecture is {info['architecture']}, expected dflash",
            "general.architecture",
        )
    if info["problem"]:
        raise IncompatibleDrafter(info["problem"], info["problem_field"])
    mismatches = native.check_pair(str(drafter), str(target))
    if mismatches:
        raise IncompatibleDrafter(
            describe_mismatches(drafter, target, mismatches), ", ".join(found["field"] for found in mismatches)
        )
    return info


def check_target(path: Path) -> Mapping[str, Any]:
    """What a target says of itself. Raises ModelLoadError where the file is a drafter, no language model, or one
    on which llama.cpp would abort."""
    info = native.inspect(str(path))
    if info["kind"] == "drafter":
        raise ModelLoadError(
            f"{path} is a DFlash drafter, not a target: give its target with -m and the drafter with -d",
            "general.architecture",
        )
    if info["kind"] != "target":
        raise ModelLoadError(
            f"{path} is no language model: its general.architecture is {info['architecture']}", "general.architecture"
        )
    if info["problem"]:
        raise ModelLoadError(info["problem"], info["problem_field"])
    return info


def _drafter_path(draft: Path) -> Path:
    if file_mode(draft) is None:
        raise ModelLoadError(f"{draft}: no such drafter file; -d takes auto, off, ngram or a path", "draft")
    return draft


def resolve_pair(model: str | Path, draft: Draft = "auto", notify: Notify = lambda _: None) -> Pair:
    """Finds and checks both files, from their headers alone.

    A drafter named by the user that does not fit raises IncompatibleDrafter; one found by itself that does not fit is
    passed over with a word through `notify`. Raises ModelLoadError, Unsupported as `resolve_model`."""
    target = resolve_model(model)
    info = check_target(target)
    if draft == "off":
        return Pair(target, info, None, None, "off", copies=False)
    if draft == "ngram":
        return Pair(target, info, None, None, "engaged")
    if isinstance(draft, Path):
        drafter = _drafter_path(draft)
        return Pair(target, info, drafter, _drafter_info(drafter, target)["name"] or drafter.stem, "engaged", True)
    why = NONE_KNOWN
    for drafter in (*sidecar_drafters(target), *packaged_drafters(info)):
        try:
            drafter_info = _drafter_info(drafter, target)
        except Error as error:
            why = str(error)
            notify(f"warning: {error}")
            continue
        return Pair(target, info, drafter, drafter_info["name"] or drafter.stem, "engaged")
    return Pair(target, info, None, None, f"declined: {why}")


def estimate_pair(
    pair: Pair,
    *,
    n_batch: int,
    device: str = "",
    layers_on_device: bool = False,
    notify: Notify = lambda _: None,
) -> tuple[Pair, DraftMemory | None]:
    """Bytes that drafting will add, from the files alone; None without a drafter. Devices as in `estimate_memory`.

    A drafter that cannot be estimated raises where the user named it, else the pair comes back without it."""
    if pair.drafter is None:
        return pair, None
    try:
        memory = native.estimate_memory(
            str(pair.drafter), str(pair.target), n_batch=n_batch, device=device, layers_on_device=layers_on_device
        )
    except Error as error:
        if pair.explicit:
            raise
        notify(f"warning: decoding without a drafter: {error}")
        return pair.declined(str(error)), None
    # llama.cpp keeps room for the logits of a row per leaf of a draft tree.
    logits = (MAX_LEAVES - 1) * int(pair.target_info.get("n_vocab") or 0) * 4
    memory["compute"] += logits
    memory["total"] += logits
    return pair, memory


def describe_memory(memory: DraftMemory) -> str:
    """One line for the user."""

    def mib(n: int) -> str:
        return f"{n / 2**20:.1f}"

    return (
        f"drafting adds {mib(memory['total'])} MiB of memory (weights {mib(memory['weights'])}, "
        f"context {mib(memory['context'])}, compute {mib(memory['compute'])}, taps {mib(memory['taps'])})"
    )
