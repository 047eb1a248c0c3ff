"""llama.cpp's own DFlash graph through ctypes: the oracle that our draft graph is compared with."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as ll


def load_model(path: Path) -> int:
    """Address of a llama_model on the CPU."""
    ll.llama_backend_init()
    params = ll.llama_model_default_params()
    params.n_gpu_layers = 0
    model = ll.llama_model_load_from_file(str(path).encode(), params)
    assert model, f"llama.cpp cannot load {path}"
    return int(model)


class LlamaDrafter:
    """A drafter loaded as a llama.cpp model whose context borrows from the target's."""

    def __init__(self, path: Path, target_ctx: int, *, block_size: int, causal: bool, n_ctx: int = 1024) -> None:
        self.block_size = block_size
        self.model = load_model(path)
        self.n_vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))
        self.mask = ll.llama_vocab_mask(ll.llama_model_get_vocab(self.model))
        params = ll.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = n_ctx
        params.n_threads = params.n_threads_batch = 2
        params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = 1  # F16
        params.swa_full = True
        params.ctx_other = target_ctx
        self.params = params
        self.causal = causal
        self.ctx = 0

    def use_f32_context(self) -> None:
        self.params.type_k = self.params.type_v = 0

    def logits(self, taps: npt.NDArray[np.float32], anchor: int, pos0: int = 0) -> npt.NDArray[np.float32]:
        """Injects taps [n, feature] at pos0 into an empty context and drafts: logits [block_size - 1, n_vocab]."""
        if not self.ctx:
            self.ctx = int(ll.llama_init_from_model(self.model, self.params))
            assert self.ctx
            ll.llama_set_causal_attn(self.ctx, self.causal)
        ll.llama_memory_clear(ll.llama_get_memory(self.ctx), True)
        n = taps.shape[0]
        if n:
            rows = np.ascontiguousarray(taps, dtype=np.float32)
            embd = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            self._decode(n, pos0, embd=embd)
        tokens = (ll.llama_token * self.block_size)(anchor, *[self.mask] * (self.block_size - 1))
        self._decode(self.block_size, pos0 + n, token=tokens)
        pointer = ll.llama_get_logits(self.ctx)
        out = np.ctypeslib.as_array(pointer, (self.block_size, self.n_vocab))
        return out[1:].copy()

    def _decode(self, n: int, pos0: int, *, token: object = None, embd: object = None) -> None:
        positions = (ll.llama_pos * n)(*range(pos0, pos0 + n))
        one_seq = (ll.llama_seq_id * 1)(0)
        seq_ids = (ctypes.POINTER(ll.llama_seq_id) * n)(*[one_seq] * n)
        counts = (ctypes.c_int32 * n)(*[1] * n)
        outputs = (ctypes.c_int8 * n)(*[int(token is not None)] * n)
        batch = ll.llama_batch(n, token, embd, positions, counts, seq_ids, outputs)
        status = ll.llama_decode(self.ctx, batch)
        assert status == 0, f"llama_decode returned {status}"

    def close(self) -> None:
        if self.ctx:
            ll.llama_free(self.ctx)
        ll.llama_model_free(self.model)
