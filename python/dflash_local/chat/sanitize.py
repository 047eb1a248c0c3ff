"""Makes model output safe to print: nothing in it may drive the terminal or hide text."""

from __future__ import annotations

# Embeddings, overrides, isolates and marks of the bidirectional algorithm, and the separators that act as line ends.
_VISIBLE = [0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
_CONTROLS |= {code: f"<U+{code:04X}>" for code in (*range(0x80, 0xA0), *_VISIBLE)}
_LINE = dict(_CONTROLS)
_TEXT = {code: shown for code, shown in _CONTROLS.items() if code not in (0x09, 0x0A)}


class Sanitizer:
    """Shows control characters as symbols; newlines and tabs stay, CR LF becomes a newline.

    Each character stands for itself, so an escape sequence split over pieces is neutralised like a whole one."""

    def __init__(self) -> None:
        self._held_cr = False

    def feed(self, text: str) -> str:
        """Text that may be printed now; a CR at the end waits for what follows it."""
        if self._held_cr:
            text = "\r" + text
        self._held_cr = text.endswith("\r")
        if self._held_cr:
            text = text[:-1]
        return text.replace("\r\n", "\n").translate(_TEXT)

    def finish(self) -> str:
        """What still waits."""
        held, self._held_cr = self._held_cr, False
        return _TEXT[0x0D] if held else ""


def clean_line(text: str) -> str:
    """One line for messages: names and errors that quote a file, newlines and tabs shown as symbols too."""
    return text.translate(_LINE)
