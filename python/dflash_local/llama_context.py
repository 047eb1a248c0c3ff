"""llama-cpp-python's view of an engine's context, and what stands in its place after `close()`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NoReturn

import llama_cpp._internals as internals
import llama_cpp.llama_cpp as lib

from dflash_local._errors import Error, Unsupported

if TYPE_CHECKING:
    from dflash_local._native import Engine


class EngineContext(internals.LlamaContext):  # type: ignore[misc]
    """A LlamaContext around a context that an engine owns.

    Everything that reads works as in the parent. What would change K/V behind the engine's back goes through the
    engine, or raises Unsupported.
    """

    def __init__(self, engine: Engine, model: Any, params: Any, verbose: bool) -> None:
        # The parent's __init__ would make a second context.
        self.model = model
        self.params = params
        self.verbose = verbose
        self.sampler = None
        self.ctx: int | None = engine.ctx
        self.memory: int | None = lib.llama_get_memory(self.ctx)
        self._engine: Engine | None = engine
        self._exit_stack = contextlib.ExitStack()
        self._exit_stack.callback(self._release)
        # Also when the model alone is closed: an engine must go before its model.
        model._exit_stack.callback(self.close)

    def _release(self) -> None:
        engine, self._engine, self.ctx, self.memory = self._engine, None, None, None
        if engine is not None:
            engine.close()

    def _open(self) -> Engine:
        if self._engine is None:
            raise Error("this context is closed")
        return self._engine

    def kv_cache_clear(self) -> None:
        """Empties the conversation."""
        self._open().reset()

    def kv_cache_seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Forgets positions >= p0; True when done. A hole in the middle is refused by returning False."""
        engine = self._open()
        start = max(p0, 0)
        if seq_id > 0 or (0 <= p1 < engine.n_tokens):
            return False
        engine.truncate(min(start, engine.n_tokens))
        return True

    def kv_cache_seq_cp(self, seq_id_src: int, seq_id_dst: int, p0: int, p1: int) -> NoReturn:
        raise _behind_the_engine("kv_cache_seq_cp")

    def kv_cache_seq_keep(self, seq_id: int) -> NoReturn:
        raise _behind_the_engine("kv_cache_seq_keep")

    def kv_cache_seq_shift(self, seq_id: int, p0: int, p1: int, shift: int) -> NoReturn:
        raise _behind_the_engine("kv_cache_seq_shift")

    def decode(self, batch: Any) -> NoReturn:
        raise _behind_the_engine("decode")

    def encode(self, batch: Any) -> NoReturn:
        raise _behind_the_engine("encode")


def _behind_the_engine(method: str) -> Unsupported:
    return Unsupported(
        f"_ctx.{method} would change the conversation behind the engine's back: use Llama.eval, reset or generate",
        method,
    )


class Closed:
    """Stands for the model, context and engine of a closed Llama: any use raises Error."""

    def __getattr__(self, name: str) -> NoReturn:
        # Dunder look-ups come from copy, pickle and inspect, which expect AttributeError.
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    def refuse(self) -> NoReturn:
        raise Error("this Llama is closed: make a new one to go on")


CLOSED = Closed()
