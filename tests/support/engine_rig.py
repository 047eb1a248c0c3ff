"""A bare engine on the real model, without the layers above it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any

import llama_cpp
from llama_cpp import _internals

from dflash_local import _native

CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def address(pointer: Any) -> int:
    value = ctypes.cast(pointer, ctypes.c_void_p).value
    assert value is not None
    return value


class Rig:
    """Target, drafter and engine; `close` frees them in that order reversed."""

    def __init__(
        self,
        target: str,
        drafter: str | None,
        *,
        tap_mode: str = "auto",
        n_ctx: int = 512,
        n_gpu_layers: int = 0,
        draft_device: str = "",
        **params: Any,
    ) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = n_gpu_layers
        self.model = _internals.LlamaModel(path_model=target, params=model_params, verbose=False)
        self.params = llama_cpp.llama_context_default_params()
        self.params.n_ctx = n_ctx
        self.params.n_batch = self.params.n_ubatch = 128
        # One thread: the same text, and a busy machine does not stall.
        self.params.n_threads = self.params.n_threads_batch = 1
        self.params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.params.kv_unified = True
        for name, value in params.items():
            setattr(self.params, name, value)
        model = address(self.model.model)
        self.drafter = (
            None if drafter is None else _native.Drafter(drafter, target, model, n_threads=1, device=draft_device)
        )
        self.engine = _native.Engine(model, ctypes.addressof(self.params), self.drafter, tap_mode=tap_mode)

    def close(self) -> None:
        self.engine.close()
        self.model.close()

    def prompt(self, text: str) -> list[int]:
        return list(self.model.tokenize(CHATML.format(text).encode(), False, True))

    def text(self, tokens: list[int]) -> str:
        return json.dumps(self.model.detokenize(tokens).decode("utf-8", "replace"))

    def run(
        self,
        sampler: _internals.LlamaSampler,
        n: int,
        draft_rows: int = 0,
        on_sample: Callable[[], None] | None = None,
        draft_leaves: int = 1,
    ) -> list[int]:
        """Rounds until n tokens are out or the text ends."""
        out: list[int] = []
        while len(out) < n:
            emitted = self.engine.round(
                address(sampler.sampler),
                draft_rows=draft_rows,
                draft_leaves=draft_leaves,
                max_emit=n - len(out),
                on_sample=on_sample,
            )
            out += emitted
            if llama_cpp.llama_vocab_is_eog(self.model.vocab, out[-1]):
                break
        return out


def greedy() -> _internals.LlamaSampler:
    sampler = _internals.LlamaSampler()
    sampler.add_greedy()
    return sampler


def sampled(seed: int, temperature: float = 0.8) -> _internals.LlamaSampler:
    sampler = _internals.LlamaSampler()
    sampler.add_penalties(49152, 64, 1.1, 0.0, 0.0)
    sampler.add_top_k(40)
    sampler.add_top_p(0.95)
    sampler.add_temp(temperature)
    sampler.add_dist(seed)
    return sampler
