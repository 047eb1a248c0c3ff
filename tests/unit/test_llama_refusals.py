"""What Llama refuses, in words: arguments, closed models, other uses."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import llama_cpp
import numpy as np
import pytest

import dflash_local._errors as errors
from dflash_local.llama import Llama
from support.llama_options import MODEL_OPTIONS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draft": "eagle"}, "draft='eagle' is no kind of drafting: use 'dflash'"),
        ({"draft": True}, "draft=True is no kind of drafting"),
        ({"draft_model_path": "x.gguf"}, "draft_model_path given without draft"),
        ({"draft_rows": 3}, "draft_rows given without draft"),
        ({"draft": "dflash", "draft_model": object()}, "draft='dflash' does not go together with draft_model="),
        ({"draft": "dflash", "embedding": True}, "does not go together with embedding=True"),
        ({"draft": "dflash", "vocab_only": True}, "does not go together with vocab_only=True"),
        ({"draft": "dflash", "draft_rows": -1}, "draft_rows=-1: expected 0 to 7"),
        ({"draft": "dflash", "draft_rows": 8}, "draft_rows=8: expected 0 to 7"),
        ({"draft": "dflash", "draft_rows": 1.5}, r"draft_rows=1.5: expected 0 to 7"),
        ({"n_threads": -2}, "n_threads is -2"),
        ({"type_v": 8, "flash_attn": False}, "quantized V"),
        ({"tensor_split": [0.1] * 1000}, "tensor_split names 1000 devices"),
        ({"kv_overrides": {"a": [1]}}, "kv_overrides.'a'.: a list, expected bool, int, float or str"),
        ({"kv_overrides": {"a": "x" * 128}}, "kv_overrides.'a'.: 128 bytes, at most 127 fit"),
        ({"kv_overrides": {"k" * 128: 1}}, "kv_overrides: key of 128 bytes"),
    ],
)
def test_arguments_are_refused(smollm_path: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Llama(smollm_path, verbose=False, **options)


def test_images_and_drafting_are_refused(smollm_path: str) -> None:
    handler = llama_cpp.llama_chat_format.Llava15ChatHandler.__new__(llama_cpp.llama_chat_format.Llava15ChatHandler)
    with pytest.raises(ValueError, match=r"chat_handler=Llava15ChatHandler \(images\)"):
        Llama(smollm_path, draft="dflash", chat_handler=handler, verbose=False)


def test_an_image_handler_set_later_is_refused(plain: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = llama_cpp.llama_chat_format.Llava15ChatHandler.__new__(llama_cpp.llama_chat_format.Llava15ChatHandler)
    monkeypatch.setattr(plain, "chat_handler", handler)
    with pytest.raises(errors.Unsupported, match="pass it to Llama"):
        plain.create_chat_completion([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"temperature": float("nan")}, "temp=nan: expected a finite number"),
        ({"top_p": "0.9"}, "top_p='0.9': expected a number"),
        ({"stop": 5}, "stop=5: expected a text or a list of texts"),
        ({"stop": ["a", 5]}, "expected a text or a list of texts"),
        ({"seed": 2**40}, "seed=1099511627776: expected an integer from 0 to 4294967295"),
        ({"seed": 1.0}, "seed=1.0: expected an integer"),
        ({"max_tokens": 2.5}, "max_tokens=2.5: expected an integer"),
    ],
)
def test_completion_arguments_are_refused(plain: Llama, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plain("hi", **arguments)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hi", "messages='hi': expected a list such as"),
        ({"role": "user", "content": "hi"}, "expected a list such as"),
        (["hi"], r"messages\[0\]='hi': expected an object such as"),
        ([{"content": "hi"}], "expected an object such as"),
    ],
)
def test_messages_are_refused(plain: Llama, messages: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plain.create_chat_completion(messages)


def test_closing_while_another_thread_decodes_is_refused(smollm_path: str) -> None:
    llm = Llama(smollm_path, **MODEL_OPTIONS)
    inside, go_on = threading.Event(), threading.Event()

    def wait(_ids: Any, scores: Any) -> Any:
        inside.set()
        go_on.wait(60)
        return scores

    processors = llama_cpp.LogitsProcessorList([wait])
    thread = threading.Thread(target=lambda: llm("hi", max_tokens=1, logits_processor=processors))
    thread.start()
    assert inside.wait(60)
    with pytest.raises(errors.Unsupported, match="is in use"):
        llm.close()
    go_on.set()
    thread.join()
    llm.close()


def test_unknown_arguments_are_named(smollm_path: str) -> None:
    with pytest.warns(RuntimeWarning, match="Llama takes no argument drafter: ignored"):
        Llama(smollm_path, vocab_only=True, verbose=False, drafter="x").close()


def test_missing_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Model path does not exist: /no/such\.gguf"):
        Llama("/no/such.gguf")


def test_a_malformed_model_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF\x03")
    with pytest.raises(errors.ModelLoadError):
        Llama(str(path), verbose=False)


def test_a_drafter_is_no_target(drafter_path: str) -> None:
    with pytest.raises(errors.ModelLoadError, match="is a DFlash drafter, not a target"):
        Llama(drafter_path, verbose=False)


def test_a_target_is_no_drafter(smollm_path: str) -> None:
    with pytest.raises(errors.IncompatibleDrafter, match=r"is no DFlash drafter"):
        Llama(smollm_path, draft="dflash", draft_model_path=smollm_path, verbose=False)


def test_no_drafter_known_says_what_to_do(smollm_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash_local.pairs.resolve.packaged_drafters", lambda _info: [])
    with pytest.raises(errors.IncompatibleDrafter, match=r"pass draft_model_path= .* or draft=None") as caught:
        Llama(smollm_path, draft="dflash", verbose=False)
    assert caught.value.field == "draft_model_path"


def test_a_missing_adapter_is_refused(smollm_path: str) -> None:
    with pytest.raises(errors.ModelLoadError, match="LoRA adapter /no/such"):
        Llama(smollm_path, lora_path="/no/such.gguf", **MODEL_OPTIONS)


def test_a_bad_grammar_is_refused(plain: Llama) -> None:
    for text in ("root ::= (", "other ::= 'a'", "root ::= missing"):
        grammar = llama_cpp.LlamaGrammar.from_string(text, verbose=False)
        with pytest.raises(errors.GrammarError, match="cannot compile this grammar"):
            plain("x", grammar=grammar)
    assert plain("The capital of France is", max_tokens=1, temperature=0)["choices"][0]["text"] == " Paris"


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_dead_end_is_an_error(plain: Llama, temperature: float) -> None:
    """llama.cpp would abort: the grammar allows one word, the processor another."""

    def only(_ids: Any, scores: Any) -> Any:
        forced = np.full_like(scores, -np.inf)
        forced[42] = 0.0
        return forced

    options: dict[str, Any] = {
        "grammar": llama_cpp.LlamaGrammar.from_string('root ::= "yes"', verbose=False),
        "logits_processor": llama_cpp.LogitsProcessorList([only]),
    }
    with pytest.raises(errors.DecodeError, match="no token is left to choose"):
        plain("x", temperature=temperature, **options)
    plain.eval([1, 2, 3])
    with pytest.raises(errors.DecodeError, match="no token is left to choose"):
        plain.sample(temp=temperature, **options)


def test_embedding_needs_its_own_model(plain: Llama) -> None:
    with pytest.raises(errors.Unsupported, match="embedding=True"):
        plain.create_embedding("hello")


@pytest.mark.parametrize("call", ["kv_cache_seq_cp", "kv_cache_seq_keep", "kv_cache_seq_shift", "decode", "encode"])
def test_changes_behind_the_engine_are_refused(plain: Llama, call: str) -> None:
    arguments = {"kv_cache_seq_cp": 4, "kv_cache_seq_keep": 1, "kv_cache_seq_shift": 4, "decode": 1, "encode": 1}[call]
    with pytest.raises(errors.Unsupported, match=rf"_ctx\.{call} would change"):
        getattr(plain._ctx, call)(*[0] * arguments)


def test_the_context_forgets_through_the_engine(plain: Llama) -> None:
    plain.eval([1, 2, 3, 4, 5])
    assert not plain._ctx.kv_cache_seq_rm(-1, 1, 2)
    assert plain._ctx.kv_cache_seq_rm(-1, 3, -1)
    assert plain._engine.tokens.tolist() == [1, 2, 3]
    plain._ctx.kv_cache_clear()
    assert plain._engine.n_tokens == 0


def test_tokens_that_are_not_known_are_refused(plain: Llama) -> None:
    plain.eval([1, 2])
    plain.n_tokens = 9
    with pytest.raises(ValueError, match="n_tokens was set to 9, but only 2 tokens are known"):
        plain.eval([3])


def test_sampling_without_logits_is_refused(plain: Llama) -> None:
    with pytest.raises(ValueError, match="nothing is evaluated yet"):
        plain.sample()
    plain.eval([1, 2, 3])
    with pytest.raises(ValueError, match="no logits of row -3: the last decode kept 1"):
        plain.sample(idx=0)
    with pytest.raises(ValueError, match="idx 3 is not among the 3 evaluated tokens"):
        plain.sample(idx=3)


def test_logprobs_need_logits_all(plain: Llama) -> None:
    with pytest.raises(ValueError, match="logits_all"):
        plain("x", logprobs=1)


@pytest.fixture
def closed(smollm_path: str) -> Llama:
    llm = Llama(smollm_path, **MODEL_OPTIONS)
    llm.close()
    return llm


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm("hello"),
        lambda llm: llm.tokenize(b"hello"),
        lambda llm: llm.detokenize([1]),
        lambda llm: llm.eval([1]),
        lambda llm: llm.sample(),
        lambda llm: llm.reset(),
        lambda llm: next(llm.generate([1])),
        lambda llm: llm.create_chat_completion([{"role": "user", "content": "x"}]),
        lambda llm: llm.save_state(),
        lambda llm: llm.embed("x"),
        lambda llm: llm.n_ctx(),
        lambda llm: llm.token_eos(),
        lambda llm: llm.ctx,
        lambda llm: llm.model,
        lambda llm: llm.draft_stats,
    ],
)
def test_use_after_close_is_refused(closed: Llama, use: Any) -> None:
    with pytest.raises(errors.Error, match="this Llama is closed"):
        use(closed)


def test_a_failed_init_is_dropped_quietly() -> None:
    Llama.__new__(Llama).close()


def test_a_closed_model_is_not_pickled(closed: Llama) -> None:
    with pytest.raises(errors.Error, match="this Llama is closed"):
        pickle.dumps(closed)


def test_close_twice(closed: Llama) -> None:
    closed.close()


def test_closing_under_a_generator(smollm_path: str) -> None:
    llm = Llama(smollm_path, **MODEL_OPTIONS)
    generator = llm.generate([1, 2, 3], temp=0)
    next(generator)
    llm.close()
    with pytest.raises(errors.Error, match="taken over"):
        next(generator)


def test_a_closed_context_stays_closed(smollm_path: str) -> None:
    llm = Llama(smollm_path, **MODEL_OPTIONS)
    llm._model.close()  # takes the context with it
    assert llm._ctx.ctx is None
    with pytest.raises(errors.Error, match="this context is closed"):
        llm._ctx.kv_cache_clear()
    llm.close()


def test_pickling_opens_the_model_anew(plain: Llama) -> None:
    copy = pickle.loads(pickle.dumps(plain))
    assert copy.n_threads == plain.n_threads
    assert copy.__getstate__() == plain.__getstate__()
    answers = [llm("The capital of France is", max_tokens=3, temperature=0)["choices"] for llm in (copy, plain)]
    copy.close()
    assert answers[0] == answers[1]
