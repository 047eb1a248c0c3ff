"""Chat messages to tokens by the model's own template, in the sandbox of llama-cpp-python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

from jinja2 import TemplateError
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from dflash_local._errors import ModelLoadError, Unsupported
from dflash_local.chat.guard import guard_messages, tokenize_guarded

KEY = "tokenizer.chat_template"


class Message(TypedDict):
    role: str  # system, user or assistant
    content: str


class TemplateVocab(Protocol):
    @property
    def bos_text(self) -> str: ...
    @property
    def eos_text(self) -> str: ...
    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def is_special(self, token: int) -> bool: ...
    def special_texts(self) -> list[str]: ...


class ChatTemplate:
    """The chat template of one model. Raises Unsupported where it has none, ModelLoadError where it is broken."""

    def __init__(self, metadata: Mapping[str, str], vocab: TemplateVocab) -> None:
        source = metadata.get(KEY)
        if not source:
            raise Unsupported(
                "this model has no chat template, it only continues text: use dflash-local generate --raw", KEY
            )
        self._vocab = vocab
        try:
            self._formatter = Jinja2ChatFormatter(source, eos_token=vocab.eos_text, bos_token=vocab.bos_text)
        except TemplateError as error:
            raise ModelLoadError(f"the model's chat template is broken: {error}", KEY) from error

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt text, guarded (see guard.py), up to where the assistant's answer begins.

        Raises ModelLoadError where the template fails on these messages."""
        guarded = guard_messages(messages, self._vocab.special_texts())
        try:
            return str(self._formatter(messages=guarded).prompt)
        # A template is a program from the file: whatever it raises is the file's failure.
        except Exception as error:
            raise ModelLoadError(f"the model's chat template refuses this conversation: {error}", KEY) from error

    def tokenize(self, rendered: str) -> list[int]:
        """Ids of a rendered text, or of the rest of one; the template writes BOS itself."""

        def plain(text: str, parse_special: bool) -> list[int]:
            return self._vocab.tokenize(text, add_special=False, parse_special=parse_special)

        return tokenize_guarded(rendered, plain)
