"""Samplers for the engine: processors whose exceptions surface, grammars checked before llama.cpp sees them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import numpy.typing as npt

from dflash_local.grammar import compile_grammar

Tokens = npt.NDArray[np.intc]
Scores = npt.NDArray[np.single]
LogitsProcessor = Callable[[Tokens, Scores], Scores]


class ProcessorGuard:
    """A user's logits processors as one.

    They run inside a ctypes callback, which would print an exception and go on: the guard keeps it, leaves the scores
    alone from then on, and `check` raises it once the native code has returned."""

    def __init__(self, processors: Iterable[LogitsProcessor]) -> None:
        self._processors = list(processors)
        self._error: BaseException | None = None

    def __call__(self, input_ids: Tokens, scores: Scores) -> Scores:
        """Scores [n_vocab] after all processors."""
        if self._error is not None:
            return scores
        try:
            result = scores
            for processor in self._processors:
                result = _checked(processor(input_ids, result), scores.shape, processor)
            return result
        except BaseException as error:  # KeyboardInterrupt too: it belongs to the caller of generate
            self._error = error
            return scores

    def check(self) -> None:
        """Raises what a processor raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _checked(scores: object, shape: tuple[int, ...], processor: LogitsProcessor) -> Scores:
    result = np.asarray(scores, dtype=np.single)
    if result.shape != shape:
        name = getattr(processor, "__name__", type(processor).__name__)
        raise ValueError(f"logits processor {name} returned scores of shape {result.shape}, expected {shape}")
    return result


def check_grammar(vocab: Any, grammar: Any) -> None:
    """Raises GrammarError where llama.cpp cannot compile the grammar; it would add a null sampler to the chain."""
    lib.llama_sampler_free(compile_grammar(vocab, grammar._grammar, grammar._root))


def sampler_address(sampler: Any) -> int:
    """Address of the llama_sampler inside a LlamaSampler."""
    return int(ctypes.cast(sampler.sampler, ctypes.c_void_p).value or 0)


def with_bias(processors: Iterable[LogitsProcessor], logit_bias: dict[Any, float]) -> list[LogitsProcessor]:
    """`processors` and the bias in a new list; the parent loses both when it is given both."""
    bias = {int(token): float(value) for token, value in logit_bias.items()}

    def add_bias(_input_ids: Tokens, scores: Scores) -> Scores:
        biased = np.copy(scores)
        for token, value in bias.items():
            biased[token] += value
        return biased

    return [*processors, add_bias]
