"""The generator over the engine: processors, rounds of several tokens, rollback, state, counters."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest

import dflash_local._errors as errors
from dflash_local.llama import Llama

PROMPT = "The capital of France is"


class SeveralTokens:
    """An engine whose rounds emit three tokens at a time, as drafting would."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def round(self, sampler: int, **options: Any) -> list[int]:
        return [token for _ in range(3) for token in self.engine.round(sampler, **options)]


@pytest.fixture
def several(plain: Llama, monkeypatch: pytest.MonkeyPatch) -> Llama:
    monkeypatch.setattr(plain, "_engine", SeveralTokens(plain._engine))
    return plain


@pytest.fixture
def small(smollm_path: str) -> Iterator[Llama]:
    """The smallest context that llama.cpp makes, decoded in chunks of 100."""
    llm = Llama(smollm_path, n_ctx=128, n_batch=100, n_threads=1, flash_attn=False, verbose=False)
    yield llm
    llm.close()


def take(generator: Any, n: int) -> list[int]:
    return [next(generator) for _ in range(n)]


def prompt_of(llm: Llama, text: str = PROMPT) -> list[int]:
    ids: list[int] = llm.tokenize(text.encode())
    return ids


def greedy(llm: Llama, prompt: list[int], n: int) -> list[int]:
    generator = llm.generate(prompt, temp=0)
    ids = take(generator, n)
    generator.close()
    return ids


def test_processors_see_true_ids(plain: Llama) -> None:
    prompt = prompt_of(plain)
    seen: list[list[int]] = []

    def look(ids: Any, scores: Any) -> Any:
        assert ids.tolist() == plain._input_ids.tolist()
        seen.append(ids.tolist())
        return scores

    generator = plain.generate(prompt, temp=0, logits_processor=llama_cpp.LogitsProcessorList([look]))
    ids = take(generator, 5)
    generator.close()
    assert seen == [prompt + ids[:n] for n in range(5)]


def test_processors_change_the_choice(plain: Llama) -> None:
    def only(_ids: Any, scores: Any) -> Any:
        forced = np.full_like(scores, -np.inf)
        forced[42] = 0.0
        return forced

    generator = plain.generate(prompt_of(plain), temp=0, logits_processor=llama_cpp.LogitsProcessorList([only]))
    assert take(generator, 3) == [42, 42, 42]
    generator.close()


@pytest.mark.parametrize("failing_call", [1, 3])
def test_a_processors_exception_surfaces(plain: Llama, failing_call: int) -> None:
    prompt = prompt_of(plain)
    calls = 0

    def fail(_ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise LookupError("my own")
        return scores

    with pytest.raises(LookupError, match="my own"):
        plain(PROMPT, max_tokens=8, temperature=0, logits_processor=llama_cpp.LogitsProcessorList([fail]))
    assert calls == failing_call
    assert plain._engine.tokens.tolist()[: len(prompt)] == prompt
    assert len(plain._engine.tokens) == len(prompt) + failing_call - 1
    assert plain(PROMPT, max_tokens=4, temperature=0)["choices"][0]["text"].startswith(" Paris")


def test_keyboard_interrupt_in_a_processor_surfaces(plain: Llama) -> None:
    def interrupt(_ids: Any, _scores: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plain(PROMPT, max_tokens=8, logits_processor=llama_cpp.LogitsProcessorList([interrupt]))


def test_scores_of_a_wrong_shape_are_refused(plain: Llama) -> None:
    def cut(_ids: Any, scores: Any) -> Any:
        return scores[:10]

    with pytest.raises(ValueError, match=r"processor cut returned scores of shape \(10,\), expected \(49152,\)"):
        plain(PROMPT, max_tokens=8, logits_processor=llama_cpp.LogitsProcessorList([cut]))


def test_sample_surfaces_a_processors_exception(plain: Llama) -> None:
    def fail(_ids: Any, _scores: Any) -> Any:
        raise LookupError("my own")

    plain.eval(prompt_of(plain))
    with pytest.raises(LookupError, match="my own"):
        plain.sample(logits_processor=llama_cpp.LogitsProcessorList([fail]))


def test_bias_and_processors_together(plain: Llama) -> None:
    called = []

    def look(_ids: Any, scores: Any) -> Any:
        called.append(True)
        return scores

    processors = llama_cpp.LogitsProcessorList([look])
    free = plain(PROMPT, max_tokens=1, temperature=0)["choices"][0]["text"]
    token = prompt_of(plain, free)[0]
    answer = plain(PROMPT, max_tokens=1, temperature=0, logits_processor=processors, logit_bias={token: -100.0})
    assert answer["choices"][0]["text"] != free
    assert called
    assert len(processors) == 1


def test_rounds_of_several_tokens_give_the_same_ids(several: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = greedy(several, prompt_of(several), 7)
    monkeypatch.setattr(several, "_engine", several._engine.engine)
    assert greedy(several, prompt_of(several), 7) == ids


def test_early_close_rolls_back_to_the_last_yielded_token(several: Llama) -> None:
    prompt = prompt_of(several)
    generator = several.generate(prompt, temp=0)
    ids = take(generator, 4)  # the first of the second round
    assert len(several._engine.tokens) > len(prompt) + 4
    generator.close()
    assert several._engine.tokens.tolist() == prompt + ids
    assert several._input_ids.tolist() == prompt + ids[:3]
    assert several.n_tokens == len(prompt) + 3


def test_dropping_the_generator_rolls_back_too(several: Llama) -> None:
    prompt = prompt_of(several)
    for _ in several.generate(prompt, temp=0):
        break
    gc.collect()
    assert len(several._engine.tokens) == len(prompt) + 1


def test_ids_are_true_at_every_yield_of_a_round(several: Llama) -> None:
    prompt = prompt_of(several)
    generator = several.generate(prompt, temp=0)
    ids: list[int] = []
    for token in generator:
        assert several._input_ids.tolist() == prompt + ids
        ids.append(token)
        if len(ids) == 6:
            break


@pytest.mark.parametrize("n_before", [1, 3])
def test_sent_tokens_follow_the_yielded_one(several: Llama, n_before: int) -> None:
    prompt = prompt_of(several)
    sent = prompt_of(several, " and now")
    generator = several.generate(prompt, temp=0)
    ids = take(generator, n_before)
    ids += [*sent, generator.send(sent), next(generator)]
    generator.close()
    assert several._engine.tokens.tolist() == prompt + ids
    expected = greedy(several, prompt + ids[:-2], 2)
    assert ids[-2:] == expected


def test_sending_rebuilds_a_grammars_state(several: Llama) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "aaaa" "b"', verbose=False)
    generator = several.generate(prompt_of(several), temp=0, grammar=grammar)
    text = several.detokenize(take(generator, 1))
    token = generator.send(prompt_of(several, " x"))
    while not llama_cpp.llama_vocab_is_eog(several._model.vocab, token):
        text += several.detokenize([token])
        token = next(generator)
    generator.close()
    assert text == b"aaaab"


def test_an_older_generator_is_told(plain: Llama) -> None:
    prompt = prompt_of(plain)
    older = plain.generate(prompt, temp=0)
    next(older)
    newer = plain.generate(prompt_of(plain, "1, 2, 3,"), temp=0)
    ids = take(newer, 2)
    with pytest.raises(errors.Error, match="another call has taken over"):
        next(older)
    ids += take(newer, 1)
    assert ids == greedy(plain, prompt_of(plain, "1, 2, 3,"), 3)


def test_an_older_generator_rolls_nothing_back(plain: Llama) -> None:
    older = plain.generate(prompt_of(plain), temp=0)
    next(older)
    other = prompt_of(plain, "1, 2, 3,")
    plain.eval(other)
    plain.reset()
    plain.eval(other)
    older.close()
    assert plain._engine.tokens.tolist() == other


def test_a_second_question_reuses_the_prefix(plain: Llama) -> None:
    messages = [{"role": "user", "content": "Name a colour."}]
    answer = plain.create_chat_completion(messages, max_tokens=12, temperature=0)["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": "Another one."}]
    plain.create_chat_completion(messages, max_tokens=4, temperature=0)
    stats = plain._engine.stats()
    assert stats["reused_n"] > 30
    assert stats["prompt_n"] < 25


def test_full_prompt_again(plain: Llama) -> None:
    prompt = prompt_of(plain)
    assert greedy(plain, prompt, 8) == greedy(plain, prompt, 8)
    assert plain._engine.stats()["reused_n"] == len(prompt) - 2


def test_state_goes_and_comes_back(plain: Llama) -> None:
    prompt = prompt_of(plain)
    generator = plain.generate(prompt, temp=0)
    ids = take(generator, 3)
    generator.close()
    state = plain.save_state()
    greedy(plain, prompt_of(plain, "something else"), 3)
    plain.load_state(state)
    assert plain._input_ids.tolist() == prompt + ids[:2]
    assert greedy(plain, prompt + ids, 3) == greedy(plain, prompt, 6)[3:]
    plain.load_state(state)
    greedy(plain, prompt + ids, 1)
    assert plain._engine.stats()["reused_n"] >= len(prompt) + 2
    plain.load_state(state)
    assert plain.sample(temp=0) == ids[2]


def test_state_saved_inside_a_round(several: Llama) -> None:
    prompt = prompt_of(several)
    generator = several.generate(prompt, temp=0)
    ids = take(generator, 1)
    state = several.save_state()
    generator.close()
    several.reset()
    several.load_state(state)
    assert several._engine.tokens.tolist() == prompt + ids
    assert several._input_ids.tolist() == prompt


def test_a_foreign_state_is_refused(plain: Llama) -> None:
    prompt = prompt_of(plain)
    plain.eval(prompt)
    state = plain.save_state()
    state.llama_state = b"\0" * 64
    with pytest.raises(ValueError, match="state"):
        plain.load_state(state)
    assert plain._input_ids.tolist() == prompt


def test_cache_restores_a_conversation(plain: Llama) -> None:
    plain.set_cache(llama_cpp.LlamaRAMCache())
    first = plain(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"]
    plain("1, 2, 3,", max_tokens=3, temperature=0)
    assert plain(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"] == first
    assert plain._engine.stats()["reused_n"] >= len(prompt_of(plain)) - 2


def test_counters_of_a_plain_call(plain: Llama) -> None:
    plain(PROMPT, max_tokens=5, temperature=0)
    assert plain.draft_stats == {
        "rounds": 0,
        "plain_rounds": 5,
        "draft_n": 0,
        "draft_n_accepted": 0,
        "copy_rounds": 0,
        "copy_n_accepted": 0,
        "tokens_per_round": 0.0,
        "draft_context": 0,
        "draft_status": "off",
    }


def test_counters_are_never_stale(plain: Llama) -> None:
    plain(PROMPT, max_tokens=5, temperature=0)
    with pytest.raises(ValueError, match="exceed context window"):
        plain("word " * 600)
    assert plain.draft_stats["plain_rounds"] == 0
    plain(PROMPT, max_tokens=5, temperature=0)
    stream = plain(PROMPT, max_tokens=5, temperature=0, stream=True)
    assert plain.draft_stats["plain_rounds"] == 0
    next(stream)
    assert plain.draft_stats["plain_rounds"] == 1
    plain.reset()
    assert plain.draft_stats["plain_rounds"] == 0


def test_seed_repeats_a_text(plain: Llama) -> None:
    texts = []
    for seed in (1, 1, 2):
        plain.reset()
        texts.append(plain(PROMPT, max_tokens=12, temperature=1.2, seed=seed)["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


def test_context_overflow_is_named(plain: Llama) -> None:
    generator = plain.generate([5] * plain.n_ctx(), temp=0)
    with pytest.raises(errors.ContextOverflow, match="512"):
        next(generator)
    with pytest.raises(errors.ContextOverflow, match="513 tokens after 0 are more than the context of 512"):
        plain.eval([5] * (plain.n_ctx() + 1))


def test_a_full_context_ends_the_text(small: Llama) -> None:
    assert small.n_ctx() == 256
    prompt = prompt_of(small) * 52
    assert small(prompt[:252], max_tokens=None, temperature=0)["usage"]["completion_tokens"] == 4
    generator = small.generate(prompt[:255], temp=0)
    take(generator, 2)
    with pytest.raises(errors.ContextOverflow):
        next(generator)
    assert small.n_tokens == 256


@pytest.mark.parametrize("tokens", [[], [-1], [49152]])
def test_bad_tokens_are_refused(plain: Llama, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="token"):
        next(plain.generate(tokens))


def test_two_models_share_no_state(plain: Llama, smollm_path: str) -> None:
    other = Llama(smollm_path, n_ctx=128, n_threads=1, flash_attn=False, verbose=False)
    first, second = plain.generate(prompt_of(plain), temp=0), other.generate(prompt_of(other, "1, 2, 3,"), temp=0)
    mixed = [(next(first), next(second)) for _ in range(5)]
    first.close()
    second.close()
    assert [a for a, _ in mixed] == greedy(plain, prompt_of(plain), 5)
    assert [b for _, b in mixed] == greedy(other, prompt_of(other, "1, 2, 3,"), 5)
    other.close()


def test_batches_of_one(smollm_path: str, plain: Llama) -> None:
    with_one = Llama(smollm_path, n_ctx=64, n_batch=1, n_threads=1, flash_attn=False, verbose=False)
    prompt = prompt_of(plain)
    with_one.eval(prompt)
    with_one.n_tokens -= 1
    with_one.eval(prompt[-1:])
    assert with_one._input_ids.tolist() == prompt
    assert len(greedy(with_one, prompt, 3)) == 3
    with_one.close()
