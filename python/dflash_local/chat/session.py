"""One conversation: its turns, its prompt in tokens, and what to do when the context runs full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from dflash_local._errors import ContextOverflow
from dflash_local.chat.guard import guard_text
from dflash_local.chat.template import ChatTemplate, Message, TemplateVocab
from dflash_local.generation import AUTO_ROWS, Chunk, Generation, Result, RuntimeLike, VocabLike, generate
from dflash_local.sampling import SamplingParams

MIN_ANSWER = 16  # tokens that must be left for an answer


class ChatVocab(TemplateVocab, VocabLike, Protocol): ...


class ChatRuntime(RuntimeLike, Protocol):
    """What a conversation needs of a Runtime."""

    @property
    def vocab(self) -> ChatVocab: ...
    @property
    def name(self) -> str: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def pair(self) -> Any: ...
    @property
    def n_ctx(self) -> int: ...


@dataclass(slots=True)
class Totals:
    """Sums over the conversation's runs."""

    answers: int = 0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_rounds: int = 0
    plain_rounds: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0

    def add(self, timings: dict[str, Any]) -> None:
        self.answers += 1
        for name in ("predicted_n", "predicted_ms", "draft_rounds", "plain_rounds", "draft_n", "draft_n_accepted"):
            setattr(self, name, getattr(self, name) + timings[name])


@dataclass(slots=True)
class _Known:
    """A rendered text whose tokens are known exactly, since the model itself wrote its end."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)


class ChatSession:
    """History and settings of a conversation on a runtime. `notices` gathers lines for the user."""

    def __init__(
        self,
        runtime: ChatRuntime,
        params: SamplingParams,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        draft_rows: int = AUTO_ROWS,
    ) -> None:
        self.runtime = runtime
        self.params = params
        self.system = system
        self.max_tokens = max_tokens
        self.draft_rows = draft_rows
        self.messages: list[Message] = []  # without the system prompt
        self.notices: list[str] = []
        self.totals = Totals()
        self.last: Result | None = None
        self._template = ChatTemplate(runtime.metadata, runtime.vocab)
        self._known = _Known()

    def ask(self, text: str) -> Iterator[Chunk]:
        """Answers a message, chunk by chunk. Close the iterator to stop: what was said stays in the history.

        A message that gets no answer, for whatever reason, leaves the history as it was. Raises ContextOverflow where
        the message alone does not fit, and what `generate` raises."""
        before = list(self.messages)
        self.messages.append({"role": "user", "content": text})
        run: Generation | None = None
        try:
            run = generate(
                self.runtime,
                self._prompt(),
                self.params,
                max_tokens=self.max_tokens,
                draft_rows=self.draft_rows,
            )
            yield from run
        finally:
            if run is not None:
                run.close()
                self._record(run.result)
            if self.messages[-1]["role"] == "user":
                self.messages = before

    def reset(self) -> None:
        """Forgets the conversation; the system prompt stays."""
        self.messages.clear()
        self._known = _Known()
        self.last = None
        self.runtime.engine.reset()

    def replace(self, system: str | None, messages: list[Message]) -> None:
        """Takes over a stored conversation. If the engine holds its tokens they are reused, else decoded again."""
        self.system, self.messages = system, messages
        self.last = None
        self._remember()

    def _rendered(self, messages: list[Message]) -> str:
        head: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return self._template.render(head + messages)

    def _tokens(self) -> list[int]:
        rendered = self._rendered(self.messages)
        known = self._known
        if known.text and rendered.startswith(known.text):
            rest = self._template.tokenize(rendered[len(known.text) :])
            # Only a special token is sure to begin a new token; plain text might merge with what is before it.
            if rest and self.runtime.vocab.is_special(rest[0]):
                return known.tokens + rest
        return self._template.tokenize(rendered)

    def _prompt(self) -> list[int]:
        n_ctx = self.runtime.n_ctx
        reserve = min(self.max_tokens or n_ctx, n_ctx // 4)
        tokens = self._tokens()
        dropped = 0
        # Twice the reserve, so that not every turn from now on has to drop one and decode the rest anew.
        room = n_ctx - reserve
        if len(tokens) > room and len(self.messages) > 1:
            # What is dropped from the context can still be copied from.
            self.runtime.engine.add_past([int(token) for token in self.runtime.engine.tokens])
        while len(tokens) > room and len(self.messages) > 1:
            self._drop_turn()
            dropped += 1
            room = n_ctx - 2 * reserve
            tokens = self._tokens()
        if len(tokens) + MIN_ANSWER > n_ctx:
            raise ContextOverflow(
                f"this message alone makes {len(tokens)} tokens, the context holds {n_ctx}; "
                "shorten it, or start with a larger --ctx"
            )
        if dropped:
            turns = "turn was" if dropped == 1 else f"{dropped} turns were"
            self.notices.append(f"the context of {n_ctx} tokens is full: the oldest {turns} dropped")
        return tokens

    def _drop_turn(self) -> None:
        del self.messages[0]
        while len(self.messages) > 1 and self.messages[0]["role"] != "user":
            del self.messages[0]

    def _record(self, result: Result) -> None:
        self.last = result
        if not result.tokens:
            return
        self.totals.add(result.timings)
        self.messages.append({"role": "assistant", "content": result.text})
        self._remember()
        if result.finish_reason == "length":
            if self.runtime.engine.n_tokens >= self.runtime.n_ctx:
                self.notices.append(
                    f"the context of {self.runtime.n_ctx} tokens is full: the answer was cut; "
                    "the oldest turns make room at the next message"
                )
            else:
                self.notices.append(f"the answer was cut at {self.max_tokens} tokens")

    def _remember(self) -> None:
        """Keeps the engine's tokens as those of the conversation so far, where its last answer is whole."""
        self._known = _Known()
        tokens = [int(token) for token in self.runtime.engine.tokens]
        if not tokens or not self.messages or self.messages[-1]["role"] != "assistant":
            return
        answer = self.messages[-1]["content"]
        if "\ufffd" in answer:  # perhaps a character cut in the middle
            return
        if self.runtime.vocab.is_eog(tokens[-1]):
            tokens.pop()
        text = self._rendered(self.messages[:-1]) + guard_text(answer, self.runtime.vocab.special_texts())
        self._known = _Known(text, tokens)
