"""ggml's device registry through ctypes: adding an RPC server's devices, listing what is there."""

from __future__ import annotations

import ctypes

import llama_cpp
from llama_cpp.llama_cpp import _lib as _LIB  # not _ggml: that can be another copy, with a registry of its own

_LIB.ggml_backend_reg_by_name.restype = ctypes.c_void_p
_LIB.ggml_backend_reg_by_name.argtypes = [ctypes.c_char_p]
_LIB.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
_LIB.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_LIB.ggml_backend_register.restype = None
_LIB.ggml_backend_register.argtypes = [ctypes.c_void_p]
_LIB.ggml_backend_dev_count.restype = ctypes.c_size_t
_LIB.ggml_backend_dev_get.restype = ctypes.c_void_p
_LIB.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
_LIB.ggml_backend_dev_name.restype = ctypes.c_char_p
_LIB.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]


def device_names() -> list[str]:
    """Names of all devices, in the order of the registry."""
    llama_cpp.llama_supports_gpu_offload()  # loads the backends
    devices = (_LIB.ggml_backend_dev_get(i) for i in range(_LIB.ggml_backend_dev_count()))
    return [_LIB.ggml_backend_dev_name(device).decode() for device in devices]


def add_rpc_server(endpoint: str) -> str:
    """Registers the devices of the server at host:port for the whole process; name of its first one."""
    before = set(device_names())
    registry = _LIB.ggml_backend_reg_by_name(b"RPC")
    assert registry, "this llama-cpp-python has no RPC backend: build it with CMAKE_ARGS=-DGGML_RPC=ON"
    address = _LIB.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_rpc_add_server")
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    server = add_server(endpoint.encode())  # aborts where nobody listens
    assert server, f"no devices at {endpoint}"
    _LIB.ggml_backend_register(server)
    return next(name for name in device_names() if name not in before)
