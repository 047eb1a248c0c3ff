"""Loads a target and its drafter and owns both: what stands between the commands and the native engine."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_cpp._internals import LlamaModel

from dflash_local import costs, cpu_backend, tune
from dflash_local._errors import Error, ModelLoadError, OutOfMemory
from dflash_local._interrupt import held_interrupt
from dflash_local._llama_log import captured_errors, set_verbose
from dflash_local._native_loader import llama_cpp, native
from dflash_local.cpu_backend import CpuBackend
from dflash_local.memory import MAX_CTX, MAX_LEAVES, check_context_fits
from dflash_local.pairs.resolve import Draft, Notify, Pair, describe_memory, estimate_pair, resolve_pair
from dflash_local.sampling import Sampler, SamplingParams
from dflash_local.vocab import Vocab

if TYPE_CHECKING:
    from dflash_local._native import DraftMemory

DEFAULT_CTX = 4096
DEFAULT_BATCH = 512


def load_model(
    path: Path,
    *,
    n_gpu_layers: int = -1,
    params: Any = None,
    use_cpu_backend: bool = False,
    verbose: bool = False,
) -> LlamaModel:
    """Loads a target. `params`: llama_model_params to use instead of the defaults; n_gpu_layers -1: all.
    `use_cpu_backend`: with our kernels, what `cpu_backend.choose` said.

    Raises ModelLoadError, OutOfMemory with llama.cpp's own reason."""
    llama_cpp.llama_backend_init()
    if params is None:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = cpu_backend.ALL_LAYERS if n_gpu_layers < 0 else n_gpu_layers
    offloading = offloads(params.n_gpu_layers)
    with captured_errors(verbose) as errors, cpu_backend.placed(params, use_cpu_backend, offloads=offloading) as own:
        try:
            return LlamaModel(path_model=str(path), params=own, verbose=True)
        except ValueError as error:
            reason = next(
                (line for line in errors if "error loading model" in line), errors[0] if errors else str(error)
            )
            kind = OutOfMemory if "alloc" in reason else ModelLoadError
            raise kind(f"{path}: llama.cpp cannot load this model: {reason}", "model") from error


def offloads(n_gpu_layers: int) -> bool:
    """Will layers go to a device with this build of llama.cpp?"""
    return n_gpu_layers != 0 and device_name() != ""


def device_name() -> str:
    """Name of the first GPU, "" where there is none."""
    # llama_supports_gpu_offload loads the backends, but says yes to RPC without servers too.
    return native.gpu_device() if llama_cpp.llama_supports_gpu_offload() else ""


def head_shape(model: LlamaModel, metadata: Mapping[str, str]) -> tune.HeadShape:
    """Head counts and size of the target's attention."""
    n_head = llama_cpp.llama_model_n_head(model.model)
    key = f"{metadata.get('general.architecture', '')}.attention.key_length"
    head_dim = int(metadata[key]) if key in metadata else (model.n_embd() // n_head if n_head > 0 else 0)
    return tune.HeadShape(n_head, llama_cpp.llama_model_n_head_kv(model.model), head_dim)


def tune_model(
    model: LlamaModel,
    n_ctx: int,
    *,
    n_threads: int | None = None,
    flash_attn: bool | None = None,
    type_v: int | None = None,
    gpu: bool = False,
) -> tune.Tuning:
    """Threads and flash attention for this target; None means measured. Half a second at most."""
    return tune.tune(
        head_shape(model, model.metadata()),
        n_ctx,
        native.time_attention,
        n_threads=n_threads,
        flash_attn=flash_attn,
        type_v=type_v,
        gpu=gpu,
        fast_flash=cpu_backend.uses(model.model),
    )


def make_context_params(
    tuning: tune.Tuning,
    *,
    n_ctx: int,
    n_batch: int = DEFAULT_BATCH,
    type_k: int | None = None,
    type_v: int | None = None,
) -> Any:
    """llama_context_params for one conversation."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = n_batch
    params.n_seq_max = 1
    params.kv_unified = True
    params.n_threads = params.n_threads_batch = tuning.n_threads
    params.flash_attn_type = tuning.flash_attn_type
    if type_k is not None:
        params.type_k = type_k
    if type_v is not None:
        params.type_v = type_v
    return params


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """`pair` says what became of the drafter. Call `keep_costs` before the engine is closed."""

    engine: native.Engine
    pair: Pair
    keep_costs: Callable[[], None]


def open_engine(
    model: LlamaModel,
    context_params: Any,
    pair: Pair,
    *,
    n_gpu_layers: int = 0,
    notify: Notify = lambda _: None,
    note: Notify = lambda _: None,
) -> OpenedEngine:
    """Engine on `model`, with the pair's drafter where it can be loaded, on the device of the target's head, and with
    measured costs of rounds where it may draft.

    Its context takes draft trees of MAX_LEAVES leaves with a drafter, else one sequence. A drafter that fails while
    loading raises where the user named it, else ends in a warning and decoding without it. `note` gets lines that only
    a curious user wants."""
    check_context_fits(model.metadata(), context_params)
    engine, pair = _make_engine(model, context_params, pair, notify)
    if pair.kind is None:
        return OpenedEngine(engine, pair, lambda: None)
    try:
        key = costs.key_of(
            pair,
            model.metadata(),
            context_params,
            tap_mode=engine.tap_mode,
            n_gpu_layers=n_gpu_layers,
            kernels=cpu_backend.build() if cpu_backend.uses(model.model) else "ggml",
        )
        table = costs.prior(engine, key, warn=notify, note=note)
        if table is not None:
            engine.set_costs(table)
    except BaseException:
        engine.close()
        raise

    def keep_costs() -> None:
        learned = engine.costs()
        if learned["widths"] and learned != table:
            problem = costs.store(key, learned)
            if problem:
                note(problem)

    return OpenedEngine(engine, pair, keep_costs)


def _make_engine(model: LlamaModel, context_params: Any, pair: Pair, notify: Notify) -> tuple[native.Engine, Pair]:
    address = ctypes.addressof(context_params)
    if pair.drafter is not None:
        try:
            drafter = native.Drafter(
                str(pair.drafter),
                str(pair.target),
                model.model,
                n_threads=context_params.n_threads,
                device="auto",
            )
            if drafter.acceptance_problem:
                notify(f"warning: the drafter's priors of acceptance are not used: {drafter.acceptance_problem}")
            context_params.n_seq_max, context_params.kv_unified = MAX_LEAVES, True
            return native.Engine(model.model, address, drafter, copies=pair.copies), pair
        except Error as error:
            if pair.explicit:
                raise
            notify(f"warning: decoding without a drafter: {error}")
            pair = pair.declined(str(error))
    context_params.n_seq_max = 1
    return native.Engine(model.model, address, copies=pair.copies), pair


def _release(opened: OpenedEngine, model: LlamaModel) -> None:
    # The context must go before the model; the drafter goes with the engine's last reference.
    opened.keep_costs()
    opened.engine.close()
    model.close()


class Runtime:
    """A loaded target, its engine and perhaps its drafter. Close it, or use it as a context manager."""

    def __init__(
        self, model: LlamaModel, opened: OpenedEngine, tuning: tune.Tuning, memory: DraftMemory | None
    ) -> None:
        self.model = model
        self.engine = opened.engine
        self.pair = opened.pair
        self.tuning = tuning
        self.draft_memory = memory if opened.pair.drafter is not None else None
        self.metadata: dict[str, str] = model.metadata()
        self.vocab = Vocab(model.vocab)
        self._finalizer = weakref.finalize(self, _release, opened, model)

    @property
    def name(self) -> str:
        """The target's name, that of its file where it has none."""
        return self.metadata.get("general.name") or self.pair.target.stem

    @property
    def drafter_name(self) -> str | None:
        return self.pair.drafter_name

    @property
    def draft_slots(self) -> int | None:
        """Most rows that a round can draft; None without a drafter."""
        drafter = self.pair.drafter
        return None if drafter is None else int(native.inspect(str(drafter))["block_size"]) - 1

    @property
    def draft_status(self) -> str:
        """As it was loaded: "engaged", "off" or "declined: why"."""
        return self.pair.status

    @property
    def draft_kind(self) -> str | None:
        """What may be drafted from: "dflash+ngram", "ngram", None."""
        return self.pair.kind

    @property
    def uses_cpu_backend(self) -> bool:
        """Are its products and attention our own CPU kernels?"""
        return cpu_backend.uses(self.model.model)

    @property
    def n_ctx(self) -> int:
        return self.engine.n_ctx

    def new_sampler(self, params: SamplingParams) -> Sampler:
        """A fresh sampler chain for this vocabulary; the caller closes it. Raises GrammarError."""
        return Sampler(params, self.vocab.address, self.vocab.n_tokens)

    def close(self) -> None:
        """Frees context, drafter and model; a second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def load_runtime(
    model: str | Path,
    draft: Draft = "auto",
    *,
    n_ctx: int | None = None,
    n_batch: int = DEFAULT_BATCH,
    n_threads: int | None = None,
    n_gpu_layers: int = -1,
    flash_attn: bool | None = None,
    type_k: int | None = None,
    type_v: int | None = None,
    cpu_kernels: CpuBackend | None = None,
    verbose: bool = False,
    notify: Notify = lambda _: None,
) -> Runtime:
    """Finds, checks and loads a target and its drafter.

    n_ctx None takes 4096, or the model's own where that is less; 0 takes the model's own. `cpu_kernels`: None takes
    DFLASH_CPU_BACKEND, else auto. `notify` gets one line each
    for the memory that drafting adds, before it is taken, and for warnings. Raises ModelLoadError, IncompatibleDrafter,
    OutOfMemory, Unsupported, ValueError."""
    if not 1 <= n_batch <= MAX_CTX or (n_ctx is not None and not 0 <= n_ctx <= MAX_CTX):
        raise ValueError(f"n_ctx is {n_ctx} and n_batch {n_batch}, expected 0 and 1 to {MAX_CTX}")
    set_verbose(verbose)
    pair = resolve_pair(model, draft, notify)
    gpu = offloads(n_gpu_layers)
    # The head is the first to be offloaded, and the drafter goes where the head is.
    use = cpu_backend.choose(cpu_kernels, n_threads or tune.available_cores())
    device = device_name() if gpu else cpu_backend.DEVICE if use else ""
    pair, memory = estimate_pair(pair, n_batch=n_batch, device=device, layers_on_device=gpu, notify=notify)
    if memory is not None:
        notify(describe_memory(memory))
    with held_interrupt():
        loaded = load_model(pair.target, n_gpu_layers=n_gpu_layers, use_cpu_backend=use, verbose=verbose)
        try:
            trained = loaded.n_ctx_train()
            n_ctx = min(DEFAULT_CTX, trained) if n_ctx is None else n_ctx or trained
            if n_ctx > trained:
                notify(f"warning: a context of {n_ctx} tokens is more than the {trained} this model was trained for")
            tuning = tune_model(loaded, n_ctx, n_threads=n_threads, flash_attn=flash_attn, type_v=type_v, gpu=gpu)
            params = make_context_params(tuning, n_ctx=n_ctx, n_batch=min(n_batch, n_ctx), type_k=type_k, type_v=type_v)
            opened = open_engine(
                loaded,
                params,
                pair,
                n_gpu_layers=n_gpu_layers if gpu else 0,
                notify=notify,
                note=notify if verbose else lambda _: None,
            )
        except BaseException:
            loaded.close()
            raise
        if opened.engine.n_ctx > n_ctx:
            notify(f"the context holds {opened.engine.n_ctx} tokens: llama.cpp rounds {n_ctx} up")
        return Runtime(loaded, opened, tuning, memory)
