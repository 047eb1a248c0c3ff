"""Model and context parameters hold what Llama was given."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp.llama_cpp as lib
import pytest

from dflash_local.llama_params import build_context_params, build_model_params

MODEL: dict[str, Any] = {
    "n_gpu_layers": 0,
    "split_mode": lib.LLAMA_SPLIT_MODE_LAYER,
    "main_gpu": 0,
    "tensor_split": None,
    "vocab_only": False,
    "use_mmap": True,
    "use_mlock": False,
    "kv_overrides": None,
}
CONTEXT: dict[str, Any] = {
    "n_ctx": 100,
    "n_batch": 64,
    "n_ubatch": 512,
    "rope_scaling_type": None,
    "pooling_type": lib.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "attention_type": lib.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": 1.0,
    "yarn_beta_fast": 32.0,
    "yarn_beta_slow": 1.0,
    "yarn_orig_ctx": 0,
    "embedding": False,
    "offload_kqv": True,
    "op_offload": None,
    "swa_full": None,
    "no_perf": False,
    "type_k": None,
    "type_v": None,
}


def test_all_layers() -> None:
    assert build_model_params(**MODEL | {"n_gpu_layers": -1}).params.n_gpu_layers == 2**31 - 1


@pytest.mark.parametrize(
    ("mmap", "mlock", "mode"),
    [
        (True, True, lib.LLAMA_LOAD_MODE_MMAP_MLOCK),
        (True, False, lib.LLAMA_LOAD_MODE_MMAP),
        (False, True, lib.LLAMA_LOAD_MODE_MLOCK),
        (False, False, lib.LLAMA_LOAD_MODE_NONE),
    ],
)
def test_load_mode(mmap: bool, mlock: bool, mode: int) -> None:
    assert build_model_params(**MODEL | {"use_mmap": mmap, "use_mlock": mlock}).params.load_mode == mode


def test_tensor_split() -> None:
    built = build_model_params(**MODEL | {"tensor_split": [0.25, 0.75]})
    assert list(built.params.tensor_split[:2]) == [0.25, 0.75]


def test_overrides_of_every_type() -> None:
    built = build_model_params(**MODEL | {"kv_overrides": {"b": True, "i": -5, "f": 0.5, "s": "text"}})
    array = built.kv_overrides
    assert array is not None
    assert [entry.key for entry in array] == [b"b", b"i", b"f", b"s", b""]
    assert array[0].value.val_bool is True
    assert array[1].value.val_i64 == -5
    assert array[2].value.val_f64 == 0.5
    assert array[3].value.val_str == b"text"
    assert ctypes.addressof(built.params.kv_overrides.contents) == ctypes.addressof(array)


def test_a_physical_batch_is_no_larger_than_the_logical() -> None:
    params = build_context_params(**CONTEXT)
    assert (params.n_ctx, params.n_batch, params.n_ubatch) == (100, 64, 64)


def test_what_is_not_given_stays_llama_cpps_default() -> None:
    defaults = lib.llama_context_default_params()
    params = build_context_params(**CONTEXT)
    assert (params.type_k, params.type_v, params.op_offload) == (defaults.type_k, defaults.type_v, defaults.op_offload)
    given = build_context_params(**CONTEXT | {"type_k": 8, "swa_full": True, "op_offload": False})
    assert (given.type_k, given.swa_full, given.op_offload) == (8, True, False)
