"""Llama with its drafter: valid text, true counters, the conversation in step after every kind of end."""

from __future__ import annotations

import itertools
from typing import Any

import llama_cpp
import numpy as np
import pytest

from dflash_local.llama import Llama
from support.llama_options import MODEL_OPTIONS

PROMPT = "Write the numbers from one to twenty, one after another: one, two, three, four,"


def prompt_of(llm: Llama, text: str = PROMPT) -> list[int]:
    ids: list[int] = llm.tokenize(text.encode())
    return ids


def test_drafts_and_counts(drafting: Llama) -> None:
    answer = drafting(PROMPT, max_tokens=40, temperature=0)
    stats = drafting.draft_stats
    assert answer["usage"]["completion_tokens"] == 40
    assert stats["rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"] == 40
    assert stats["plain_rounds"] == 1
    assert 0 < stats["draft_n_accepted"] < stats["draft_n"] <= 7 * stats["rounds"]
    assert stats["tokens_per_round"] == pytest.approx((stats["rounds"] + stats["draft_n_accepted"]) / stats["rounds"])
    assert stats["tokens_per_round"] > 1.2
    assert stats["draft_context"] > len(prompt_of(drafting))
    assert stats["draft_status"] == "engaged"


def test_every_token_is_one_the_target_would_choose(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    generator = drafting.generate(prompt, temp=0)
    ids = list(itertools.islice(generator, 30))
    generator.close()
    proof = drafting._engine.replay(_greedy_sampler(drafting))
    assert proof == {"tokens": 30, "exact": 30, "first_mismatch": -1}
    assert drafting._engine.tokens.tolist() == prompt + ids


def _greedy_sampler(llm: Llama) -> int:
    from dflash_local.llama_sampling import sampler_address

    llm._proof_sampler = llm._init_sampler(temp=0.0)
    return sampler_address(llm._proof_sampler)


def test_early_close_inside_a_round(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    for n in (1, 2, 3, 5, 8):
        generator = drafting.generate(prompt, temp=0)
        ids = list(itertools.islice(generator, n))
        generator.close()
        assert drafting._engine.tokens.tolist() == prompt + ids
        assert drafting._input_ids.tolist() == prompt + ids[:-1]
        stats = drafting.draft_stats
        assert stats["rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"] == n


def test_processors_see_true_ids_inside_a_round(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    seen: list[list[int]] = []

    def look(ids: Any, scores: Any) -> Any:
        seen.append(ids.tolist())
        return scores

    generator = drafting.generate(prompt, temp=0, logits_processor=llama_cpp.LogitsProcessorList([look]))
    ids = list(itertools.islice(generator, 20))
    generator.close()
    assert seen[:20] == [prompt + ids[:n] for n in range(20)]
    assert drafting.draft_stats["draft_n_accepted"] > 0


def test_an_exception_inside_a_round_leaves_the_rounds_before(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    calls = 0

    def fail(_ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise LookupError("my own")
        return scores

    ids: list[int] = []
    with pytest.raises(LookupError, match="my own"):
        ids.extend(drafting.generate(prompt, temp=0, logits_processor=llama_cpp.LogitsProcessorList([fail])))
    kept = drafting._engine.tokens.tolist()
    assert kept[: len(prompt)] == prompt
    assert len(kept) < len(prompt) + 9
    assert drafting(PROMPT, max_tokens=12, temperature=0)["usage"]["completion_tokens"] == 12


def test_a_stop_string_inside_a_block(drafting: Llama) -> None:
    free = drafting(PROMPT, max_tokens=24, temperature=0)["choices"][0]["text"]
    drafting.reset()
    for stop in ("seven, eight", ","):
        answer = drafting(PROMPT, max_tokens=24, temperature=0, stop=[stop])["choices"][0]
        drafting.reset()
        if stop in free:
            assert answer == {
                "text": free[: free.index(stop)],
                "index": 0,
                "logprobs": None,
                "finish_reason": "stop",
            }


def test_a_second_question_still_drafts(drafting: Llama) -> None:
    messages = [{"role": "user", "content": "Write a short poem about the sea."}]
    answer = drafting.create_chat_completion(messages, max_tokens=24, temperature=0)["choices"][0]["message"]
    messages += [answer, {"role": "user", "content": "Write it again, the same poem."}]
    drafting.create_chat_completion(messages, max_tokens=24, temperature=0)
    stats = drafting.draft_stats
    assert stats["draft_n_accepted"] > 0
    assert stats["draft_context"] >= drafting.n_tokens - 8
    messages[0] = {"role": "user", "content": "Write a short poem about a hill."}
    drafting.create_chat_completion(messages, max_tokens=24, temperature=0)
    assert drafting.draft_stats["draft_n_accepted"] > 0


def test_state_keeps_the_drafters_context(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    ids = list(itertools.islice(drafting.generate(prompt, temp=0), 6))
    state = drafting.save_state()
    drafting("something else", max_tokens=3)
    drafting.load_state(state)
    generator = drafting.generate(prompt + ids, temp=0)
    list(itertools.islice(generator, 12))
    generator.close()
    stats = drafting.draft_stats
    assert stats["draft_context"] >= len(prompt) + 6
    assert stats["draft_n_accepted"] > 0


def test_same_seed_same_text(drafting: Llama) -> None:
    texts = []
    for seed in (5, 5, 6):
        drafting.reset()
        texts.append(drafting(PROMPT, max_tokens=20, temperature=0.8, seed=seed)["choices"][0]["text"])
    assert texts[0] == texts[1] != texts[2]


def test_sent_tokens_inside_a_block(drafting: Llama) -> None:
    prompt = prompt_of(drafting)
    sent = prompt_of(drafting, " and now")
    for n in (1, 2, 3, 4):
        generator = drafting.generate(prompt, temp=0)
        ids = list(itertools.islice(generator, n))
        ids += [*sent, generator.send(sent), next(generator)]
        generator.close()
        assert drafting._engine.tokens.tolist() == prompt + ids


def test_scores_of_drafted_rows(smollm_path: str) -> None:
    options = MODEL_OPTIONS | {"n_ctx": 256, "logits_all": True}
    llm = Llama(smollm_path, draft="dflash", draft_rows=7, **options)
    prompt = prompt_of(llm)
    generator = llm.generate(prompt, temp=0)
    ids = list(itertools.islice(generator, 20))
    generator.close()
    assert llm.draft_stats["draft_n_accepted"] > 0
    scores = llm._scores[len(prompt) - 1 :].copy()
    assert scores.argmax(axis=1).tolist() == ids
    llm.reset()
    llm.eval(prompt + ids[:-1])
    np.testing.assert_allclose(scores, llm._scores[len(prompt) - 1 :], atol=0.5)
    llm.close()


def test_no_drafted_rows_is_plain(smollm_path: str, drafter_path: str) -> None:
    llm = Llama(smollm_path, draft="dflash", draft_model_path=drafter_path, draft_rows=0, **MODEL_OPTIONS)
    llm(PROMPT, max_tokens=6, temperature=0)
    assert llm.draft_stats["rounds"] == 0
    assert llm.draft_stats["draft_status"] == "off"
    llm.close()


def test_the_planner_decides_by_itself(smollm_path: str) -> None:
    llm = Llama(smollm_path, draft="dflash", **MODEL_OPTIONS)
    assert llm.draft_stats["draft_status"] == "idle"
    answer = llm(PROMPT, max_tokens=30, temperature=0)
    stats = llm.draft_stats
    assert answer["usage"]["completion_tokens"] == 30
    assert stats["rounds"] + stats["plain_rounds"] + stats["draft_n_accepted"] == 30
    assert stats["draft_status"].split(":")[0] in ("engaged", "declined")
    llm.close()
