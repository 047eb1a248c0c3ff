"""Text to tokens and back, straight on llama.cpp's vocabulary."""

from __future__ import annotations

import ctypes

from dflash_local._native_loader import llama_cpp

_SPECIAL_ATTRS = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN


class Vocab:
    """The vocabulary of a loaded model; must not outlive it. `address` is that of a llama_vocab."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(address)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._special_texts: list[str] | None = None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special` adds BOS where the model wants one; `parse_special` lets the text of a
        special token become that token. Raises ValueError on text that has no UTF-8 form."""
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not valid Unicode at character {error.start}") from error
        capacity = len(data) + 8
        for _ in range(2):
            buffer = (llama_cpp.llama_token * capacity)()
            n = llama_cpp.llama_tokenize(self.address, data, len(data), buffer, capacity, add_special, parse_special)
            if n >= 0:
                return list(buffer[:n])
            capacity = -n
        raise ValueError(f"llama.cpp could not tokenize {len(data)} bytes of text")

    def piece(self, token: int, special: bool = False) -> bytes:
        """Bytes of one token, perhaps a part of a character; special tokens are empty unless `special`."""
        key = (token, special)
        found = self._pieces.get(key)
        if found is None:
            size = 64
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_token_to_piece(self.address, token, buffer, size, 0, special)
            if n < 0:
                size = -n
                buffer = ctypes.create_string_buffer(size)
                n = llama_cpp.llama_token_to_piece(self.address, token, buffer, size, 0, special)
            found = self._pieces[key] = buffer.raw[:n]
        return found

    def is_eog(self, token: int) -> bool:
        """Does this token end a generation?"""
        return bool(llama_cpp.llama_vocab_is_eog(self.address, token))

    def is_special(self, token: int) -> bool:
        """Is this a control token, one that plain text must never become?"""
        return bool(llama_cpp.llama_vocab_get_attr(self.address, token) & _SPECIAL_ATTRS)

    def token_text(self, token: int) -> str:
        """The vocabulary's text of a special token; empty for an absent one (-1)."""
        if token < 0:
            return ""
        text: bytes = llama_cpp.llama_vocab_get_text(self.address, token)
        return text.decode("utf-8", "replace")

    @property
    def bos_text(self) -> str:
        return self.token_text(llama_cpp.llama_vocab_bos(self.address))

    @property
    def eos_text(self) -> str:
        return self.token_text(llama_cpp.llama_vocab_eos(self.address))

    def special_texts(self) -> list[str]:
        """Texts that the tokenizer would turn into control tokens, longest first."""
        if self._special_texts is None:
            texts = {self.token_text(token) for token in range(self.n_tokens) if self.is_special(token)}
            self._special_texts = sorted(texts - {""}, key=lambda text: (-len(text), text))
        return self._special_texts
