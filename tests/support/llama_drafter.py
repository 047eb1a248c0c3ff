"""llama.cpp's own DFlash graph through ctypes: the oracle that our draft graph is compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def loaded_target(path: Path, n_ctx: int = 64) -> Iterator[tuple[int, int]]:
    """Addresses of a target's llama_model and of a context on it."""
    model = load_model(path)
    params = ll.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_threads = params.n_threads_batch = 1
    ctx = int(ll.llama_init_from_model(model, params))
    try:
        yield model, ctx
    finally:
        ll.llama_free(ctx)
        ll.llama_model_free(model)


def tokenize(model: int, text: bytes) -> list[int]:
    buffer = (ll.llama_token * len(text))()
    n = ll.llama_tokenize(ll.llama_model_get_vocab(model), text, len(text), buffer, len(buffer), False, False)
    return list(buffer[:n])


def tapped_prompt(ctx: int, tokens: list[int], layers: list[int], n_embd: int) -> npt.NDArray[np.float32]:
    """Decodes a prompt with llama.cpp's own taps on the inputs of `layers`: [n, len(layers) * n_embd]."""
    library = ctypes.CDLL(ll._lib._name)  # C++ names, which llama_cpp does not bind
    switch = library._Z30llama_set_embeddings_layer_inpP13llama_contextjb
    switch.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool]
    read = library._Z30llama_get_embeddings_layer_inpP13llama_contextj
    read.argtypes, read.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)
    for layer in layers:
        switch(ctx, layer, True)
    ids = (ll.llama_token * len(tokens))(*tokens)  # the batch borrows it
    assert ll.llama_decode(ctx, ll.llama_batch_get_one(ids, len(tokens))) == 0
    taps = [np.ctypeslib.as_array(read(ctx, layer), (len(tokens), n_embd)).copy() for layer in layers]
    return np.concatenate(taps, axis=1)


class LlamaDrafter:
    """A drafter loaded as a llama.cpp model whose context borrows embeddings and head from the target's."""

    def __init__(
        self, path: Path, target_ctx: int, *, block_size: int, causal: bool, f32_context: bool = False
    ) -> None:
        self.block_size = block_size
        self.model = load_model(path)
        vocab = ll.llama_model_get_vocab(self.model)
        self.n_vocab = ll.llama_vocab_n_tokens(vocab)
        self.mask = ll.llama_vocab_mask(vocab)
        params = ll.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 1024
        params.n_threads = params.n_threads_batch = 1
        params.flash_attn_type = ll.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = 0 if f32_context else 1  # ggml's numbers of F32 and F16
        params.swa_full = True
        params.ctx_other = target_ctx
        self.ctx = int(ll.llama_init_from_model(self.model, params))
        assert self.ctx
        ll.llama_set_causal_attn(self.ctx, causal)

    def logits(self, taps: npt.NDArray[np.float32], anchor: int, pos0: int = 0) -> npt.NDArray[np.float32]:
        """Injects taps [n, feature] at pos0 into an empty context and drafts: logits [block_size - 1, n_vocab]."""
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
        ll.llama_free(self.ctx)
        ll.llama_model_free(self.model)
