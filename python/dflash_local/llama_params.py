"""Turns the arguments of `Llama` into llama.cpp's model and context parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import llama_cpp.llama_cpp as lib

MAX_OVERRIDE_BYTES = 128  # llama_model_kv_override.val_str
ALL_LAYERS = 0x7FFFFFFF

KvOverride = bool | int | float | str


class ModelParams(NamedTuple):
    """llama_model_params and the arrays it points into, to be kept alive beside it."""

    params: Any
    tensor_split: Any | None
    kv_overrides: Any | None


def build_model_params(
    *,
    n_gpu_layers: int,
    split_mode: int,
    main_gpu: int,
    tensor_split: Sequence[float] | None,
    vocab_only: bool,
    use_mmap: bool,
    use_mlock: bool,
    kv_overrides: Mapping[str, KvOverride] | None,
) -> ModelParams:
    """llama_model_params; `n_gpu_layers` -1: all. Raises ValueError on arguments that llama.cpp cannot hold."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = ALL_LAYERS if n_gpu_layers == -1 else n_gpu_layers
    params.split_mode = split_mode
    params.main_gpu = main_gpu
    params.vocab_only = vocab_only
    params.load_mode = {
        (True, True): lib.LLAMA_LOAD_MODE_MMAP_MLOCK,
        (True, False): lib.LLAMA_LOAD_MODE_MMAP,
        (False, True): lib.LLAMA_LOAD_MODE_MLOCK,
        (False, False): lib.LLAMA_LOAD_MODE_NONE,
    }[bool(use_mmap), bool(use_mlock)]
    split = None if tensor_split is None else _tensor_split(tensor_split)
    if split is not None:
        params.tensor_split = split
    overrides = None if kv_overrides is None else _kv_overrides(kv_overrides)
    if overrides is not None:
        params.kv_overrides = overrides
    return ModelParams(params, split, overrides)


def _tensor_split(shares: Sequence[float]) -> Any:
    limit = int(lib.LLAMA_MAX_DEVICES)
    if len(shares) > limit:
        raise ValueError(f"tensor_split names {len(shares)} devices, llama.cpp takes at most {limit}")
    return (ctypes.c_float * limit)(*shares)


def _kv_overrides(overrides: Mapping[str, KvOverride]) -> Any:
    # One element more: the one with an empty key ends the array.
    array = (lib.llama_model_kv_override * (len(overrides) + 1))()
    for entry, (key, value) in zip(array, overrides.items(), strict=False):
        name = key.encode("utf-8")
        if len(name) >= MAX_OVERRIDE_BYTES:
            raise ValueError(f"kv_overrides: key of {len(name)} bytes, at most {MAX_OVERRIDE_BYTES - 1} fit")
        entry.key = name
        _set_override(entry, key, value)
    return array


def _set_override(entry: Any, key: str, value: object) -> None:
    if isinstance(value, bool):
        entry.tag, entry.value.val_bool = lib.LLAMA_KV_OVERRIDE_TYPE_BOOL, value
    elif isinstance(value, int):
        entry.tag, entry.value.val_i64 = lib.LLAMA_KV_OVERRIDE_TYPE_INT, value
    elif isinstance(value, float):
        entry.tag, entry.value.val_f64 = lib.LLAMA_KV_OVERRIDE_TYPE_FLOAT, value
    elif isinstance(value, str):
        text = value.encode("utf-8")
        if len(text) >= MAX_OVERRIDE_BYTES:
            raise ValueError(f"kv_overrides[{key!r}]: {len(text)} bytes, at most {MAX_OVERRIDE_BYTES - 1} fit")
        entry.tag = lib.LLAMA_KV_OVERRIDE_TYPE_STR
        # ctypes copies an assigned char array into a temporary, so write through the address.
        ctypes.memmove(ctypes.addressof(entry.value), text.ljust(MAX_OVERRIDE_BYTES, b"\0"), MAX_OVERRIDE_BYTES)
    else:
        raise ValueError(f"kv_overrides[{key!r}]: a {type(value).__name__}, expected bool, int, float or str")


def build_context_params(
    *,
    n_ctx: int,
    n_batch: int,
    n_ubatch: int,
    rope_scaling_type: int | None,
    pooling_type: int,
    attention_type: int,
    rope_freq_base: float,
    rope_freq_scale: float,
    yarn_ext_factor: float,
    yarn_attn_factor: float,
    yarn_beta_fast: float,
    yarn_beta_slow: float,
    yarn_orig_ctx: int,
    embedding: bool,
    offload_kqv: bool,
    op_offload: bool | None,
    swa_full: bool | None,
    no_perf: bool,
    type_k: int | None,
    type_v: int | None,
) -> Any:
    """llama_context_params without threads and attention mode, which are measured once the model is known."""
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = min(n_batch, n_ubatch)
    params.rope_scaling_type = (
        lib.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED if rope_scaling_type is None else rope_scaling_type
    )
    params.pooling_type = pooling_type
    params.attention_type = attention_type
    params.rope_freq_base = rope_freq_base
    params.rope_freq_scale = rope_freq_scale
    params.yarn_ext_factor = yarn_ext_factor
    params.yarn_attn_factor = yarn_attn_factor
    params.yarn_beta_fast = yarn_beta_fast
    params.yarn_beta_slow = yarn_beta_slow
    params.yarn_orig_ctx = yarn_orig_ctx
    params.embeddings = embedding
    params.offload_kqv = offload_kqv
    params.no_perf = no_perf
    for name, value in (("op_offload", op_offload), ("swa_full", swa_full), ("type_k", type_k), ("type_v", type_v)):
        if value is not None:
            setattr(params, name, value)
    return params
