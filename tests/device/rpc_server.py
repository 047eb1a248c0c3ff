"""Serves this machine's CPU as a device of ggml's RPC backend, on loopback alone: python rpc_server.py PORT"""

import ctypes
import signal
import sys

from llama_cpp._ggml import libggml

LIFETIME_S = 3600  # the kernel ends a server that was left behind
CPU = 0  # GGML_BACKEND_DEVICE_TYPE_CPU


def main(port: int) -> int:
    libggml.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    libggml.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    libggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    registry = libggml.ggml_backend_reg_by_name(b"RPC")
    if not registry:
        print("this llama-cpp-python has no RPC backend: build it with CMAKE_ARGS=-DGGML_RPC=ON", file=sys.stderr)
        return 1
    address = libggml.ggml_backend_reg_get_proc_address(ctypes.c_void_p(registry), b"ggml_backend_rpc_start_server")
    serve = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )(address)
    devices = (ctypes.c_void_p * 1)(libggml.ggml_backend_dev_by_type(CPU))
    signal.alarm(LIFETIME_S)
    serve(b"127.0.0.1:%d" % port, None, 1, 1, devices)
    return 1  # it only comes back when it could not start


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
