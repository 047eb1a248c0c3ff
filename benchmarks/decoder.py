"""A bare llama.cpp context, apart from the project's engine: what that is checked against."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt
from common import Model

Floats = npt.NDArray[np.float32]


class Decoder:
    """One sequence of a target, decoded row by row; with `tap_inputs` it also reads the inputs of those layers."""

    def __init__(self, model: Model, params: llama_cpp.llama_context_params, tap_inputs: Sequence[int] = ()) -> None:
        self.model = model
        self.tap_inputs = list(tap_inputs)
        self.n = 0
        self._n_batch = int(params.n_batch)
        self.ctx = llama_cpp.llama_init_from_model(model.handle, params)
        if not self.ctx:
            raise MemoryError("llama.cpp cannot make the context")
        self._batch = llama_cpp.llama_batch_init(self._n_batch, 0, 1)
        if self.tap_inputs:
            # Declared in llama-ext.h with C++ linkage, hence the mangled names.
            lib = llama_cpp.llama_cpp._lib
            switch = lib["_Z30llama_set_embeddings_layer_inpP13llama_contextjb"]
            switch.argtypes, switch.restype = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool], None
            self._read = lib["_Z30llama_get_embeddings_layer_inpP13llama_contextj"]
            self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)
            for layer in self.tap_inputs:
                switch(self.ctx, layer, True)

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *exc: object) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.ctx)

    def clear(self) -> None:
        """Forgets everything."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.ctx), True)
        self.n = 0

    def rewind(self, n: int) -> None:
        """Keeps the first n positions."""
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.ctx), 0, n, -1)
        self.n = n

    def decode(self, tokens: Sequence[int], keep: int | None = None, all_logits: bool = True) -> Floats:
        """One batch after the last position, of which the first `keep` rows stay (all of them by default).

        Logits are there until the next call, of every row or of the last one. Returns taps of the rows that stay,
        [keep, n_taps * n_embd].
        """
        batch, n = self._batch, len(tokens)
        batch.n_tokens = n
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.logits[i] = token, self.n + i, int(all_logits or i + 1 == n)
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if llama_cpp.llama_decode(self.ctx, batch) != 0:
            raise RuntimeError(f"llama_decode failed on {n} rows at position {self.n}")
        llama_cpp.llama_synchronize(self.ctx)
        keep = n if keep is None else keep
        taps = [np.ctypeslib.as_array(self._read(self.ctx, i), (n, self.model.n_embd))[:keep] for i in self.tap_inputs]
        self.n += n
        if keep < n:
            self.rewind(self.n - n + keep)
        return np.concatenate(taps, axis=1) if taps else np.zeros((keep, 0), np.float32)

    def prompt(self, tokens: Sequence[int]) -> Floats:
        """A prompt from an empty context, in chunks of n_batch as plain decoding takes it, logits of the last row."""
        self.clear()
        chunks = [tokens[i : i + self._n_batch] for i in range(0, len(tokens), self._n_batch)]
        return np.concatenate([self.decode(chunk, all_logits=False) for chunk in chunks])

    def logits(self, row: int = -1) -> Floats:
        """A copy of the logits of a row of the last batch."""
        pointer = llama_cpp.llama_get_logits_ith(self.ctx, row)
        return np.ctypeslib.as_array(pointer, (self.model.n_vocab,)).copy()

    def sample(self, chain: int, row: int = -1) -> int:
        """Draws and accepts one token from a row of the last batch."""
        pointer = ctypes.cast(chain, llama_cpp.llama_sampler_p_ctypes)
        return int(llama_cpp.llama_sampler_sample(pointer, self.ctx, row))
