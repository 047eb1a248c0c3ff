"""How often a copied token is right, by the length of the match before it.

    python benchmarks/copies.py [--prompts F] [--limit N] [--max-tokens N] [--edits 40] [--json OUT]

Answers: the target's own greedy text on each prompt. Edits: `--edits` changes of one file from the history of this
repository, the old file as the prompt and the new one as the text, without a model. A copy is proposed wherever the
text stands after the one before, as rounds would. `first`: how often its first token is right; `further`: how often
each later one is, given those before it.
"""

from __future__ import annotations

import math
import subprocess
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import common

BUCKETS = (1, 2, 3, 4, 5, 7, 11, 15, 23, 31, 64)  # longest match of each line
LENGTH = 16  # tokens proposed at once
CHANGED_LINES = (6, 60)
FILE_CHARS = (1500, 7000)
SUFFIXES = (".py", ".cpp", ".h", ".md")
ASK = "<|im_start|>user\nChange this file and return all of it:\n\n```\n{}```<|im_end|>\n<|im_start|>assistant\n"


class Text(NamedTuple):
    """A prompt and what followed it."""

    prompt: list[int]
    answer: list[int]


class Proposed(NamedTuple):
    """One copy: the match before it, tokens that could be judged, and how many of them were right."""

    match: int
    judged: int
    right: int


def follow(text: Text, length: int = LENGTH) -> Iterator[Proposed]:
    """The copies proposed on the way through a text, a round each."""
    from dflash_local import _native

    tokens, at, index = [*text.prompt, *text.answer], len(text.prompt), _native.CopyIndex()
    while at < len(tokens):
        index.sync(tokens[:at])
        copy, match, _, _ = index.propose(length)
        judged, right = min(len(copy), len(tokens) - at), 0
        while right < judged and copy[right] == tokens[at + right]:
            right += 1
        if judged:
            yield Proposed(match, judged, right)
        at += right + 1


def bucket(match: int) -> str:
    """Name of the line that a match counts in."""
    i = min(bisect_left(BUCKETS, match), len(BUCKETS) - 1)
    low = BUCKETS[i - 1] + 1 if i else 1
    if i == len(BUCKETS) - 1:
        return f"{low} and more"
    return str(low) if low == BUCKETS[i] else f"{low} to {BUCKETS[i]}"


def rates(copies: Iterable[Proposed]) -> dict[str, dict[str, float]]:
    """By match: how many copies, and how often the first and each further token is right."""
    groups: dict[str, list[Proposed]] = {bucket(match): [] for match in BUCKETS}
    for copy in copies:
        groups[bucket(copy.match)].append(copy)
    out = {}
    for name, group in groups.items():
        begun = [copy for copy in group if copy.right > 0]
        tried = sum(min(copy.right + 1, copy.judged) - 1 for copy in begun)
        out[name] = {
            "copies": len(group),
            "first": len(begun) / len(group) if group else math.nan,
            "further": sum(copy.right - 1 for copy in begun) / tried if tried else math.nan,
        }
    return out


def answers(args: Any, model: common.Model, prompts: Sequence[common.Prompt]) -> list[Text]:
    """The target's plain greedy answers."""
    params = model.context_params(n_ctx=args.n_ctx, threads=args.threads, flash=args.flash)
    texts = []
    with common.open_engine(model, params) as engine, common.sampler() as chain:
        for i, prompt in enumerate(prompts):
            common.progress(i, len(prompts), prompt.id)
            ids = model.chat_ids(prompt)
            texts.append(Text(ids, common.run_engine(engine, model, ids, chain, prompt.max_tokens, 0)))
    common.progress(len(prompts), len(prompts), "answered")
    return texts


def git(*args: str) -> str:
    """Output of a git command in this repository, "" where it fails."""
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), *args], capture_output=True, encoding="utf-8", errors="replace"
    )
    return done.stdout if done.returncode == 0 else ""


def edits(model: common.Model, n: int) -> Iterator[Text]:
    """The last n changes of one file that are neither trivial nor a rewrite."""
    for commit in git("log", "--no-merges", "--format=%H").split() if n else ():
        changes = git("diff-tree", "-r", "--no-commit-id", "--diff-filter=M", "--numstat", commit)
        for added, removed, path in (line.split("\t") for line in changes.splitlines()):
            if not path.endswith(SUFFIXES) or not CHANGED_LINES[0] <= int(added) + int(removed) <= CHANGED_LINES[1]:
                continue
            old, new = (git("show", f"{name}:{path}") for name in (f"{commit}^", commit))
            if FILE_CHARS[0] < len(old) < FILE_CHARS[1]:
                yield Text(model.tokenize(ASK.format(old)), model.tokenize(f"```\n{new}```", special=False))
                n -= 1
                if n == 0:
                    return


def show(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    """Prints the table: first / further, and the number of copies."""
    columns = list(found)
    lines = []
    for name in next(iter(found.values())):
        cells = [found[column][name] for column in columns]
        lines.append(
            (name, *(f"{common.cell(c['first'])} / {common.cell(c['further'])} ({c['copies']})" for c in cells))
        )
    common.table(
        "First copied token right / each further one (copies), by tokens of the match", ("match", *columns), lines
    )


def main() -> None:
    """Measures and prints."""
    options = common.parser(__doc__)
    options.add_argument("--edits", type=int, default=40, help="changes from this repository's history, 0: none")
    args, prompts = common.parse(options)
    with common.Model(args.target) as model:
        texts = {"answers": answers(args, model, prompts), "edits": list(edits(model, args.edits))}
    found = {name: rates(copy for text in group for copy in follow(text)) for name, group in texts.items() if group}
    counts = {name: len(group) for name, group in texts.items()}
    print(f"\n{counts['answers']} answers, {counts['edits']} edits")
    show(found)
    common.write_json(args.json, {"settings": common.settings(args), "texts": counts, "rates": found})


if __name__ == "__main__":
    main()
