"""Hidden states of a target by llama.cpp's eval callback through ctypes, independent of the native module."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import _internals

_BASE = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so"))))
_BASE.ggml_get_name.restype = ctypes.c_char_p
_BASE.ggml_get_name.argtypes = [ctypes.c_void_p]
_BASE.ggml_nbytes.restype = ctypes.c_size_t
_BASE.ggml_nbytes.argtypes = [ctypes.c_void_p]
_BASE.ggml_backend_tensor_get.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]


def layer_outputs(
    model: _internals.LlamaModel, params: Any, tokens: list[int], layers: list[int]
) -> npt.NDArray[np.float32]:
    """Decodes `tokens` once; outputs of the given layers, [n_tokens, n_layers * n_embd]."""
    wanted = {f"l_out-{layer}": layer for layer in layers}
    found: dict[int, npt.NDArray[np.float32]] = {}

    def on_node(tensor: int, ask: bool, _data: Any) -> bool:
        name = _BASE.ggml_get_name(tensor).decode()
        if ask:
            return name in wanted
        if name in wanted:
            data = np.empty(_BASE.ggml_nbytes(tensor) // 4, dtype=np.float32)
            _BASE.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, data.nbytes)
            found[wanted[name]] = data.reshape(len(tokens), -1)
        return True

    callback = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)(on_node)
    params.cb_eval = ctypes.cast(callback, type(params.cb_eval))
    params.cb_eval_user_data = None
    context = _internals.LlamaContext(model=model, params=params, verbose=False)
    batch = _internals.LlamaBatch(n_tokens=len(tokens), embd=0, n_seq_max=1, verbose=False)
    batch.set_batch(tokens, n_past=0, logits_all=True)
    context.decode(batch)
    batch.close()
    context.close()
    return np.concatenate([found[layer] for layer in layers], axis=1)
