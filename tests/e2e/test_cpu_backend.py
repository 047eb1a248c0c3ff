"""Our CPU kernels in the real commands and under llama_cpp's own class: who uses them; width changes no bit."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from llama_cpp import _internals

from dflash_local import _native, cpu_backend
from dflash_local.llama import Llama
from dflash_local.runtime import load_model
from e2e.command import FAST, run, target_path
from support.engine_rig import address, greedy, sampled

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the kernels are written with vector extensions")

PROMPT = "Describe a market square on a rainy morning, then list what is sold there."
N_VOCAB = 49152
KERNELS = {"DFLASH_FLASH_ATTN": "auto", "DFLASH_THREADS": "2"}


def generate(*args: str | Path, **env: str) -> dict[str, object]:
    done = run("generate", "--json", "--max-tokens", "48", "-p", PROMPT, *args, env={**KERNELS, **env})
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


class Decoder:
    """A bare context on the embedded target with our kernels."""

    def __init__(self, model: _internals.LlamaModel, n_threads: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 768, 512, 512
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = _internals.LlamaContext(model=model, params=params, verbose=False)

    def logits(self, tokens: Sequence[int], first: int) -> np.ndarray:
        """One batch at positions [first, first + n): [n, n_vocab]."""
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, first + i, 1, 1
            batch.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(self.context.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        rows = llama_cpp.llama_get_logits(self.context.ctx)
        shape = (len(tokens), N_VOCAB)
        return np.ctypeslib.as_array(rows, shape=shape).copy()

    def forget(self, first: int) -> None:
        memory = llama_cpp.llama_get_memory(self.context.ctx)
        assert llama_cpp.llama_memory_seq_rm(memory, 0, first, -1)


@pytest.fixture(scope="module")
def model() -> Iterator[_internals.LlamaModel]:
    assert cpu_backend.choose("dflash", 1)
    loaded = load_model(target_path(), use_cpu_backend=True)
    yield loaded
    loaded.close()


def test_other_models_of_the_process_are_left_alone(model: _internals.LlamaModel, smollm_path: str) -> None:
    assert cpu_backend.uses(address(model.model))
    stock = llama_cpp.Llama(smollm_path, n_ctx=64, verbose=False)
    assert not cpu_backend.uses(address(stock._model.model))
    stock.close()


def test_the_models_weights_are_ours_and_ggmls_where_that_is_wanted(model: _internals.LlamaModel) -> None:
    assert cpu_backend.uses(address(model.model))
    other = load_model(target_path(), use_cpu_backend=False)
    assert not cpu_backend.uses(address(other.model))
    other.close()


@pytest.mark.parametrize("n_before", [0, 40, 300])
def test_every_row_has_the_same_bits_at_every_width_and_number_of_threads(
    model: _internals.LlamaModel, n_before: int
) -> None:
    rng = np.random.default_rng(n_before)
    prompt = [int(token) for token in rng.integers(100, 40000, n_before)]
    rows = [int(token) for token in rng.integers(100, 40000, 32)]
    seen: dict[tuple[int, int], np.ndarray] = {}
    for n_threads in (1, 2, 3):
        decoder = Decoder(model, n_threads)
        if prompt:
            decoder.logits(prompt, 0)
        for width in (1, 2, 3, 5, 8, 15, 32) if n_threads == 2 else (1, 7, 32):
            decoder.forget(n_before)
            parts = [decoder.logits(rows[i : i + width], n_before + i) for i in range(0, 32, width)]
            seen[n_threads, width] = np.concatenate(parts)
        decoder.context.close()
    one = seen[1, 1]
    assert np.isfinite(one).all()
    for key, logits in seen.items():
        assert np.array_equal(logits.view(np.uint32), one.view(np.uint32)), f"threads and width {key}"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft_rows", [7, 3, -1])
def test_draft_and_plain_agree_to_the_bit_without_any_replay(
    model: _internals.LlamaModel, drafter_path: str, temperature: float, draft_rows: int
) -> None:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 768, 256, 256, 8
    params.kv_unified = True
    params.n_threads = params.n_threads_batch = 2
    params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
    pointer = address(model.model)
    drafter = _native.Drafter(drafter_path, str(target_path()), pointer, n_threads=2, device="auto")
    assert drafter.device == cpu_backend.DEVICE
    plain = _native.Engine(pointer, ctypes.addressof(params))
    draft = _native.Engine(pointer, ctypes.addressof(params), drafter)
    prompts = (PROMPT, "Repeat three times: the tide comes in, the tide goes out.", "def fibonacci(n):")
    for prompt in prompts:
        tokens = list(
            model.tokenize(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n".encode(), False, True)
        )
        texts = []
        for engine, rows in ((plain, 0), (draft, draft_rows)):
            engine.begin(tokens, reuse=False)
            sampler = greedy() if temperature == 0.0 else sampled(5, temperature)
            out: list[int] = []
            while len(out) < 64:
                out += engine.round(address(sampler.sampler), draft_rows=rows, max_emit=64 - len(out))
                if llama_cpp.llama_vocab_is_eog(model.vocab, out[-1]):
                    break
            texts.append(out)
        assert texts[0] == texts[1], prompt
        if draft_rows > 0:
            assert draft.stats()["draft_n"] > 0
    draft.close()
    plain.close()


def test_the_command_uses_them_and_says_so() -> None:
    ours = run("generate", "--verbose", "--max-tokens", "2", "-p", "Hi", env=KERNELS)
    assert "CPU kernels: ours" in ours.stderr
    theirs = run("generate", "--verbose", "--max-tokens", "2", "-p", "Hi", "--cpu-backend", "ggml", env=KERNELS)
    assert "CPU kernels: those of ggml" in theirs.stderr
    assert "DFlash" not in theirs.stderr


def test_the_text_is_the_same_with_and_without_a_drafter() -> None:
    for sampling in (("--temperature", "0"), ("--temperature", "0.9", "--seed", "3")):
        texts = {
            str(generate("-d", draft, *rows, *sampling)["text"])
            for draft, rows in (("off", ()), ("auto", ()), ("auto", ("--draft-rows", "7")), ("ngram", ()))
        }
        assert len(texts) == 1


def test_switched_off_by_the_environment() -> None:
    for name in ("0", "ggml"):
        done = run("generate", "--verbose", "--max-tokens", "2", "-p", "Hi", env={"DFLASH_CPU_BACKEND": name})
        assert done.returncode == 0, done.stderr
        assert "CPU kernels: those of ggml" in done.stderr


def test_a_bad_choice_is_wrong_usage() -> None:
    done = run("generate", "--cpu-backend", "fast", "-p", "Hi")
    assert done.returncode == 2
    assert "'fast' is no CPU backend, expected auto, dflash or ggml" in " ".join(done.stderr.replace("│", " ").split())


def test_a_bad_environment_is_named_by_the_class(smollm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_backend.ENVIRONMENT, "fast")
    with pytest.raises(ValueError, match="'fast' is no CPU backend"):
        Llama(smollm_path, n_ctx=64, verbose=False)


def test_asked_for_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_backend, "library", lambda: tmp_path / "none.so")
    monkeypatch.setattr(_native, "cpu_backend_device", lambda: 0)
    with pytest.raises(ValueError, match="there are no CPU kernels of ours for this machine"):
        cpu_backend.choose("dflash", 1)
    assert not cpu_backend.choose("auto", 1)


def test_declined_where_they_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([(1.3, 1.0)] * 3 + [(1.3, 1.0), (1.3, 1.0), (0.5, 1.0)])
    monkeypatch.setattr(cpu_backend, "timings", lambda _threads: next(seen))
    cpu_backend.pays.cache_clear()
    assert not cpu_backend.choose("auto", 1)
    assert not cpu_backend.choose("auto", 1), "timed once"
    assert cpu_backend.choose("dflash", 1)
    cpu_backend.pays.cache_clear()
    assert cpu_backend.choose("auto", 1), "one quiet moment of three is enough"
    assert not cpu_backend.choose("ggml", 1)
    cpu_backend.pays.cache_clear()


def test_the_class_uses_them(smollm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for choice, draft in (("dflash", None), ("dflash", "dflash"), ("ggml", None)):
        monkeypatch.setenv(cpu_backend.ENVIRONMENT, choice)
        llm = Llama(smollm_path, n_ctx=512, n_threads=2, draft=draft, verbose=False)
        assert cpu_backend.uses(address(llm._model.model)) == (choice == "dflash")
        assert llm.model_params.n_gpu_layers == 0, "the user's settings stay what they were"
        texts.append(llm(PROMPT, max_tokens=40, temperature=0.0)["choices"][0]["text"])
        llm.close()
    assert texts[0] == texts[1]


STOCK = """
import sys
import llama_cpp
from dflash_local import cpu_backend
if sys.argv[2] == "load":
    assert cpu_backend.load()
llm = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=2, n_threads_batch=2, flash_attn=True, verbose=True)
print(llm("The capital of France is", max_tokens=16, temperature=0.0)["choices"][0]["text"])
"""


def test_llama_cpp_pythons_own_class_gains_from_the_library() -> None:
    done = {
        how: subprocess.run(
            [sys.executable, "-c", STOCK, str(target_path()), how], capture_output=True, text=True, timeout=120
        )
        for how in ("load", "leave")
    }
    assert done["load"].returncode == 0, done["load"].stderr
    assert "DFlash_Packed model buffer size" in done["load"].stderr
    assert "DFlash" not in done["leave"].stderr
    assert "Paris" in done["load"].stdout


@pytest.mark.parametrize("type_k", ["f16", "q8_0", "q4_0"])
def test_caches_that_they_know_and_that_they_do_not(
    smollm_path: str, monkeypatch: pytest.MonkeyPatch, type_k: str
) -> None:
    types = {"f16": llama_cpp.GGML_TYPE_F16, "q8_0": llama_cpp.GGML_TYPE_Q8_0, "q4_0": llama_cpp.GGML_TYPE_Q4_0}
    monkeypatch.setenv(cpu_backend.ENVIRONMENT, "dflash")
    llm = Llama(
        smollm_path, n_ctx=256, n_threads=1, type_k=types[type_k], type_v=types[type_k], draft=None, verbose=False
    )
    answer = llm.create_chat_completion([{"role": "user", "content": "Name the capital of France."}], temperature=0.0)
    assert "Paris" in answer["choices"][0]["message"]["content"]
    llm.close()


def test_flash_attention_off_works_too() -> None:
    assert FAST["DFLASH_FLASH_ATTN"] == "off"
    off = run("generate", "--json", "--max-tokens", "12", "--temperature", "0", "-p", "Name the capital of France.")
    assert "Paris" in json.loads(off.stdout)["text"]
