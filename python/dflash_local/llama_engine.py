"""The engine-driven half of `Llama`: decoding, sampling, state and counters over llama-cpp-python's class."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypedDict, cast

from llama_cpp import Llama as LlamaBase
from llama_cpp import LlamaState, LogitsProcessorList

from dflash_local._errors import ContextOverflow, Error, Unsupported
from dflash_local._native import Engine
from dflash_local.llama_checks import check_completion, check_numbers
from dflash_local.llama_context import CLOSED, Closed
from dflash_local.llama_sampling import ProcessorGuard, check_grammar, sampler_address, with_bias

_SAMPLE = inspect.signature(LlamaBase.sample)
AUTO_ROWS = -1  # the planner decides
TokenGenerator = Generator[int, Sequence[int] | None, None]


class DraftStats(TypedDict):
    """Counters of the last call; all zero until it has begun."""

    rounds: int  # rounds that verified drafted rows
    plain_rounds: int  # rounds that did not, the prompt's first token among them
    draft_n: int  # drafted rows verified
    draft_n_accepted: int  # of these accepted and emitted, a round's last token never counted
    copy_rounds: int  # rounds that verified copies of what stands in the text
    copy_n_accepted: int  # accepted rows that were copies
    tokens_per_round: float  # over draft rounds, 0 where there was none
    draft_context: int  # positions in the drafter's context
    draft_status: str  # "off", "idle" (no call yet), "engaged" or "declined: why"


class EngineLlama(LlamaBase):  # type: ignore[misc]
    """A llama_cpp.Llama that decodes through an Engine, or where `_engine` is None through the parent's own loop."""

    _engine: Engine | None
    _seed: int
    _draft_rows: int
    draft: str | None
    _guard: ProcessorGuard | None
    _run: int  # number of the run that owns the conversation; a generator of an older one must not touch it
    _counted: bool  # the engine's counters are those of the last call

    # Generation

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
    ) -> TokenGenerator:
        """Yields the tokens that follow `tokens`, without end: close it or break out of the loop.

        Arguments as in llama_cpp.Llama. With `reset=False` the prompt goes on after the evaluated tokens. Tokens
        passed to `send` are put after the one just yielded. While suspended and after the end, `n_tokens` counts the
        tokens before the last yielded one. Raises ContextOverflow, Cancelled, DecodeError, ValueError (no tokens, ids
        out of range), and whatever a processor raises; the conversation then ends with the last yielded token.
        """
        sampling: dict[str, Any] = {
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "typical_p": typical_p,
            "temp": temp,
            "repeat_penalty": repeat_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "tfs_z": tfs_z,
            "mirostat_mode": mirostat_mode,
            "mirostat_tau": mirostat_tau,
            "mirostat_eta": mirostat_eta,
            "penalize_nl": penalize_nl,
            "logits_processor": logits_processor,
            "grammar": grammar,
        }
        if self._engine is None:
            return cast(
                TokenGenerator,
                super().generate(tokens, reset=reset, stopping_criteria=stopping_criteria, **sampling),
            )
        return self._generate(self._engine, list(tokens), reset, sampling, stopping_criteria)

    def _generate(
        self, engine: Engine, tokens: list[int], reset: bool, sampling: dict[str, Any], stop: Any
    ) -> TokenGenerator:
        run = self._take_over()
        kept = self._begin(engine, tokens if reset else [*self._input_ids.tolist(), *tokens])
        n_evaluated = 0  # before the last yielded token, as the parent counts; 0: not known before the next round
        self._mirostat_mu = ctypes.c_float(2.0 * sampling["mirostat_tau"])
        self._sampler = sampler = self._init_sampler(**sampling)
        sampled: list[int] = []
        try:
            while True:
                start, first_row = engine.n_tokens, engine.n_decoded
                emitted = engine.round(
                    sampler_address(sampler),
                    draft_rows=self._draft_rows,
                    all_logits=self._logits_all,
                    on_sample=self._sample_hook(engine),
                )
                self._check_guard()
                self._store(start, emitted)
                self._keep_scores(engine, first_row)
                for n_evaluated, token in enumerate(emitted, start):
                    self.n_tokens = kept = n_evaluated
                    if stop is not None and stop(self._input_ids, self._scores_row(n_evaluated - 1)):
                        return
                    kept += 1
                    sampled.append(token)
                    sent = yield token
                    if self._run != run:
                        raise Error("another call has taken over this Llama since this generator's last token")
                    if sent:
                        if kept < engine.n_tokens:
                            # The sampler is ahead by the dropped tokens: build it anew from those that stay.
                            self._sampler = sampler = self._replay_sampler(sampling, sampled)
                        engine.truncate(kept)
                        self._feed(engine, sent)
                        kept, n_evaluated = engine.n_tokens, 0
                        break
        finally:
            sampler.close()
            if self._run == run:
                self._sampler = None
                engine.truncate(kept)
                self.n_tokens = n_evaluated or engine.n_decoded

    def _begin(self, engine: Engine, prompt: list[int]) -> int:
        n_reused = engine.begin(prompt)
        self._counted = True
        self._requires_eval = True
        self.n_tokens = n_reused
        if self._logits_all:
            engine.truncate(n_reused)
            self._feed(engine, prompt[n_reused:])
        self._store(0, prompt)
        return len(prompt)

    def _feed(self, engine: Engine, tokens: Sequence[int]) -> None:
        """Adds tokens for the next round to decode; with logits_all, chunks ahead of that round are decoded here."""
        tokens = [int(token) for token in tokens]
        self._store(engine.n_tokens, tokens)
        while self._logits_all and (room := _room(engine)) < len(tokens):
            self._eval_chunk(engine, tokens[:room])
            tokens = tokens[room:]
        engine.append(tokens)

    def _keep_scores(self, engine: Engine, first_row: int) -> None:
        """Scores of the rows decoded since `n_decoded` was `first_row`."""
        if self._logits_all:
            for row in range(engine.n_decoded - first_row):
                self.scores[first_row + row] = engine.logits(row)

    def _store(self, position: int, tokens: Sequence[int]) -> None:
        # The last token may stand past the context's end: it is emitted and never decoded.
        room = self.input_ids[position : position + len(tokens)]
        room[:] = tokens[: len(room)]

    def _scores_row(self, position: int) -> Any:
        # As in the parent, scores are known with logits_all alone; else the row is zero.
        return self.scores[position if self._logits_all else 0]

    def _sample_hook(self, engine: Engine) -> Callable[[], None] | None:
        if self._guard is None:
            return None

        def before_sample() -> None:
            self._check_guard()
            self.n_tokens = engine.n_decoded
            self._store(0, cast(Sequence[int], engine.tokens[: self.n_tokens]))

        return before_sample

    # Sampling

    def _init_sampler(self, *, logits_processor: Any = None, grammar: Any = None, **settings: Any) -> Any:
        check_numbers(settings)
        if grammar is not None:
            check_grammar(self._model.vocab, grammar)
        self._guard = None if logits_processor is None else ProcessorGuard(logits_processor)
        guarded = None if self._guard is None else LogitsProcessorList([self._guard])
        return super()._init_sampler(logits_processor=guarded, grammar=grammar, **settings)

    def _replay_sampler(self, sampling: dict[str, Any], sampled: Sequence[int]) -> Any:
        # Another seed: the first draws of this one were used.
        seed = self._seed
        self._seed = (seed + len(sampled)) % 2**32
        try:
            sampler = self._init_sampler(**sampling)
        finally:
            self._seed = seed
        for token in sampled:
            sampler.accept(token)
        return sampler

    def _check_guard(self) -> None:
        if self._guard is not None:
            self._guard.check()

    @functools.wraps(LlamaBase.sample)
    def sample(self, *args: Any, **kwargs: Any) -> int:
        self._check_open()
        engine = self._engine
        if engine is None:
            return int(super().sample(*args, **kwargs))
        settings = _SAMPLE.bind(self, *args, **kwargs).arguments
        del settings["self"]
        row = _row(settings.pop("idx", None), self.n_tokens)
        if self._requires_eval:
            last = int(self.input_ids[self.n_tokens - 1])
            self.n_tokens -= 1
            self.eval([last])
        sampler = self._sampler or self._init_sampler(**settings)
        try:
            token = engine.sample(sampler_address(sampler), row)
        finally:
            self._check_guard()
            if sampler is not self._sampler:
                sampler.close()
        return token

    def eval(self, tokens: Sequence[int]) -> None:
        """Evaluates `tokens` after the first `n_tokens`; scores of all of them with logits_all. Raises ContextOverflow,
        DecodeError, ValueError."""
        engine = self._engine
        if engine is None:
            super().eval(tokens)
            return
        if self.n_tokens > engine.n_tokens:
            raise ValueError(f"n_tokens was set to {self.n_tokens}, but only {engine.n_tokens} tokens are known")
        if self.n_tokens + len(tokens) > self._n_ctx:
            raise ContextOverflow(
                f"eval: {len(tokens)} tokens after {self.n_tokens} are more than the context of {self._n_ctx} holds:"
                " make Llama with a larger n_ctx"
            )
        self._take_over()
        engine.truncate(self.n_tokens)
        rest = [int(token) for token in tokens]
        while rest:
            room = _room(engine)
            self._eval_chunk(engine, rest[:room])
            rest = rest[room:]
            self._requires_eval = False

    def _eval_chunk(self, engine: Engine, tokens: list[int]) -> None:
        first_row = engine.n_decoded
        self._store(engine.n_tokens, tokens)
        engine.eval(tokens, all_logits=self._logits_all)
        self._keep_scores(engine, first_row)
        self.n_tokens = engine.n_decoded

    # State

    def _take_over(self) -> int:
        """Makes suspended generators of earlier calls invalid."""
        self._run += 1
        self._counted = False
        return self._run

    def reset(self) -> None:
        """Forgets the conversation."""
        if self._engine is None:
            super().reset()
            return
        self._take_over()
        self._engine.reset()
        self.n_tokens = 0
        self._requires_eval = True

    def save_state(self) -> Any:
        """A LlamaState with the conversation, target and drafter; scores with logits_all alone."""
        if self._engine is None:
            return super().save_state()
        state = self._engine.save()
        return LlamaState(
            input_ids=self.input_ids.copy(),
            scores=self._scores.copy() if self._logits_all else self.scores[:0],
            n_tokens=self.n_tokens,
            llama_state=state,
            llama_state_size=len(state),
            seed=self._seed,
        )

    def load_state(self, state: Any) -> None:
        """Raises ValueError on a state of another model, drafter or version; then nothing has changed."""
        engine = self._engine
        if engine is None:
            super().load_state(state)
            return
        engine.restore(state.llama_state)
        self._take_over()
        # Saved inside a generator it may hold tokens that were not yielded yet.
        engine.truncate(min(engine.n_tokens, state.n_tokens + 1))
        self.n_tokens = min(engine.n_tokens, state.n_tokens)
        self._store(0, state.input_ids[: self.n_tokens])
        self.scores[: len(state.scores)] = state.scores
        self._seed = state.seed
        self._requires_eval = True

    @functools.wraps(LlamaBase.embed)
    def embed(self, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        if self._engine is not None:
            raise Unsupported("this Llama was made for text: make one with embedding=True for embeddings", "embedding")
        return super().embed(*args, **kwargs)

    # Completions

    def _create_completion(self, *args: Any, **kwargs: Any) -> Any:
        self._counted = False
        check_completion(kwargs)
        bias, processors = kwargs.get("logit_bias"), kwargs.get("logits_processor")
        if bias is not None and processors is not None:
            kwargs["logits_processor"] = LogitsProcessorList(with_bias(processors, bias))
            kwargs["logit_bias"] = None
        return super()._create_completion(*args, **kwargs)

    @property
    def draft_stats(self) -> DraftStats:
        """Counters of the last call, true while it streams too."""
        self._check_open()
        drafts = self._engine is not None and self.draft is not None and self._draft_rows != 0
        empty = DraftStats(
            rounds=0,
            plain_rounds=0,
            draft_n=0,
            draft_n_accepted=0,
            copy_rounds=0,
            copy_n_accepted=0,
            tokens_per_round=0.0,
            draft_context=0,
            draft_status="idle" if drafts else "off",
        )
        if self._engine is None or not self._counted:
            return empty
        stats = self._engine.stats()
        rounds, accepted = stats["draft_rounds"], stats["draft_n_accepted"]
        # With fixed rows the planner's opinion does not count, only whether the drafter works.
        fixed = self._draft_rows != AUTO_ROWS or not self._engine.tap_mode
        engaged = rounds > 0 if fixed else not stats["declined"]
        why = stats["declined"] or ("no draft round yet" if self._engine.tap_mode else "nothing repeated itself")
        status = "engaged" if engaged else f"declined: {why}"
        return DraftStats(
            rounds=rounds,
            plain_rounds=stats["plain_rounds"],
            draft_n=stats["draft_n"],
            draft_n_accepted=accepted,
            copy_rounds=stats["copy_rounds"],
            copy_n_accepted=stats["copy_n_accepted"],
            tokens_per_round=(rounds + accepted) / rounds if rounds else 0.0,
            draft_context=stats["draft_context"],
            draft_status=status if drafts else "off",
        )

    def _check_open(self) -> None:
        if isinstance(self._engine, Closed):
            self._engine.refuse()

    def close(self) -> None:
        """Frees engine, context and model; any later use but another `close` raises Error. While another thread decodes
        it frees nothing and raises Unsupported."""
        stack = self.__dict__.get("_stack")
        if stack is None:  # __init__ failed before it opened anything
            return
        engine = self.__dict__.get("_engine")
        if engine is not None and not isinstance(engine, Closed):
            engine.refuse_if_busy()
        self._run = self.__dict__.get("_run", 0) + 1
        stack.close()
        for name in ("_engine", "_ctx", "_batch", "_model", "_vocab", "tokenizer_"):
            setattr(self, name, CLOSED)


def _room(engine: Engine) -> int:
    """Tokens that fit into the next batch beside those that wait for it."""
    while engine.prefill():
        pass
    return engine.n_batch - (engine.n_tokens - engine.n_decoded)


def _row(idx: int | None, n_tokens: int) -> int:
    """Row of the last decode, counted from its end, that holds the scores after the token at `idx`; None: the last."""
    if n_tokens == 0:
        raise ValueError("sample: nothing is evaluated yet, call eval first")
    if idx is None:
        return -1
    if not 0 <= idx < n_tokens:
        raise ValueError(f"sample: idx {idx} is not among the {n_tokens} evaluated tokens")
    return idx - n_tokens
