"""Without a drafter, Llama is llama_cpp.Llama: the same attributes, signatures, texts and numbers."""

from __future__ import annotations

import inspect
from typing import Any

import llama_cpp
import numpy as np
import pytest

from dflash_local.llama import Llama
from support.llama_options import MODEL_OPTIONS

PROMPT = "The capital of France is"
OURS_ONLY = {"draft", "draft_model_path", "draft_rows"}
MEASURED = {"n_threads", "n_threads_batch", "flash_attn"}


def shape(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_init_takes_the_parents_arguments() -> None:
    parents = inspect.signature(llama_cpp.Llama.__init__).parameters
    ours = inspect.signature(Llama.__init__).parameters
    assert [name for name in ours if name not in OURS_ONLY] == list(parents)
    for name, parameter in parents.items():
        assert ours[name].kind == parameter.kind
        assert ours[name].default == (None if name in MEASURED else parameter.default), name
    for name in OURS_ONLY:
        assert ours[name].kind == inspect.Parameter.KEYWORD_ONLY
        assert ours[name].default is None


def test_methods_have_the_parents_signatures() -> None:
    for name, method in inspect.getmembers(llama_cpp.Llama, inspect.isroutine):
        if not name.startswith("_"):
            assert shape(getattr(Llama, name)) == shape(method), name


def test_instances_have_the_parents_attributes(plain: Llama, parent: Any) -> None:
    assert isinstance(plain, llama_cpp.Llama)
    assert set(vars(parent)) <= set(vars(plain))
    for name in ("model_path", "n_batch", "n_threads", "n_threads_batch", "chat_format", "metadata", "_n_ctx"):
        assert getattr(plain, name) == getattr(parent, name), name
    assert plain._chat_handlers.keys() == parent._chat_handlers.keys()
    assert plain.input_ids.dtype == parent.input_ids.dtype
    assert plain.scores.shape == parent.scores.shape


@pytest.mark.parametrize("prompt", [PROMPT, "def fibonacci(n):", "1, 2, 3, 4,"])
def test_same_greedy_text(plain: Llama, parent: Any, prompt: str) -> None:
    parent.reset()
    expected = parent(prompt, max_tokens=24, temperature=0)
    answer = plain(prompt, max_tokens=24, temperature=0)
    assert answer["choices"] == expected["choices"]
    assert answer["usage"] == expected["usage"]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.9, "seed": 7},
        {"temperature": 0.7, "seed": 7, "repeat_penalty": 1.2, "frequency_penalty": 0.1},
        {"mirostat_mode": 1, "seed": 3},
        {"mirostat_mode": 2, "seed": 3},
        {"temperature": 0, "logit_bias": {"7042": -100.0}},
        {"temperature": 1.1},
    ],
)
def test_same_sampled_text(plain: Llama, parent: Any, options: dict[str, Any]) -> None:
    parent.reset()
    parent.set_seed(llama_cpp.LLAMA_DEFAULT_SEED)
    expected = parent(PROMPT, max_tokens=16, **options)
    assert plain(PROMPT, max_tokens=16, **options)["choices"] == expected["choices"]


def test_same_stop_strings_and_echo(plain: Llama, parent: Any) -> None:
    parent.reset()
    options = {"max_tokens": 40, "temperature": 0, "stop": ["million", "zebra"], "echo": True}
    expected = parent(PROMPT, **options)["choices"]
    answer = plain(PROMPT, **options)["choices"]
    assert answer == expected
    assert answer[0]["finish_reason"] == "stop"
    assert "million" not in answer[0]["text"]


def test_same_stream(plain: Llama, parent: Any) -> None:
    parent.reset()
    expected = [chunk["choices"] for chunk in parent(PROMPT, max_tokens=12, temperature=0, stream=True)]
    assert [chunk["choices"] for chunk in plain(PROMPT, max_tokens=12, temperature=0, stream=True)] == expected


def test_generate_counts_evaluated_tokens_as_the_parent(plain: Llama, parent: Any) -> None:
    parent.reset()
    prompt = parent.tokenize(PROMPT.encode())
    traces = []
    for llm in (parent, plain):
        trace = []
        generator = llm.generate(prompt, temp=0)
        for token in generator:
            trace.append((token, llm.n_tokens, llm._input_ids.tolist()))
            if len(trace) == 6:
                break
        generator.close()
        trace.append((-1, llm.n_tokens, llm._input_ids.tolist()))
        more = llm.generate([trace[5][0], *prompt], temp=0, reset=False)
        trace.append((next(more), llm.n_tokens, llm._input_ids.tolist()))
        more.close()
        traces.append(trace)
    assert traces[0] == traces[1]


def test_stopping_criteria_see_what_the_parent_shows(plain: Llama, parent: Any) -> None:
    parent.reset()
    prompt = parent.tokenize(PROMPT.encode())
    seen: dict[int, list[list[int]]] = {0: [], 1: []}
    answers = []
    for index, llm in enumerate((parent, plain)):

        def long_enough(ids: Any, _logits: Any, seen: list[list[int]] = seen[index]) -> bool:
            seen.append(ids.tolist())
            return len(ids) >= len(prompt) + 5

        criteria = llama_cpp.StoppingCriteriaList([long_enough])
        answers.append(llm(PROMPT, max_tokens=20, temperature=0, stopping_criteria=criteria)["choices"])
    assert seen[0] == seen[1]
    assert answers[0] == answers[1]
    assert answers[0][0]["finish_reason"] == "stop"


def test_eval_and_sample_by_hand(plain: Llama, parent: Any) -> None:
    parent.reset()
    prompt = parent.tokenize(PROMPT.encode())
    texts = []
    for llm in (parent, plain):
        llm._sampler = None
        llm.reset()
        llm.eval(prompt)
        ids = []
        for _ in range(8):
            ids.append(llm.sample(temp=0))
            llm.eval(ids[-1:])
        assert llm.n_tokens == len(prompt) + 8
        llm.n_tokens = len(prompt) + 2  # rewinding by hand
        llm.eval([5, 6])
        texts.append((ids, llm.sample(temp=0), llm.eval_tokens))
    assert texts[0] == texts[1]


@pytest.fixture(scope="module")
def scoring(smollm_path: str) -> Any:
    options = MODEL_OPTIONS | {"n_ctx": 128, "logits_all": True, "n_batch": 16}
    return Llama(smollm_path, **options), llama_cpp.Llama(smollm_path, n_threads_batch=1, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_same_logprobs(scoring: Any, stream: bool, echo: bool) -> None:
    text = "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy"
    answers = []
    for llm in scoring:
        llm.reset()
        result = llm(text, max_tokens=5, temperature=0, logprobs=3, echo=echo, stream=stream)
        choices = [chunk["choices"][0] for chunk in result] if stream else [result["choices"][0]]
        answers.append([choice["logprobs"] for choice in choices if choice["logprobs"]])
    for ours, theirs in zip(*answers, strict=True):
        assert ours["tokens"] == theirs["tokens"]
        assert [list(top or []) for top in ours["top_logprobs"]] == [list(top or []) for top in theirs["top_logprobs"]]
        for mine, expected in zip(ours["token_logprobs"], theirs["token_logprobs"], strict=True):
            assert mine == pytest.approx(expected, abs=1e-4)


def test_scores_of_every_evaluated_row(scoring: Any) -> None:
    ours, theirs = scoring
    ids = theirs.tokenize(b"one two three four five six seven " * 3)
    for llm in (ours, theirs):
        llm.reset()
        llm.eval(ids)
    assert len(ids) > 16
    np.testing.assert_allclose(ours._scores, theirs._scores, atol=1e-4)
    sampled = [[llm.sample(temp=0, idx=index) for index in range(len(ids) - 2, len(ids))] for llm in (ours, theirs)]
    assert sampled[0] == sampled[1]


def test_embeddings_run_as_in_the_parent(smollm_path: str) -> None:
    options = MODEL_OPTIONS | {"n_ctx": 64, "embedding": True, "n_batch": 64}
    vectors = []
    for kind in (Llama, llama_cpp.Llama):
        llm = kind(smollm_path, **options)
        vectors.append(np.array(llm.create_embedding("hello world")["data"][0]["embedding"]))
        llm.close()
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-4)


def test_the_models_own_context(smollm_path: str) -> None:
    llm = Llama(smollm_path, **MODEL_OPTIONS | {"n_ctx": 0})
    assert (llm.n_ctx(), llm.n_batch, len(llm.input_ids)) == (8192, 512, 8192)
    llm.close()


def test_vocabulary_alone(smollm_path: str, parent: Any) -> None:
    llm = Llama(smollm_path, vocab_only=True, verbose=False)
    assert llm.tokenize(b"hello world") == parent.tokenize(b"hello world")
    assert llm.draft_stats["draft_status"] == "off"
    llm.close()


def test_the_parents_draft_model_runs_in_the_parents_loop(smollm_path: str, parent: Any) -> None:
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    llm = Llama(smollm_path, draft_model=LlamaPromptLookupDecoding(num_pred_tokens=3), **MODEL_OPTIONS)
    parent.reset()
    expected = parent("1, 2, 3, 4, 1, 2, 3, 4,", max_tokens=12, temperature=0)["choices"]
    assert llm("1, 2, 3, 4, 1, 2, 3, 4,", max_tokens=12, temperature=0)["choices"] == expected
    llm.close()
