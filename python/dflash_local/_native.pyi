"""Types of the native module. Addresses (`int`) are those of llama.cpp objects made by `llama_cpp` in this process."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

class PairMismatch(TypedDict):
    field: str
    drafter_value: str
    target_value: str
    advice: str

class DraftMemory(TypedDict):
    weights: int
    context: int
    compute: int
    taps: int
    total: int

class RunStats(TypedDict):
    """Counters of the last run; `predicted_n == draft_rounds + plain_rounds + draft_n_accepted`, always."""

    prompt_n: int  # prompt tokens decoded (without reused ones)
    reused_n: int  # prompt tokens whose K/V was already there
    prompt_ms: float
    predicted_n: int
    predicted_ms: float  # the prompt's decode not included
    draft_rounds: int
    plain_rounds: int
    draft_n: int
    draft_n_accepted: int
    copy_rounds: int  # draft rounds with copied rows
    copy_n_accepted: int  # accepted rows that were copied
    accepted_per_slot: list[int]
    plain_estimate_ms: float  # what a plain round would take here by the measured costs, 0: unknown
    plain_round_ms: float  # median, 0 where there was none
    draft_round_ms: float  # median, 0 where there was none
    target_ms: float  # sums over the run's rounds: llama_decode,
    draft_ms: float  # draft graph,
    sample_ms: float  # samplers,
    other_ms: float  # and the rest
    draft_context: int  # positions in the drafter's context
    declined: str  # why the planner does not draft now; "" while it drafts

class WidthCost(TypedDict):
    rows: int
    base_ms: float
    slope_ms: float  # per cell of context

class CostTable(TypedDict):
    widths: list[WidthCost]  # of target batches, ascending rows
    draft_ms: float  # a draft pass with all slots, 0: unknown
    draft_slot_ms: float  # what one slot less saves
    draft_slots: int  # all slots, 0: unknown
    rest_ms: float  # a round besides target and draft pass, per sampled token
    leaf_ms: float  # the same, per leaf of a tree beyond the first

class Replay(TypedDict):
    tokens: int
    exact: int
    first_mismatch: int  # index into the run's emitted tokens, -1 if none

def inspect(path: str) -> dict[str, Any]:
    """What a GGUF says of itself, from its header alone.

    Keys: path, size (bytes, split parts included), kind ("target" | "drafter" | "other"), architecture, name, n_layer,
    n_embd, n_vocab, n_tensors, tensor_types {name: count}, tensor_bytes {name: bytes}, problem ("" or why it cannot run
    here) and problem_field. For a target also n_ctx_train; for a drafter family, block_size, tap_inputs, mask_token_id,
    sliding_window, layer_sliding, layer_causal, own_head, own_embeddings, n_vocab_head, thinks (trained on texts with
    thinking? None where the file does not say), acceptance_slots (slots with priors of the planner, None: no priors),
    acceptance_problem ("" or why the priors that it holds are not used). Numbers are None and lists empty where there
    is a problem. Strings of the file are printable. Raises ModelLoadError.
    """

def check_pair(drafter_path: str, target_path: str) -> list[PairMismatch]:
    """Fields in which drafter and target do not fit. Raises ModelLoadError, IncompatibleDrafter."""

def estimate_memory(
    drafter_path: str,
    target_path: str,
    *,
    n_ctx: int = 0,
    n_batch: int = 512,
    device: str = "",
    layers_on_device: bool = False,
) -> DraftMemory:
    """What drafting will add, from the files alone. `device`: the drafter's, a ggml device name or "" for the CPU;
    `layers_on_device`: layers of the target lie on a device, where tapping takes more."""

def time_attention(
    n_head: int,
    n_head_kv: int,
    head_dim: int,
    n_kv: int,
    n_rows: int,
    flash: bool,
    n_threads: int,
    budget_ms: float,
    ours: bool = False,
) -> float:
    """Median milliseconds of one attention operation of these shapes on the CPU, F16 K/V. `ours`: by our CPU kernels
    where they are loaded, flash attention only."""

def head_device(model: int) -> str:
    """Name of the device that holds a loaded llama_model's head, "" for ggml's CPU."""

def time_matmul(
    type: str, n_in: int, n_out: int, n_rows: int, n_threads: int, budget_ms: float, ours: bool = False
) -> tuple[float, bool]:
    """Median milliseconds of one multiplication of n_rows rows by weights of a ggml type (q4_0, ...) on the CPU, and
    whether the CPU has repacked kernels for it. Raises ValueError, Unsupported."""

def check_costs(table: CostTable) -> CostTable:
    """A copy. Raises ValueError naming what is missing, no number, negative, not finite or out of order."""

def mapped_libraries() -> list[str]:
    """Files of libllama mapped into this process; more than one is a fault."""

def gpu_device() -> str:
    """Name of the first GPU in the registry that libllama uses, "" where there is none."""

def load_cpu_backend(path: str) -> bool:
    """Loads the library of CPU kernels once; False where it cannot be opened or has none for this CPU."""

def hide_cpu_backend(hidden: bool) -> bool:
    """Hidden, they serve only models that were loaded onto them by name, else every model that the process loads.

    Returns what held before. Raises Unsupported."""

def cpu_backend_device() -> int:
    """Address of the kernels' ggml device, 0 while the library is not loaded."""

class Device(TypedDict):
    name: str
    description: str
    type: str  # cpu, gpu, igpu or accelerator
    memory: int  # bytes

def devices() -> list[Device]:
    """Devices in the registry that libllama uses."""

class CopyIndex:
    """For tests and benchmarks: proposes what followed where the end of the text stood before."""

    def __init__(self) -> None: ...
    def sync(self, tokens: Sequence[int]) -> None: ...
    def add_past(self, tokens: Sequence[int]) -> None: ...
    def propose(self, n: int) -> tuple[list[int], int, int, int]:
        """(tokens, match_length, n_sources, n_agreeing); no tokens: nothing found."""

class GrammarAhead:
    """For tests and benchmarks: the grammar in a sampler chain, looked ahead without changing the chain."""

    def __init__(self, sampler: int, vocab: int, *, patience_ms: float = 3.0) -> None:
        """Addresses of a llama_sampler, which must live on, and a llama_vocab. Calls of `forced` that take longer than
        `patience_ms` stop, and become rare. Raises ValueError without a grammar."""

    def allowed(self, tokens: Sequence[int]) -> list[bool]: ...
    def accept(self, token: int) -> None:
        """Raises ValueError where the grammar forbids the token."""

    def rewind(self) -> None: ...
    def forced(self, n: int, written: Sequence[int] = ()) -> list[int]:
        """Tokens that the grammar forces; optional white space is guessed from `written`, the text before."""

class DraftAcceptance:
    """For tests and benchmarks: probabilities that candidates are taken, learned online."""

    def __init__(self) -> None: ...
    def set_priors(self, values: Sequence[float]) -> None:
        """Weights to start from, as `priors` gives them. Raises ValueError saying what is wrong with them."""

    def priors(self) -> list[float]: ...
    def probs(self, ids: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32]) -> list[float]:
        """Of candidates as `Drafter.propose` gives them, slot by slot."""

    def observe(self, ids: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32], slot: int, token: int) -> None:
        """The target said `token` in this slot, after an accepted path."""

def grow_tree(
    ids: npt.NDArray[np.int32], probs: npt.NDArray[np.float32], *, max_nodes: int, max_leaves: int = 1
) -> tuple[list[int], list[int]]:
    """For tests and benchmarks: the nodes of a draft tree, likeliest paths first, as (tokens, parents); parent -1 is
    the anchor. `probs`: [slots, top_k], at most 1 in sum per slot."""

class PlanningTimes(TypedDict):
    choose_us: float
    plan_us: float
    observe_us: float

def time_planning(
    *, n_slots: int = 7, top_k: int = 8, max_leaves: int = 1, chain: int = 0, n_rounds: int = 1000
) -> PlanningTimes:
    """For benchmarks: median microseconds of the planner's decisions in made-up rounds in which drafting pays; `chain`:
    copied tokens on offer in every second one. Raises ValueError."""

class Drafter:
    def __init__(
        self,
        drafter_path: str,
        target_path: str,
        model: int,
        *,
        n_ctx: int = 0,
        n_threads: int = 1,
        top_k: int = 8,
        device: str = "",
    ) -> None:
        """`model`: address of the loaded target's llama_model; `device`: a ggml device name, "" for the CPU, "auto"
        for where the target's head lies. Raises Unsupported where the device lacks an operation of the draft graph."""

    block_size: int
    feature_size: int
    name: str
    device: str  # ggml's name of it
    acceptance_problem: str  # "" or why the planner's priors in its file are not used
    def memory(self) -> DraftMemory: ...
    def propose(
        self, pos0: int, taps: npt.NDArray[np.float32], anchor: int, *, n_slots: int = 65536
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """For tests: fresh context, injects taps [n, feature_size] at pos0, drafts one block.
        Returns ids and log-probabilities, both [slots, top_k], best first; slots: block_size - 1, or
        fewer, but at least n_slots, where fewer were asked for."""

class Engine:
    """A target with its context and perhaps a drafter; one conversation. Not thread-safe but for `cancel`."""

    def __init__(
        self,
        model: int,
        context_params: int,
        drafter: Drafter | None = None,
        *,
        tap_mode: str = "auto",
        copies: bool = True,
    ) -> None:
        """`context_params`: address of a llama_context_params (its callbacks are replaced); tap_mode: auto, callback or
        layer_input; copies: draft what repeats itself in the text. Raises IncompatibleDrafter (the target has no usable
        taps), OutOfMemory, Unsupported."""

    ctx: int  # address of the llama_context, 0 after close
    n_ctx: int
    n_batch: int
    max_leaves: int  # of a draft tree; 1: chains only (recurrent state, windows, or a context of one sequence)
    tap_mode: str  # "" without a drafter
    def close(self) -> None: ...
    def refuse_if_busy(self) -> None:
        """Raises Unsupported while a call of another thread runs."""

    # The conversation. Committed tokens are `tokens`; the first `n_decoded` of them have K/V.
    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """A copy of the committed tokens."""
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_decoded(self) -> int:
        """Also true inside `on_sample`: rows up to and including the one being sampled count as decoded."""

    def begin(self, prompt: Sequence[int], reuse: bool = True) -> int:
        """Makes `prompt` the conversation: keeps the K/V of the common prefix, drops the rest, starts a run
        (statistics). Returns the number of tokens kept. Raises ContextOverflow (prompt >= n_ctx), ValueError (empty,
        ids out of range). At least the last prompt token is decoded again, for its logits; the last two
        where all were decoded before."""

    def prefill(self) -> bool:
        """Decodes the next chunk (n_batch) of undecoded prompt tokens, all but what the first round needs. True while
        chunks remain. Raises Cancelled, DecodeError, KeyboardInterrupt; the conversation stays consistent."""

    def round(
        self,
        sampler: int,
        *,
        draft_rows: int = -1,
        draft_leaves: int = 1,
        max_emit: int = 1 << 30,
        all_logits: bool = False,
        on_sample: Callable[[], None] | None = None,
    ) -> list[int]:
        """One round: plain or draft. draft_rows -1: the planner decides (auto), 0: plain, n: verify n drafted rows.
        With draft_leaves > 1 these are a tree with at most that many leaves (and at most max_leaves), else a chain.
        Samples with the llama_sampler at address `sampler` (accepts included), commits, returns the emitted tokens
        (1 or more, at most max_emit; an end-of-generation token ends the round and is emitted and committed too).
        `all_logits` keeps the logits of every row, waiting prompt tokens included, else of those that emitted.
        `on_sample` is called before each sampled node, with `tokens`/`n_decoded` true. Calls `prefill` first if needed.
        Raises as `prefill`, ContextOverflow where no cell is left; after an exception nothing of the round remains."""

    def truncate(self, n: int) -> None:
        """Keeps the first n committed tokens; counters follow (a round cut short counts only what is kept)."""

    def append(self, tokens: Sequence[int]) -> None:
        """Adds tokens after the committed ones, as more prompt."""

    def add_past(self, tokens: Sequence[int]) -> None:
        """Text of an earlier conversation, to copy from."""

    def reset(self) -> None: ...
    def cancel(self) -> None:
        """From any thread: the running call raises Cancelled as soon as it can."""

    def logits(self, row: int) -> npt.NDArray[np.float32]:
        """Logits of a kept row of the last decode, copied: row 0 is the first kept output row, -1 the last."""
    def sample(self, sampler: int, row: int = -1) -> int:
        """Samples from a row as `logits` counts them (accept included); the conversation stays as it is."""
    def taps(self) -> npt.NDArray[np.float32]:
        """Copy of the hidden states of the last tapped decode, [n_rows, feature_size]; rejected rows included."""
    def eval(self, tokens: Sequence[int], all_logits: bool = False) -> None:
        """Appends tokens and decodes them with those that wait, at most n_batch in all, taps included."""

    def stats(self) -> RunStats: ...
    def rounds(self) -> list[tuple[int, int]]:
        """The run's rounds: (rows decoded, tokens emitted); the prompt's first token is (1, 1)."""
    def drafted(self) -> list[tuple[str, list[int]]]:
        """Of each of these what it was drafted from, and the nodes verified at depths 1, 2, ...: "plain", "copy",
        "grammar" (forced text), or "drafter" wherever a draft pass was made, one that had nothing verified too. Rounds
        that a restored state brought are left out."""
    def replay(self, sampler: int) -> Replay:
        """Proof: decodes the whole conversation anew in the same chunks, row counts and trees, dummy rows in the place
        of rejected ones, with a fresh sampler of the same settings; counts equal ids. The conversation is restored."""

    def save(self) -> bytes: ...
    def restore(self, state: bytes) -> None:
        """Raises ValueError on bytes of another model, drafter or version; then the conversation is unchanged."""

    def draft_memory(self) -> DraftMemory: ...
    def time_batch(self, n_rows: int) -> float:
        """Milliseconds of one target batch of dummy rows after the decoded ones, which are removed again; the
        conversation stays. Raises ValueError (no room), Unsupported (recurrent state behind it), KeyboardInterrupt."""
    def time_costs(self, budget_ms: float) -> CostTable:
        """The prior of the cost model, in about the time of 40 one-row batches and at most a little over budget_ms.
        Leaves the engine as it was; a failing draft pass ends drafting. Raises ValueError where something is decoded
        already, DecodeError, Cancelled, KeyboardInterrupt."""
    def set_costs(self, table: CostTable) -> None:
        """What rounds cost here, as a prior. Raises ValueError naming the key at fault."""
    def acceptance(self) -> list[float]:
        """For tests and benchmarks: what the planner has learned of the drafter, as `DraftAcceptance.priors`."""
    def costs(self) -> CostTable:
        """What rounds cost as far as it was learned, the load of now taken out; no widths: nothing is known."""
