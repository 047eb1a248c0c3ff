"""Model output cannot drive the terminal."""

import itertools
import unicodedata

import pytest

from dflash_local.chat.sanitize import Sanitizer, clean_line

HOSTILE = [
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZWNobyBoYWNrZWQ=\x1b\\",
    "\x9b2J\x90q\x9c",
    "a\rb\bc\x00d\x7f",
    "\u202etxt.exe\u202c",
    "\u2066a\u2069\u200f\u061c",
    "a\u2028b\u2029c",
]


def shown(pieces: list[str]) -> str:
    sanitizer = Sanitizer()
    return "".join(sanitizer.feed(piece) for piece in pieces) + sanitizer.finish()


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_acts_is_left(text: str) -> None:
    safe = shown([text])
    assert all(char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Zl", "Zp") for char in safe)
    assert clean_line(text + "\n\t").isprintable()


@pytest.mark.parametrize("text", [*HOSTILE, "a\r\nb\r\n", "\r\r\n"])
def test_any_split_shows_the_same(text: str) -> None:
    whole = shown([text])
    assert shown(list(text)) == whole
    for cut in itertools.pairwise(range(len(text) + 1)):
        assert shown([text[: cut[0]], text[cut[0] : cut[1]], text[cut[1] :]]) == whole


@pytest.mark.parametrize("text", ["plain\n\ttext", "日本語 🙂 ümläut", "a\u00a0b"])
def test_ordinary_text_is_untouched(text: str) -> None:
    assert shown([text]) == text


def test_what_is_shown_instead() -> None:
    assert shown(["\x1b[2J"]) == "\u241b[2J"
    assert shown(["\x9b"]) == "<U+009B>"
    assert shown(["a\r\nb\rc\r"]) == "a\nb\u240dc\u240d"
    assert clean_line("two\nlines") == "two\u240alines"
