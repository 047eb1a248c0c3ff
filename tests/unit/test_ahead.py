"""Grammars looked ahead and copies, as Python sees them; the grammars are llama.cpp's, over the real vocabulary."""

from __future__ import annotations

import ctypes
import json
import string
from collections.abc import Iterator
from typing import Any

import llama_cpp
import pytest
from llama_cpp import _internals

from dflash_local import _native
from dflash_local.grammar import compile_grammar
from support.engine_rig import address

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"enum": ["Berlin", "Bern"]}},
            "required": ["street", "city"],
        },
    },
    "required": ["name", "age", "address"],
}


class Vocab:
    def __init__(self, path: str, *, space_prefix: bool = False) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        overrides = (llama_cpp.llama_model_kv_override * 2)()  # the empty second one ends them
        if space_prefix:
            overrides[0].key = b"tokenizer.ggml.add_space_prefix"
            overrides[0].tag = llama_cpp.LLAMA_KV_OVERRIDE_TYPE_BOOL
            overrides[0].value.val_bool = True
            params.kv_overrides = overrides
        self.model = _internals.LlamaModel(path_model=path, params=params, verbose=False)
        self.address = address(self.model.vocab)
        self.eog = self.model.token_eos()
        self.chains: list[Any] = []

    def chain(self, *samplers: Any) -> Any:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for sampler in samplers:
            llama_cpp.llama_sampler_chain_add(chain, sampler)
        return chain

    def grammar(self, rules: str) -> Any:
        """A chain with the grammar between two other samplers."""
        chain = self.chain(
            llama_cpp.llama_sampler_init_top_k(40),
            compile_grammar(self.address, rules),
            llama_cpp.llama_sampler_init_greedy(),
        )
        self.chains.append(chain)
        return chain

    def ahead(self, rules: str, patience_ms: float = 1e6) -> _native.GrammarAhead:
        return _native.GrammarAhead(address(self.grammar(rules)), self.address, patience_ms=patience_ms)

    def tokens(self, text: str) -> list[int]:
        return list(self.model.tokenize(text.encode(), False, False))

    def text(self, tokens: list[int]) -> str:
        return str(self.model.detokenize(tokens).decode("utf-8", "replace"))

    def close(self) -> None:
        for chain in self.chains:
            llama_cpp.llama_sampler_free(chain)
        self.model.close()


@pytest.fixture(scope="module")
def vocab(smollm_path: str) -> Iterator[Vocab]:
    vocab = Vocab(smollm_path)
    yield vocab
    vocab.close()


@pytest.fixture(scope="module")
def person() -> str:
    return str(llama_cpp.LlamaGrammar.from_json_schema(json.dumps(PERSON), verbose=False)._grammar)


def write(ahead: _native.GrammarAhead, vocab: Vocab, text: str) -> list[int]:
    tokens = vocab.tokens(text)
    for token in tokens:
        ahead.accept(token)
    return tokens


def test_tells_allowed_from_forbidden_tokens(vocab: Vocab) -> None:
    ahead = vocab.ahead('root ::= "cat" | "car"')
    words = ["c", "ca", "cat", "car", "cb", "dog", " cat"]
    tokens = [vocab.tokens(word)[0] for word in words]
    assert [vocab.text([token]) for token in tokens] == words
    assert ahead.allowed(tokens) == [True, True, True, True, False, False, False]
    assert ahead.allowed([-1, 1 << 20, tokens[0]]) == [False, False, True]
    assert ahead.allowed([]) == []


def test_the_end_is_allowed_where_the_grammar_may_end(vocab: Vocab) -> None:
    ahead = vocab.ahead('root ::= "a" "b"?')
    assert ahead.allowed([vocab.eog]) == [False]
    write(ahead, vocab, "a")
    assert ahead.allowed([vocab.eog, vocab.tokens("b")[0]]) == [True, True]
    ahead.accept(vocab.eog)


def test_a_forbidden_token_is_refused_and_changes_nothing(vocab: Vocab) -> None:
    ahead = vocab.ahead('root ::= "ab"')
    with pytest.raises(ValueError, match="does not allow token"):
        ahead.accept(vocab.tokens("b")[0])
    with pytest.raises(ValueError, match="does not allow token"):
        ahead.accept(vocab.eog)
    assert ahead.allowed(vocab.tokens("a")) == [True]


def test_the_chain_itself_stays_where_it_is(vocab: Vocab) -> None:
    chain = vocab.grammar('root ::= "ab"')
    ahead = _native.GrammarAhead(address(chain), vocab.address)
    a, b = vocab.tokens("a")[0], vocab.tokens("b")[0]
    ahead.accept(a)
    ahead.forced(8)
    assert ahead.allowed([a, b]) == [False, True]
    ahead.rewind()
    assert ahead.allowed([a, b]) == [True, False]
    llama_cpp.llama_sampler_accept(chain, a)
    assert ahead.allowed([a, b]) == [False, True]


def test_a_chain_without_a_grammar_is_refused(vocab: Vocab) -> None:
    chain = vocab.chain(llama_cpp.llama_sampler_init_greedy())
    vocab.chains.append(chain)
    with pytest.raises(ValueError, match="holds no grammar"):
        _native.GrammarAhead(address(chain), vocab.address)
    with pytest.raises(ValueError, match="holds no grammar"):
        _native.GrammarAhead(0, vocab.address)
    with pytest.raises(ValueError, match="vocabulary"):
        _native.GrammarAhead(address(chain), 0)


def test_a_grammar_is_found_in_a_chain_within_the_chain_and_alone(vocab: Vocab) -> None:
    inner = vocab.chain(compile_grammar(vocab.address, 'root ::= "x"'))
    outer = vocab.chain(llama_cpp.llama_sampler_init_greedy(), inner)
    alone = compile_grammar(vocab.address, 'root ::= "x"')
    vocab.chains += [outer, alone]
    for sampler in (outer, alone):
        assert _native.GrammarAhead(address(sampler), vocab.address).allowed(vocab.tokens("x")) == [True]


def test_an_empty_grammar_allows_all_and_forces_nothing(vocab: Vocab) -> None:
    sampler = llama_cpp.llama_sampler_init_grammar(vocab.model.vocab, b"", b"root")
    vocab.chains.append(sampler)
    ahead = _native.GrammarAhead(address(sampler), vocab.address)
    assert ahead.allowed([vocab.eog, *vocab.tokens("x")]) == [True, True]
    assert ahead.forced(8) == []


def lazy(vocab: Vocab, rules: str, pattern: bytes = b"", token: int = -1) -> _native.GrammarAhead:
    sampler = llama_cpp.llama_sampler_init_grammar_lazy_patterns(
        vocab.model.vocab,
        rules.encode(),
        b"root",
        (ctypes.c_char_p * 1)(pattern),
        int(bool(pattern)),
        (llama_cpp.llama_token * 1)(token),
        int(token >= 0),
    )
    vocab.chains.append(sampler)
    return _native.GrammarAhead(address(sampler), vocab.address, patience_ms=1e6)


def test_a_lazy_grammar_is_free_until_its_trigger(vocab: Vocab) -> None:
    ahead = lazy(vocab, 'root ::= "<call>now</call>"', pattern=b"[\\s\\S]*?(<call>)")
    assert ahead.allowed([vocab.eog, *vocab.tokens("hello")]) == [True, True]
    assert ahead.forced(8) == []
    write(ahead, vocab, "Well: <call>")
    assert ahead.allowed(vocab.tokens("hello")) == [False]
    tokens = ahead.forced(8)
    assert vocab.text(tokens) == "now</call>"


def test_a_trigger_that_the_grammar_does_not_take_is_an_error_and_no_abort(vocab: Vocab) -> None:
    wrong = vocab.tokens("z")[0]
    ahead = lazy(vocab, 'root ::= "ab"', token=wrong)
    with pytest.raises(ValueError, match="cannot go on"):
        ahead.accept(wrong)
    assert ahead.allowed([wrong]) == [True]


@pytest.mark.parametrize(
    ("rules", "forced"),
    [
        ('root ::= "The quick brown fox."', "The quick brown fox."),
        ('root ::= "The quick brown fox" | "The quick brown dog"', "The quick brown"),
        ('root ::= "The quick" [a-z]*', "The"),
        ('root ::= [a-c] "xyz"', ""),
        ('root ::= "a"? "b"', ""),
        ('root ::= "gr\u00fc\u00dfe" "!"', "gr\u00fc\u00dfe!"),
        ('root ::= "x" [\u00e4\u00f6]', ""),
        ('root ::= "line" "\\n" "\\t" "end"', "line\n\tend"),
        ('root ::= "a b c d e f g h" .', "a b c d e f g"),
        ('root ::= "yes" [ \\n]?', "yes"),
        ('root ::= "only" | ""', ""),
    ],
)
def test_forces_what_has_no_alternative(vocab: Vocab, rules: str, forced: str) -> None:
    ahead = vocab.ahead(rules)
    tokens = ahead.forced(32)
    assert vocab.text(tokens) == forced
    for token in tokens:
        ahead.accept(token)


def test_forced_tokens_are_those_of_the_vocabulary(vocab: Vocab) -> None:
    text = "def hello_world(): return 'Hello, world!'"
    tokens = vocab.ahead(f'root ::= "{text}"').forced(64)
    assert tokens == vocab.tokens(text)
    assert vocab.ahead(f'root ::= "{text}"').forced(3) == tokens[:3]
    assert vocab.ahead(f'root ::= "{text}"').forced(0) == []


def test_looks_ahead_only_so_far(vocab: Vocab) -> None:
    tokens = vocab.ahead('root ::= "' + "ab " * 400 + '"').forced(1000)
    assert 20 < len(vocab.text(tokens)) <= 96


def test_a_schema_forces_its_keys(vocab: Vocab, person: str) -> None:
    ahead = vocab.ahead(person)
    tokens = ahead.forced(16)
    assert vocab.text(tokens) == '{"name": "'
    write(ahead, vocab, '{"')
    assert vocab.text(ahead.forced(16)) == 'name": "'
    write(ahead, vocab, 'name": "Ann')
    assert ahead.forced(16) == []
    write(ahead, vocab, '", "')
    assert vocab.text(ahead.forced(16)) == 'age":'
    written = write(ahead, vocab, 'age": 41,')
    assert vocab.text(ahead.forced(32, written)) == ' "address": {"street": "'
    written += write(ahead, vocab, ' "address": {"street": "Long",')
    assert vocab.text(ahead.forced(32, written)) == ' "city": "'
    write(ahead, vocab, ' "city": "Berl')
    assert vocab.text(ahead.forced(32)) == 'in"}}'


def test_optional_white_space_follows_the_text_before(vocab: Vocab, person: str) -> None:
    ahead = vocab.ahead(person)
    written = write(ahead, vocab, '{"name":"Ann","age":41,')
    assert vocab.text(ahead.forced(32, written)) == '"address":{"street":"'
    spaced = write(vocab.ahead(person), vocab, '{ "name" : "Ann" , "age" : 41')
    ahead = vocab.ahead(person)
    write(ahead, vocab, '{ "name" : "Ann" , "age" : 41 ,')
    assert vocab.text(ahead.forced(32, [*spaced, *vocab.tokens(" ,")])).startswith(' "address" : {')


def test_a_grammar_too_slow_to_look_ahead_in_is_asked_ever_less(vocab: Vocab) -> None:
    ahead = vocab.ahead('root ::= "one way only"', patience_ms=0.0)
    assert all(ahead.forced(16) == [] for _ in range(100))
    assert ahead.allowed(vocab.tokens("one")) == [True]


def test_many_alternatives_do_not_hide_what_they_share(vocab: Vocab) -> None:
    words = " | ".join(f'"same: (\\"{a}{b}"' for a in string.ascii_letters for b in string.digits)
    assert vocab.text(vocab.ahead(f"root ::= {words}").forced(16)) == 'same: ("'


def test_deep_nesting_does_not_confuse_the_walk(vocab: Vocab) -> None:
    ahead = vocab.ahead('root ::= "(" root ")" | "x"')
    write(ahead, vocab, "(" * 50 + "x" + ")" * 20)
    tokens = ahead.forced(64)
    assert set(vocab.text(tokens)) == {")"}
    assert 20 <= len(vocab.text(tokens)) <= 30


def test_a_text_of_the_schema_agrees_with_what_is_forced(vocab: Vocab, person: str) -> None:
    text = json.dumps({"name": "Eve", "age": 7, "address": {"street": "A 1", "city": "Bern"}})
    ahead = vocab.ahead(person)
    tokens = vocab.tokens(text)
    wrong = []
    for i, token in enumerate(tokens):
        forced = ahead.forced(8, tokens[:i])
        assert len(forced) <= 8
        if forced != tokens[i : i + len(forced)]:
            wrong.append((vocab.text(forced), vocab.text(tokens[i:])))
        ahead.accept(token)
    assert wrong == []
    assert ahead.allowed([vocab.eog]) == [True]


@pytest.mark.parametrize("space_prefix", [False, True])
def test_a_sentencepiece_vocabulary_writes_no_space_of_its_own(gemma_path: str, space_prefix: bool) -> None:
    gemma = Vocab(gemma_path, space_prefix=space_prefix)
    assert gemma.text(gemma.tokens("fox")) == (" fox" if space_prefix else "fox")
    for text in ("The quick brown fox.", " The fox!", "name: gr\u00fc\u00dfe \u4f60\u597d!", "x"):
        tokens = gemma.ahead(f'root ::= "{text}"').forced(32)
        assert gemma.text(tokens) == text
    gemma.close()


def test_copies_go_on_where_the_text_went_on_before() -> None:
    index = _native.CopyIndex()
    index.sync([1, 2, 3, 4, 1, 2])
    assert index.propose(2) == ([3, 4], 2, 1, 1)
    index.sync([1, 2, 3])
    assert index.propose(2) == ([], 0, 0, 0)
    index.add_past([2, 3, 9])
    assert index.propose(2) == ([9], 2, 1, 1)
