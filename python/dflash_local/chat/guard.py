"""Keeps user text from becoming special tokens: cuts it where the tokenizer would see one.

A cut is a sentinel, a Unicode noncharacter that real text must not hold: it is put inside every special token's text in
the messages before the template is rendered; the rendered text is split at the sentinels and tokenized piece by piece,
special tokens parsed. Text without special tokens stays one piece, so it tokenizes exactly as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CUT = "\ufdd0"  # the text is cut here
LITERAL = "\ufdd1"  # a one-character special token between two of these is plain text
_DROP = {ord(CUT): None, ord(LITERAL): None}

Tokenize = Callable[[str, bool], list[int]]
"""(text, parse special tokens) -> ids."""


def guard_text(text: str, special_texts: Sequence[str]) -> str:
    """`text` without sentinels of its own, with one inside each occurrence of a special token's text.

    Where the end of `text` begins a special token's text it is cut too, since the template may complete it."""
    text = text.translate(_DROP)
    cuts: set[int] = set()
    literals: set[int] = set()
    for special in special_texts:
        at = text.find(special)
        while at >= 0:
            if len(special) == 1:
                literals.add(at)
            else:
                cuts.add(at + 1)
            at = text.find(special, at + 1)
        if any(text.endswith(special[:length]) for length in range(1, len(special))):
            cuts.add(len(text))
    if not cuts and not literals:
        return text
    out: list[str] = []
    for at, char in enumerate(text):
        if at in cuts:
            out.append(CUT)
        out.append(f"{LITERAL}{char}{LITERAL}" if at in literals else char)
    if len(text) in cuts:
        out.append(CUT)
    return "".join(out)


def guard_messages(messages: Sequence[Any], special_texts: Sequence[str]) -> list[Any]:
    """A copy of chat messages with every string in them guarded, nested ones included; keys stay as they are."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return guard_text(value, special_texts)
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [walk(item) for item in value]
        return value

    return [walk(message) for message in messages]


def tokenize_guarded(text: str, tokenize: Tokenize) -> list[int]:
    """Ids of a rendered, guarded text. `tokenize(text, parse_special)` must add no BOS of its own."""
    ids: list[int] = []
    for number, part in enumerate(text.split(LITERAL)):
        if number % 2:
            ids += tokenize(part, False)
            continue
        for piece in part.split(CUT):
            if piece:
                ids += tokenize(piece, True)
    return ids


def unguard(text: str) -> str:
    """A rendered text without its sentinels."""
    return text.translate(_DROP)
