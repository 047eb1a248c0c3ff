"""`dflash-local inspect`: what GGUF files are, and whether two of them make a pair."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from dflash_local._errors import Error
from dflash_local._native_loader import native

if TYPE_CHECKING:
    from dflash_local._native import PairMismatch

Info = Mapping[str, Any]
Rows = Iterator[tuple[str, str]]

_LABEL_WIDTH = 17
_SMALL_SHARE = 0.01  # tensor types below this share of the bytes do not name the quantization


def _words(values: Sequence[int]) -> str:
    """Numbers as a phrase: 1, 8 and 14."""
    texts = [str(value) for value in values]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"


def quantization(tensor_bytes: Mapping[str, int]) -> str:
    """The types that hold the weights with their share of the bytes, largest first."""
    total = sum(tensor_bytes.values())
    if total == 0:
        return "no tensors"
    by_size = sorted(tensor_bytes.items(), key=lambda item: -item[1])
    large = [(name, n) for name, n in by_size if n / total >= _SMALL_SHARE]
    return ", ".join(f"{name.upper()} {n / total:.0%}" for name, n in large)


def taps_in_words(tap_inputs: Sequence[int]) -> str:
    """A file stores the layers whose *inputs* are read: the outputs of the layers before them."""
    outputs = [tap - 1 for tap in tap_inputs]
    layers = "layers" if len(outputs) > 1 else "layer"
    return f"{', '.join(map(str, tap_inputs))} (the outputs of target {layers} {_words(outputs)}, counted from 0)"


def _layers(flags: Sequence[bool]) -> str:
    """Which layers are flagged, in words."""
    if all(flags):
        return "all layers"
    chosen = [i for i, flag in enumerate(flags) if flag]
    return f"layers {_words(chosen)}" if len(chosen) > 1 else f"layer {chosen[0]}" if chosen else "no layer"


def _priors(info: Info) -> str:
    if info["acceptance_problem"]:
        return f"priors not used: {info['acceptance_problem']}"
    slots: int | None = info["acceptance_slots"]
    return "no priors" if slots is None else f"priors for {slots} slot{'s' if slots != 1 else ''}"


def _drafter_rows(info: Info) -> Rows:
    block: int = info["block_size"]
    yield "block size", f"{block} (the anchor and {block - 1} drafted tokens)"
    yield "taps", taps_in_words(info["tap_inputs"])
    yield "mask token", str(info["mask_token_id"])
    yield "embeddings", "its own" if info["own_embeddings"] else "borrowed from the target"
    yield "head", f"its own, {info['n_vocab_head']} tokens" if info["own_head"] else "borrowed from the target"
    window: int = info["sliding_window"]
    yield "sliding window", f"{window} ({_layers(info['layer_sliding'])})" if window else "none"
    yield "causal in block", _layers(info["layer_causal"])
    yield "acceptance", _priors(info)


def describe(info: Info) -> Rows:
    """Label and value of each line that is printed for one file. `info`: native `inspect`."""
    readable = not info["problem"]
    yield "kind", {"target": "target", "drafter": "drafter"}.get(info["kind"], "neither target nor drafter")
    if info["name"]:
        yield "name", info["name"]
    yield "architecture", info["architecture"]
    if info.get("family"):
        yield "family", info["family"]
    if readable:
        yield "layers", _known(info["n_layer"])
        yield "width", _known(info["n_embd"])
        yield "vocabulary", _known(info["n_vocab"] or None)
        if info["kind"] == "target":
            yield "context", f"{info['n_ctx_train']} tokens in training"
        else:
            yield from _drafter_rows(info)
    yield "size", _size(info["size"])
    yield "quantization", quantization(info["tensor_bytes"])
    types = sorted(info["tensor_types"].items(), key=lambda item: -item[1])
    counts = ", ".join(f"{count} {name.upper()}" for name, count in types)
    yield "tensors", f"{info['n_tensors']} ({counts})" if counts else "0"
    if not readable:
        yield "cannot run here", info["problem"]


def _pair(infos: Sequence[Info], files: Sequence[Path]) -> tuple[str, list[PairMismatch]]:
    """A sentence when no drafter and target were given, and the fields that differ. Raises Error."""
    for info in infos:
        if info["problem"]:
            return info["problem"], []
    by_kind = {info["kind"]: file for info, file in zip(infos, files, strict=True)}
    if set(by_kind) != {"target", "drafter"}:
        what = "one file given twice is" if files[0].samefile(files[1]) else f"two {infos[0]['kind']}s are"
        return f"{what} no pair: name one target and one drafter", []
    return "", native.check_pair(str(by_kind["drafter"]), str(by_kind["target"]))


def _line(label: str, value: str, style: str = "") -> Text:
    # Text, not markup: names come from the file.
    return Text.assemble((f"  {label:<{_LABEL_WIDTH}}", "dim"), (value, style))


def _print_pair(console: Console, problem: str, mismatches: list[PairMismatch]) -> None:
    if problem:
        console.print(Text(f"They do not fit: {problem}", style="red"), soft_wrap=True)
    elif not mismatches:
        console.print(Text("They fit.", style="green"))
    else:
        console.print(Text(f"They do not fit: {', '.join(found['field'] for found in mismatches)}", style="red"))
        for found in mismatches:
            console.print(Text(found["field"], style="bold"))
            for label, value in (
                ("drafter", found["drafter_value"]),
                ("target", found["target_value"]),
                ("what to do", found["advice"]),
            ):
                console.print(_line(label, value), soft_wrap=True)


class PipeConsole(Console):
    """A console whose reader may leave: rich would exit with 1 there."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def inspect_files(files: list[Path], json_output: bool) -> int:
    """Prints what each file is, and with two files whether they fit.

    Returns the exit code: 1 where a file cannot be read (one line on stderr) or two files do not fit, else 0."""
    console = PipeConsole(highlight=False, emoji=False)
    errors = Console(stderr=True, highlight=False, emoji=False)
    infos: list[Info] = []
    for file in files:
        try:
            infos.append(native.inspect(str(file)))
        except Error as error:
            errors.print(Text(f"error: {error}"), soft_wrap=True)
    failed = len(infos) < len(files)
    problem = ""
    mismatches: list[PairMismatch] = []
    is_pair = len(files) == 2 and not failed
    if is_pair:
        try:
            problem, mismatches = _pair(infos, files)
        except Error as error:
            problem = str(error)
    if json_output:
        pair = {"fits": not problem and not mismatches, "problem": problem, "mismatches": mismatches}
        result = {"files": infos, "pair": pair if is_pair else None}
        console.print(Text(json.dumps(result, indent=2, ensure_ascii=False)), soft_wrap=True)
    else:
        for info in infos:
            console.print(Text(info["path"], style="bold"), soft_wrap=True)
            for label, value in describe(info):
                console.print(_line(label, value, "red" if label == "cannot run here" else ""), soft_wrap=True)
        if is_pair:
            _print_pair(console, problem, mismatches)
    if problem or mismatches:
        errors.print(Text("error: these two files make no pair"), soft_wrap=True)
    return 1 if failed or problem or mismatches else 0
