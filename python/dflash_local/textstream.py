"""Bytes of tokens to text as it comes: split characters held back, stop strings found across tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

MAX_STOPS = 64
MAX_STOP_CHARS = 1024


def check_stops(stops: Sequence[str]) -> tuple[str, ...]:
    """The stop strings as a tuple. Raises ValueError for an empty, overlong or superfluous one."""
    if len(stops) > MAX_STOPS:
        raise ValueError(f"{len(stops)} stop strings, at most {MAX_STOPS} are taken")
    for stop in stops:
        if not stop:
            raise ValueError("a stop string is empty")
        if len(stop) > MAX_STOP_CHARS:
            raise ValueError(f"a stop string has {len(stop)} characters, at most {MAX_STOP_CHARS} are taken")
    return tuple(stops)


class TextStream:
    """Feeds on tokens' bytes, gives the text that may be shown; ends at the first stop string."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = check_stops(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """Text that became certain; after a stop string `stopped` is true and what follows it is dropped."""
        return self._take(self._decoder.decode(piece))

    def finish(self) -> str:
        """The rest: what was held back as a possible stop string, a broken character as U+FFFD."""
        text = self._take(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        hold = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`, all of it excluded."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
