"""Arguments of completions that llama-cpp-python would take wrongly or fail on without a word about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MAX_SEED = 2**32 - 1


def _refuse(name: str, value: object, expected: str) -> None:
    raise ValueError(f"{name}={value!r}: expected {expected}")


def check_messages(messages: Any) -> None:
    """Raises ValueError unless `messages` is a list of objects with a role."""
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        _refuse("messages", messages, 'a list such as [{"role": "user", "content": "..."}]')
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            _refuse(f"messages[{number}]", message, 'an object such as {"role": "user", "content": "..."}')


def check_numbers(settings: Mapping[str, Any]) -> None:
    """Raises ValueError on a sampling setting that is no finite number."""
    for name, value in settings.items():
        if isinstance(value, bool):
            continue
        if not isinstance(value, int | float) and not hasattr(value, "__float__"):
            _refuse(name, value, "a number")
        if not math.isfinite(value):
            _refuse(name, value, "a finite number")


def check_completion(arguments: Mapping[str, Any]) -> None:
    """Raises ValueError on a stop, seed or max_tokens of a wrong type or range."""
    stop = arguments.get("stop")
    texts = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        _refuse("stop", stop, "a text or a list of texts")
    seed = arguments.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not -1 <= seed <= MAX_SEED):
        _refuse("seed", seed, f"an integer from 0 to {MAX_SEED}, or -1 for a random one")
    most = arguments.get("max_tokens")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int)):
        _refuse("max_tokens", most, "an integer, or None for no limit")
