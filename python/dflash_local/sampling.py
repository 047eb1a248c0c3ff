"""Sampling settings, checked in words, and the llama.cpp sampler chain they make."""

from __future__ import annotations

import ctypes
import math
import secrets
from dataclasses import dataclass, replace

from llama_cpp._internals import LlamaSampler

from dflash_local._native_loader import llama_cpp
from dflash_local.grammar import compile_grammar

MAX_SEED = 2**32 - 2  # 2**32 - 1 means "random" to llama.cpp


def _check(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise ValueError(f"{name} is {value}, expected {expected}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn. Raises ValueError naming the setting at fault.

    temperature 0 is greedy; top_k 0 keeps all; seed None draws one (see `with_seed`); grammar is GBNF text.
    """

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    seed: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        _check(0.0 <= self.temperature <= 100.0, "temperature", self.temperature, "a number from 0 to 100")
        _check(0 <= self.top_k < 2**31, "top_k", self.top_k, "0 (all) or more")
        _check(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number above 0, up to 1")
        _check(0.0 <= self.min_p < 1.0, "min_p", self.min_p, "a number from 0 to below 1")
        _check(0.0 < self.repeat_penalty <= 10.0, "repeat_penalty", self.repeat_penalty, "a number above 0, up to 10")
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            _check(math.isfinite(value) and abs(value) <= 10.0, name, value, "a number from -10 to 10")
        _check(0 <= self.penalty_last_n <= 65536, "penalty_last_n", self.penalty_last_n, "0 to 65536")
        _check(self.seed is None or 0 <= self.seed <= MAX_SEED, "seed", self.seed, f"0 to {MAX_SEED}")

    def with_seed(self) -> SamplingParams:
        """The same settings with a drawn seed in the place of None, so that a run can be repeated."""
        return self if self.seed is not None else replace(self, seed=secrets.randbelow(MAX_SEED + 1))


class Sampler:
    """A llama.cpp sampler chain; close it, or use it as a context manager. `address` is that of a llama_sampler."""

    def __init__(self, params: SamplingParams, vocab_address: int, n_vocab: int) -> None:
        grammar = compile_grammar(vocab_address, params.grammar) if params.grammar is not None else None
        self._chain = chain = LlamaSampler()
        chain.add_penalties(
            n_vocab,
            params.penalty_last_n,
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        if grammar is not None:
            llama_cpp.llama_sampler_chain_add(chain.sampler, grammar)
        if params.temperature == 0.0:
            chain.add_greedy()
            return
        chain.add_top_k(params.top_k)
        chain.add_top_p(params.top_p)
        chain.add_min_p(params.min_p)
        chain.add_temp(params.temperature)
        seed = params.with_seed().seed
        assert seed is not None
        chain.add_dist(seed)

    @property
    def address(self) -> int:
        return ctypes.cast(self._chain.sampler, ctypes.c_void_p).value or 0

    def close(self) -> None:
        self._chain.close()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
