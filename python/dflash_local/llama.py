"""`Llama`: llama-cpp-python's class, drafting with DFlash."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import llama_cpp._internals as internals
import llama_cpp.llama_chat_format as chat_formats
import llama_cpp.llama_cpp as lib
import numpy as np
from llama_cpp import Llama as LlamaBase
from llama_cpp import LlamaTokenizer
from llama_cpp._logger import set_verbose

from dflash_local import cpu_backend, runtime, tune
from dflash_local._errors import IncompatibleDrafter, ModelLoadError, Unsupported
from dflash_local._interrupt import held_interrupt
from dflash_local._native_loader import native
from dflash_local.chat.guard import CUT, LITERAL, guard_messages, tokenize_guarded
from dflash_local.llama_checks import check_messages
from dflash_local.llama_context import EngineContext
from dflash_local.llama_engine import AUTO_ROWS, EngineLlama
from dflash_local.llama_params import KvOverride, build_context_params, build_model_params
from dflash_local.pairs.resolve import Pair, describe_memory, estimate_pair, resolve_pair
from dflash_local.vocab import Vocab

DRAFT_KINDS = ("dflash", "ngram")
MAX_COPY_ROWS = 64
SENTINELS = (CUT.encode(), LITERAL.encode())
IMAGE_HANDLERS = (chat_formats.Llava15ChatHandler, chat_formats.MTMDChatHandler)


class Llama(EngineLlama):
    """A `llama_cpp.Llama` whose completions come sooner with `draft="dflash"`.

    Use it as llama-cpp-python's class; `draft_stats` tells what drafting did in the last call. Models made with
    `embedding=True`, `vocab_only=True`, `draft_model=` or a chat handler for images run through the parent's own loop,
    without drafting.
    """

    def __init__(
        self,
        model_path: str,
        *,
        n_gpu_layers: int = 0,
        split_mode: int = lib.LLAMA_SPLIT_MODE_LAYER,
        main_gpu: int = 0,
        tensor_split: list[float] | None = None,
        vocab_only: bool = False,
        use_mmap: bool = True,
        use_mlock: bool = False,
        kv_overrides: dict[str, KvOverride] | None = None,
        seed: int = lib.LLAMA_DEFAULT_SEED,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        rope_scaling_type: int | None = lib.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
        pooling_type: int = lib.LLAMA_POOLING_TYPE_UNSPECIFIED,
        attention_type: int = lib.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
        rope_freq_base: float = 0.0,
        rope_freq_scale: float = 0.0,
        yarn_ext_factor: float = -1.0,
        yarn_attn_factor: float = 1.0,
        yarn_beta_fast: float = 32.0,
        yarn_beta_slow: float = 1.0,
        yarn_orig_ctx: int = 0,
        logits_all: bool = False,
        embedding: bool = False,
        offload_kqv: bool = True,
        flash_attn: bool | None = None,
        op_offload: bool | None = None,
        swa_full: bool | None = None,
        no_perf: bool = False,
        last_n_tokens_size: int = 64,
        lora_base: str | None = None,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        numa: bool | int = False,
        chat_format: str | None = None,
        chat_handler: Any = None,
        draft_model: Any = None,
        tokenizer: Any = None,
        type_k: int | None = None,
        type_v: int | None = None,
        spm_infill: bool = False,
        verbose: bool = True,
        draft: Literal["dflash", "ngram"] | None = None,
        draft_model_path: str | None = None,
        draft_rows: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Loads the model at `model_path`, and its drafter.

        Arguments of llama-cpp-python keep their meaning and defaults, but for `n_threads`, `n_threads_batch` and
        `flash_attn`: None, the default, measures them on this machine (one thread count for one row and for many).

        Args:
            draft: "dflash" drafts with a drafter and with copies of what stands in the text; "ngram" with copies alone;
                None decodes plainly, through the same engine.
            draft_model_path: the drafter's GGUF; None looks up the one of a known target.
            draft_rows: drafted rows verified each round, 0 to the drafter's block size - 1; None: the planner decides.

        Raises:
            ValueError: arguments that do not go together, or a file that is not there.
            ModelLoadError, IncompatibleDrafter, OutOfMemory, Unsupported: see `dflash_local`.
        """
        self.verbose = verbose
        self._stack = contextlib.ExitStack()
        self._run, self._counted, self._guard = 0, False, None
        if kwargs:
            warnings.warn(f"Llama takes no argument {', '.join(sorted(kwargs))}: ignored", RuntimeWarning, stacklevel=2)
        reason = _parent_loop_reason(embedding, vocab_only, draft_model, chat_handler)
        _check_draft_arguments(draft, draft_model_path, draft_rows, reason)
        if not Path(model_path).exists():
            raise ValueError(f"Model path does not exist: {model_path}")
        pair = None if reason else _find_pair(model_path, draft, draft_model_path)
        use_cpu_backend = not vocab_only and cpu_backend.choose(None, n_threads or tune.available_cores())
        if pair is not None:
            _check_rows(draft_rows, pair)
            device = cpu_backend.DEVICE if use_cpu_backend else ""
            pair, memory = estimate_pair(pair, n_batch=min(n_ctx, n_batch) or n_batch, device=device)
            if memory is not None and verbose:
                sys.stderr.write(f"Llama: {describe_memory(memory)}\n")
        self.model_path = model_path
        self.draft, self.draft_model_path, self.draft_rows = draft, draft_model_path, draft_rows
        self._draft_rows = 0 if draft is None else AUTO_ROWS if draft_rows is None else draft_rows
        set_verbose(verbose)
        self.numa = _start_backend(numa)

        model = build_model_params(
            n_gpu_layers=n_gpu_layers,
            split_mode=split_mode,
            main_gpu=main_gpu,
            tensor_split=tensor_split,
            vocab_only=vocab_only,
            use_mmap=use_mmap and lora_path is None,
            use_mlock=use_mlock,
            kv_overrides=kv_overrides,
        )
        self.model_params, self._c_tensor_split, overrides = model
        self.tensor_split, self.kv_overrides = tensor_split, kv_overrides
        if overrides is not None:
            self._kv_overrides_array = overrides
        self.n_batch = min(n_ctx, n_batch)
        self._seed = seed or lib.LLAMA_DEFAULT_SEED
        self._logits_all = logits_all or draft_model is not None
        self.context_params = build_context_params(
            n_ctx=n_ctx,
            n_batch=self.n_batch,
            n_ubatch=n_ubatch,
            rope_scaling_type=rope_scaling_type,
            pooling_type=pooling_type,
            attention_type=attention_type,
            rope_freq_base=rope_freq_base,
            rope_freq_scale=rope_freq_scale,
            yarn_ext_factor=yarn_ext_factor,
            yarn_attn_factor=yarn_attn_factor,
            yarn_beta_fast=yarn_beta_fast,
            yarn_beta_slow=yarn_beta_slow,
            yarn_orig_ctx=yarn_orig_ctx,
            embedding=embedding,
            offload_kqv=offload_kqv,
            op_offload=op_offload,
            swa_full=swa_full,
            no_perf=no_perf,
            type_k=type_k,
            type_v=type_v,
        )
        self.last_n_tokens_size = last_n_tokens_size
        self.cache = None
        self.lora_base, self.lora_scale, self.lora_path = lora_base, lora_scale, lora_path
        self.spm_infill = spm_infill
        self.chat_format, self.chat_handler, self.draft_model = chat_format, chat_handler, draft_model
        self._chat_handlers: dict[str, Any] = {}
        self._sampler = None
        try:
            with held_interrupt():
                self._open_model(tokenizer, use_cpu_backend)
                if n_ctx == 0:
                    n_ctx = self._model.n_ctx_train()
                    self.n_batch = min(n_ctx, n_batch)
                    self.context_params.n_ctx = n_ctx
                    self.context_params.n_batch = self.n_batch
                    self.context_params.n_ubatch = min(self.n_batch, n_ubatch)
                self._tune(n_threads, n_threads_batch, flash_attn, type_v)
                if pair is None:
                    self._open_parent_context(embedding)
                else:
                    self._open_engine(pair)
                self._add_lora()
                self._prepare(n_batch)
                self._choose_chat_format()
        except BaseException:
            self.close()
            raise

    def _open_model(self, tokenizer: Any, use_cpu_backend: bool) -> None:
        model = runtime.load_model(
            Path(self.model_path), params=self.model_params, use_cpu_backend=use_cpu_backend, verbose=self.verbose
        )
        self._model = self._stack.enter_context(contextlib.closing(model))
        self._is_recurrent = lib.llama_model_is_recurrent(model.model)
        self._is_hybrid = lib.llama_model_is_hybrid(model.model)
        self.tokenizer_ = tokenizer or LlamaTokenizer(self)
        self._vocab = Vocab(model.vocab)

    def _tune(
        self, n_threads: int | None, n_threads_batch: int | None, flash_attn: bool | None, type_v: int | None
    ) -> None:
        params = self.context_params
        given: dict[str, Any] = {
            "n_threads": n_threads or n_threads_batch or None,
            "flash_attn": flash_attn,
            "type_v": type_v,
            "gpu": runtime.offloads(self.model_params.n_gpu_layers),
        }
        if self.model_params.vocab_only:  # llama.cpp aborts when asked for the heads of no layers
            tuning = tune.tune(tune.HeadShape(0, 0, 0), params.n_ctx, native.time_attention, **given)
        else:
            tuning = runtime.tune_model(self._model, params.n_ctx, **given)
        self.n_threads = params.n_threads = tuning.n_threads
        self.n_threads_batch = params.n_threads_batch = n_threads_batch or tuning.n_threads
        params.flash_attn_type = tuning.flash_attn_type
        if self.verbose:
            sys.stderr.write(f"Llama: {tuning.note}\n")

    def _open_parent_context(self, embedding: bool) -> None:
        if embedding:
            self.context_params.n_seq_max = min(self.n_batch, lib.llama_max_parallel_sequences())
            self.context_params.kv_unified = True
        context = internals.LlamaContext(model=self._model, params=self.context_params, verbose=self.verbose)
        self._ctx = self._stack.enter_context(contextlib.closing(context))
        self._engine = None
        self._open_batch(self.context_params.n_ctx)

    def _open_engine(self, pair: Pair) -> None:
        opened = runtime.open_engine(
            self._model, self.context_params, pair, n_gpu_layers=self.model_params.n_gpu_layers
        )
        self._engine = opened.engine
        context = EngineContext(self._engine, self._model, self.context_params, self.verbose)
        self._ctx = self._stack.enter_context(contextlib.closing(context))
        self._stack.callback(opened.keep_costs)
        self._open_batch(1)

    def _open_batch(self, n_seq_max: int) -> None:
        batch = internals.LlamaBatch(n_tokens=self.n_batch, embd=0, n_seq_max=n_seq_max, verbose=self.verbose)
        self._batch = self._stack.enter_context(contextlib.closing(batch))

    def _add_lora(self) -> None:
        self._lora_adapter = None
        if not self.lora_path:
            return
        adapter = lib.llama_adapter_lora_init(self._model.model, self.lora_path.encode("utf-8"))
        if not adapter:
            raise ModelLoadError(f"llama.cpp cannot load the LoRA adapter {self.lora_path}", "lora_path")
        self._lora_adapter = adapter
        self._stack.callback(self._free_lora)
        adapters = (lib.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (ctypes.c_float * 1)(self.lora_scale)
        if lib.llama_set_adapters_lora(self._ctx.ctx, adapters, 1, scales):
            raise ModelLoadError(f"the LoRA adapter {self.lora_path} does not fit the model", "lora_path")

    def _free_lora(self) -> None:
        adapter, self._lora_adapter = self._lora_adapter, None
        lib.llama_adapter_lora_free(adapter)

    def _prepare(self, n_batch: int) -> None:
        self._n_vocab, self._n_ctx = self.n_vocab(), self.n_ctx()
        self._token_nl, self._token_eos = self.token_nl(), self.token_eos()
        self._candidates = internals.LlamaTokenDataArray(n_vocab=self._n_vocab)
        self.n_tokens = 0
        self._requires_eval = True
        self.input_ids = np.zeros(self._n_ctx, dtype=np.intc)
        # Zero pages cost no memory until they are written.
        self.scores = np.zeros((self._n_ctx if self._logits_all else n_batch, self._n_vocab), dtype=np.single)
        self._mirostat_mu = ctypes.c_float(2.0 * 5.0)
        self.metadata = self._model.metadata()
        if self.verbose:
            sys.stderr.write(f"{lib.llama_print_system_info().decode()}\nModel metadata: {self.metadata}\n")

    def _choose_chat_format(self) -> None:
        bos, eos = (self._model.token_get_text(i) if i != -1 else "" for i in (self.token_bos(), self.token_eos()))
        key = "tokenizer.chat_template"
        templates = {
            name.removeprefix("tokenizer."): text for name, text in self.metadata.items() if name.startswith(f"{key}.")
        }
        if key in self.metadata:
            templates["chat_template.default"] = self.metadata[key]
        for name, template in templates.items():
            formatter = chat_formats.Jinja2ChatFormatter(
                template=template, eos_token=eos, bos_token=bos, stop_token_ids=[self.token_eos()]
            )
            self._chat_handlers[name] = formatter.to_chat_handler()
        if self.chat_format is None and self.chat_handler is None:
            if "chat_template.default" in templates:
                guess = chat_formats.guess_chat_format_from_gguf_metadata(self.metadata)
                self.chat_format = guess or "chat_template.default"
            else:
                self.chat_format = "llama-2"
        if self.verbose:
            sys.stderr.write(f"Chat templates: {', '.join(templates) or 'none'}; using {self.chat_format}\n")

    @functools.wraps(LlamaBase.create_chat_completion)
    def create_chat_completion(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        if self._engine is not None and isinstance(self.chat_handler, IMAGE_HANDLERS):
            raise Unsupported(_late_image_handler(self.chat_handler), "chat_handler")
        self._counted = False
        check_messages(messages)
        if not isinstance(self.chat_handler, IMAGE_HANDLERS):  # those tokenize by themselves
            messages = guard_messages(messages, self._vocab.special_texts())
        return super().create_chat_completion(messages, *args, **kwargs)

    @functools.wraps(LlamaBase.tokenize)
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        if not special or not any(sentinel in text for sentinel in SENTINELS):
            ids: list[int] = super().tokenize(text, add_bos, special)
            return ids

        def piece(part: str, parse_special: bool) -> list[int]:
            found: list[int] = self.tokenizer_.tokenize(part.encode("utf-8", "surrogateescape"), False, parse_special)
            return found

        bos = [self.token_bos()] if add_bos and self._model.add_bos_token() else []
        return bos + tokenize_guarded(text.decode("utf-8", "surrogateescape"), piece)

    def __getstate__(self) -> dict[str, Any]:
        self._check_open()
        state: dict[str, Any] = super().__getstate__()
        if not isinstance(self.tokenizer_, LlamaTokenizer):
            state["tokenizer"] = self.tokenizer_
        return state | {
            "draft": self.draft,
            "draft_model_path": self.draft_model_path,
            "draft_rows": self.draft_rows,
        }


def _parent_loop_reason(embedding: bool, vocab_only: bool, draft_model: Any, chat_handler: Any) -> str:
    """The argument because of which the parent's own loop must run, or ""."""
    if embedding:
        return "embedding=True"
    if vocab_only:
        return "vocab_only=True"
    if draft_model is not None:
        return "draft_model="
    if isinstance(chat_handler, IMAGE_HANDLERS):
        return f"chat_handler={type(chat_handler).__name__} (images)"
    return ""


def _check_draft_arguments(draft: Any, model_path: str | None, rows: Any, own_loop: str) -> None:
    if draft is None:
        given = [name for name, value in (("draft_model_path", model_path), ("draft_rows", rows)) if value is not None]
        if given:
            raise ValueError(f"{' and '.join(given)} given without draft: add draft='dflash', or leave it out")
        return
    if draft not in DRAFT_KINDS:
        raise ValueError(f"draft={draft!r} is no kind of drafting: use 'dflash', 'ngram', or None for plain decoding")
    if draft == "ngram" and model_path is not None:
        raise ValueError("draft='ngram' uses no drafter: leave draft_model_path out, or say draft='dflash'")
    if own_loop:
        raise ValueError(f"draft={draft!r} does not go together with {own_loop}: leave one of them out")


def _check_rows(rows: Any, pair: Pair) -> None:
    if rows is None or not pair.copies:
        return
    most, what = MAX_COPY_ROWS, "rows of a copy"
    if pair.drafter is not None:
        most, what = native.inspect(str(pair.drafter))["block_size"] - 1, "this drafter's slots"
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows <= most:
        raise ValueError(f"draft_rows={rows!r}: expected 0 to {most}, {what}, or None for the planner")


def _find_pair(model_path: str, draft: str | None, draft_model_path: str | None) -> Pair:
    """Target and drafter, checked from their headers; a drafter that was asked for and cannot be had raises."""
    if draft is None:
        return resolve_pair(model_path, "off")
    if draft == "ngram":
        return resolve_pair(model_path, "ngram")
    if draft_model_path is not None:
        return resolve_pair(model_path, Path(draft_model_path))
    pair = resolve_pair(model_path, "auto")
    if pair.drafter is None:
        raise IncompatibleDrafter(
            f"{pair.status}; pass draft_model_path= with a drafter made for {Path(model_path).name}, or draft=None",
            "draft_model_path",
        )
    return replace(pair, explicit=True)


def _start_backend(numa: bool | int) -> int:
    lib.llama_backend_init()
    if isinstance(numa, bool):
        numa = lib.GGML_NUMA_STRATEGY_DISTRIBUTE if numa else lib.GGML_NUMA_STRATEGY_DISABLED
    if numa != lib.GGML_NUMA_STRATEGY_DISABLED:
        lib.llama_numa_init(numa)
    return numa


def _late_image_handler(handler: Any) -> str:
    return (
        f"{type(handler).__name__} decodes images past the engine: pass it to Llama(chat_handler=...) with draft=None,"
        " which runs the parent's own loop"
    )
