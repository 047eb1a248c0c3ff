"""A scripted stand-in for the native Engine and its Runtime: byte-level tokens, rounds of given sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from dflash_local import Cancelled, ContextOverflow
from dflash_local.sampling import SamplingParams

EOG = 256  # ids below are bytes
IM_START, IM_END = 257, EOG
N_VOCAB = 258
SPECIALS = {"<|im_start|>": IM_START, "<|im_end|>": IM_END}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class FakeVocab:
    """Bytes, and two special tokens."""

    bos_text = ""
    eos_text = "<|im_end|>"

    def __init__(self) -> None:
        self.n_tokens = N_VOCAB

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        out: list[int] = []
        while text:
            special = next((s for s in SPECIALS if parse_special and text.startswith(s)), None)
            out += [SPECIALS[special]] if special else list(text[0].encode())
            text = text[len(special) if special else 1 :]
        return out

    def piece(self, token: int, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return next(s for s, i in SPECIALS.items() if i == token).encode() if special else b""

    def is_eog(self, token: int) -> bool:
        return token == EOG

    def is_special(self, token: int) -> bool:
        return token >= 256

    def special_texts(self) -> list[str]:
        return sorted(SPECIALS, key=len, reverse=True)


@dataclass
class Round:
    draft: bool
    rows: int
    emitted: int


@dataclass
class FakeEngine:
    """Emits `script` run by run, in rounds whose wished sizes come from `sizes` (1: plain, more: draft rounds).

    `on_round` is called with the number of the run's round before it; what it raises comes out of `round`.
    """

    script: Iterable[Sequence[int]] = ()
    sizes: Sequence[int] = (1,)
    n_ctx: int = 1024
    n_batch: int = 64
    on_round: Callable[[int], None] | None = None
    declined: str = ""
    ctx: int = 1
    tap_mode: str = "callback"
    _tokens: list[int] = field(default_factory=list)
    _rounds: list[Round] = field(default_factory=list)
    _begun: int = 0
    closed: int = 0
    kept: int = 0
    truncations: list[int] = field(default_factory=list)
    past: list[int] = field(default_factory=list)
    asked: set[tuple[int, int]] = field(default_factory=set)  # draft_rows and draft_leaves of the rounds

    def __post_init__(self) -> None:
        self._scripts = iter(self.script)
        self.n_decoded = 0

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return np.array(self._tokens, dtype=np.int32)

    @property
    def n_tokens(self) -> int:
        return len(self._tokens)

    def begin(self, prompt: Sequence[int], reuse: bool = True) -> int:
        if not prompt:
            raise ValueError("the prompt is empty")
        if len(prompt) >= self.n_ctx:
            raise ContextOverflow(f"the prompt has {len(prompt)} tokens, the context holds {self.n_ctx}")
        same = 0
        for old, new in zip(self._tokens, prompt, strict=False):
            if old != new:
                break
            same += 1
        self.kept = min(same, len(prompt) - 1) if reuse else 0
        self._tokens = list(prompt)
        self._begun = len(prompt)
        self._rounds = []
        self._run = list(next(self._scripts))
        self._sizes = cycle(self.sizes)
        self._chunks = (len(prompt) - self.kept) // self.n_batch
        return self.kept

    def prefill(self) -> bool:
        self._chunks -= 1
        return self._chunks >= 0

    def round(
        self,
        sampler: int,
        *,
        draft_rows: int = -1,
        draft_leaves: int = 1,
        max_emit: int = 1 << 30,
        on_sample: Callable[[], None] | None = None,
    ) -> list[int]:
        assert sampler
        assert max_emit >= 1
        self.asked.add((draft_rows, draft_leaves))
        if self.on_round is not None:
            self.on_round(len(self._rounds))
        if len(self._tokens) >= self.n_ctx:
            raise ContextOverflow("no cell is left")
        size = 1 if draft_rows == 0 or not self._rounds else next(self._sizes)
        at = len(self._tokens) - self._begun
        out = self._run[at : at + min(size, max_emit)]
        if EOG in out:
            out = out[: out.index(EOG) + 1]
        self._tokens += out
        self._rounds.append(Round(size > 1, size, len(out)))
        return out

    def truncate(self, n: int) -> None:
        self.truncations.append(n)
        extra = len(self._tokens) - n
        del self._tokens[n:]
        while extra > 0 and self._rounds:
            last = self._rounds[-1]
            cut = min(extra, last.emitted)
            last.emitted -= cut
            extra -= cut
            if last.emitted == 0:
                self._rounds.pop()

    def append(self, tokens: Sequence[int]) -> None:
        self._tokens += tokens

    def add_past(self, tokens: Sequence[int]) -> None:
        self.past += tokens

    def reset(self) -> None:
        self._tokens, self._rounds, self._begun = [], [], 0

    def cancel(self) -> None:
        raise Cancelled("cancelled")

    def close(self) -> None:
        self.closed += 1

    def stats(self) -> Any:
        draft = [r for r in self._rounds if r.draft]
        predicted = sum(r.emitted for r in self._rounds)
        return {
            "prompt_n": self._begun - self.kept,
            "reused_n": self.kept,
            "prompt_ms": 1.0,
            "predicted_n": predicted,
            "predicted_ms": 10.0 * len(self._rounds),
            "draft_rounds": len(draft),
            "plain_rounds": len(self._rounds) - len(draft),
            "draft_n": sum(r.rows - 1 for r in draft),
            "draft_n_accepted": sum(r.emitted - 1 for r in draft),
            "copy_rounds": 0,
            "copy_n_accepted": 0,
            "accepted_per_slot": [],
            "plain_estimate_ms": 0.0,
            "plain_round_ms": 10.0 if len(draft) < len(self._rounds) else 0.0,
            "draft_round_ms": 10.0 if draft else 0.0,
            "target_ms": 0.0,
            "draft_ms": 0.0,
            "sample_ms": 0.0,
            "other_ms": 0.0,
            "draft_context": 0,
            "declined": self.declined,
        }

    def rounds(self) -> list[tuple[int, int]]:
        return [(r.rows, r.emitted) for r in self._rounds]

    def drafted(self) -> list[tuple[str, list[int]]]:
        return [("copy" if r.draft else "plain", [1] * (r.rows - 1)) for r in self._rounds]

    def replay(self, sampler: int) -> Any:
        n = sum(r.emitted for r in self._rounds)
        return {"tokens": n, "exact": n, "first_mismatch": -1}

    def save(self) -> bytes:
        return b"fake" + json.dumps(self._tokens).encode()

    def restore(self, state: bytes) -> None:
        if not state.startswith(b"fake"):
            raise ValueError("the state is of another model")
        self._tokens = json.loads(state[4:])


@dataclass
class FakeSampler:
    params: SamplingParams
    address: int = 1
    closed: bool = False

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeRuntime:
    """What generation and chat need of a Runtime."""

    engine: Any
    drafter_name: str | None = "fake-dflash"
    draft_status: str = "engaged"
    name: str = "fake"
    metadata: dict[str, str] = field(
        default_factory=lambda: {
            "general.architecture": "llama",
            "general.name": "fake",
            "tokenizer.chat_template": CHATML,
        }
    )
    vocab: Any = field(default_factory=FakeVocab)
    samplers: list[FakeSampler] = field(default_factory=list)
    pair: Any = field(
        default_factory=lambda: SimpleNamespace(target=Path("fake.gguf"), target_info={"size": 1, "n_vocab": N_VOCAB})
    )

    @property
    def draft_kind(self) -> str | None:
        return "dflash+ngram" if self.drafter_name is not None else "ngram" if self.draft_status != "off" else None

    @property
    def n_ctx(self) -> int:
        return int(self.engine.n_ctx)

    def new_sampler(self, params: SamplingParams) -> FakeSampler:
        self.samplers.append(FakeSampler(params))
        return self.samplers[-1]


def text_tokens(text: str, end: bool = True) -> list[int]:
    """Byte tokens of `text`, with the end-of-generation token."""
    return [*text.encode(), *([EOG] if end else [])]
