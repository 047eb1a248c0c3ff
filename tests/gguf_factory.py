"""Writes GGUF files for tests by hand: valid ones, and ones broken in a chosen place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}

# ggml types with values per block and bytes per block.
GGML_F32, GGML_F16, GGML_Q8_0, GGML_I64 = 0, 1, 8, 27
_BLOCKS = {GGML_F32: (1, 4), GGML_F16: (1, 2), GGML_Q8_0: (32, 34), GGML_I64: (1, 8)}


def number(kind: int, value: float) -> bytes:
    """A fixed-size value, little endian."""
    return struct.pack("<" + _FORMATS[kind], value)


def text(value: str | bytes) -> bytes:
    """A string with its length before it."""
    data = value.encode() if isinstance(value, str) else value
    return number(U64, len(data)) + data


@dataclass
class Tensor:
    name: bytes
    shape: Sequence[int]  # ggml order: the row first
    kind: int
    data: bytes
    offset: int | None = None  # None: where the data is written
    n_dims: int | None = None  # None: len(shape)


@dataclass
class Gguf:
    """A GGUF file in the making. Counts and version may lie."""

    magic: bytes = b"GGUF"
    version: int = 3
    n_keys: int | None = None
    n_tensors: int | None = None
    alignment: int = 32  # of the data written here, whatever the file says
    keys: dict[bytes, bytes] = field(default_factory=dict)
    extra: bytes = b""  # raw metadata entries after the keys, not counted
    tensors: dict[bytes, Tensor] = field(default_factory=dict)

    def raw(self, key: str | bytes, kind: int, payload: bytes) -> Self:
        """Writes a metadata entry as given; replaces one of the same name."""
        name = key.encode() if isinstance(key, str) else key
        self.keys[name] = text(name) + number(U32, kind) + payload
        return self

    def put(self, key: str | bytes, kind: int, value: float) -> Self:
        return self.raw(key, kind, number(kind, value))

    def u32(self, key: str, value: int) -> Self:
        return self.put(key, U32, value)

    def f32(self, key: str, value: float) -> Self:
        return self.put(key, F32, value)

    def text(self, key: str | bytes, value: str | bytes) -> Self:
        return self.raw(key, STRING, text(value))

    def numbers(self, key: str, kind: int, values: Sequence[float]) -> Self:
        payload = struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values)
        return self.raw(key, ARRAY, number(U32, kind) + number(U64, len(values)) + payload)

    def texts(self, key: str, values: Sequence[str | bytes]) -> Self:
        payload = b"".join(map(text, values))
        return self.raw(key, ARRAY, number(U32, STRING) + number(U64, len(values)) + payload)

    def tensor(self, name: str | bytes, shape: Sequence[int], kind: int = GGML_F32, data: bytes | None = None) -> Self:
        """A tensor with data of zeros, or of `data`; replaces one of the same name."""
        key = name.encode() if isinstance(name, str) else name
        if data is None:
            n_block, n_bytes = _BLOCKS[kind]
            rows = 1
            for n in shape[1:]:
                rows *= n
            data = bytes(shape[0] // n_block * n_bytes * rows)
        self.tensors[key] = Tensor(key, shape, kind, data)
        return self

    def raw_tensor(
        self, name: str | bytes, shape: Sequence[int], kind: int = GGML_F32, offset: int = 0, n_dims: int | None = None
    ) -> Self:
        """A tensor entry as given, without data."""
        key = name.encode() if isinstance(name, str) else name
        self.tensors[key] = Tensor(key, shape, kind, b"", offset, len(shape) if n_dims is None else n_dims)
        return self

    def drop(self, name: str) -> Self:
        """Takes a key or tensor out."""
        self.keys.pop(name.encode(), None)
        self.tensors.pop(name.encode(), None)
        return self

    def _pad(self, data: bytes) -> bytes:
        return data + bytes(-len(data) % self.alignment)

    def header(self) -> bytes:
        """Everything before the tensors' data, padding not included."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        out = self.magic + number(U32, self.version) + number(U64, n_tensors) + number(U64, n_keys)
        out += b"".join(self.keys.values()) + self.extra
        offset = 0
        for tensor in self.tensors.values():
            n_dims = len(tensor.shape) if tensor.n_dims is None else tensor.n_dims
            out += text(tensor.name) + number(U32, n_dims)
            out += struct.pack(f"<{len(tensor.shape)}q", *tensor.shape) + number(U32, tensor.kind)
            out += number(U64, offset if tensor.offset is None else tensor.offset)
            offset += len(self._pad(tensor.data))
        return out

    def build(self) -> bytes:
        return self._pad(self.header()) + b"".join(self._pad(tensor.data) for tensor in self.tensors.values())


def vocabulary(n: int = 10, prefix: str = "t") -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def tiny_drafter() -> Gguf:
    """2 layers of width 8, 2 heads of 4 (1 for K/V), feed-forward 16, block 4, taps 1 and 3, 10 tokens; zeros."""
    file = Gguf().text("general.architecture", "dflash").text("general.name", "tiny")
    sizes = {"block_count": 2, "context_length": 64, "embedding_length": 8, "feed_forward_length": 16, "block_size": 4}
    heads = {"head_count": 2, "head_count_kv": 1, "key_length": 4, "value_length": 4}
    for key, value in {**sizes, **{f"attention.{name}": n for name, n in heads.items()}}.items():
        file.u32(f"dflash.{key}", value)
    file.f32("dflash.attention.layer_norm_rms_epsilon", 1e-5).numbers("dflash.target_layers", I32, [1, 3])
    file.u32("tokenizer.ggml.mask_token_id", 3).texts("tokenizer.ggml.tokens", vocabulary())
    file.tensor("fc.weight", [16, 8]).tensor("enc.output_norm.weight", [8]).tensor("output_norm.weight", [8])
    shapes = {
        "attn_norm": [8],
        "ffn_norm": [8],
        "attn_q_norm": [4],
        "attn_k_norm": [4],
        "attn_q": [8, 8],
        "attn_k": [8, 4],
        "attn_v": [8, 4],
        "attn_output": [8, 8],
        "ffn_gate": [8, 16],
        "ffn_up": [8, 16],
        "ffn_down": [16, 8],
    }
    for layer in range(2):
        for name, shape in shapes.items():
            file.tensor(f"blk.{layer}.{name}.weight", shape)
    return file


def tiny_target(architecture: str = "llama") -> Gguf:
    """The header of a 4-layer target that the tiny drafter fits; llama.cpp cannot load it."""
    file = Gguf().text("general.architecture", architecture).text("general.name", "tiny target")
    sizes = {"block_count": 4, "context_length": 128, "embedding_length": 8, "attention.head_count": 2}
    for key, value in sizes.items():
        file.u32(f"{architecture}.{key}", value)
    file.text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", vocabulary())
    return file.tensor("token_embd.weight", [8, 10])
