"""Sampling settings that are refused, and grammars that llama.cpp must never see."""

import math

import pytest

from dflash_local import GrammarError, SamplingParams
from dflash_local.grammar import check_limits
from dflash_local.sampling import MAX_SEED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_k", 2**31),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("repeat_penalty", 0.0),
        ("frequency_penalty", math.nan),
        ("presence_penalty", 11.0),
        ("penalty_last_n", -1),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
    ],
)
def test_bad_setting_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*, expected"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_seed_is_drawn_once_and_kept() -> None:
    params = SamplingParams().with_seed()
    assert params.seed is not None
    assert params.with_seed() is params
    assert SamplingParams(seed=5).with_seed().seed == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("  \n", "empty"),
        ('root ::= "a"\0', "NUL"),
        ("root ::= " + "(" * 65 + '"a"' + ")" * 65, "nests parentheses"),
        ('root ::= "' + "a" * 2000 + '"{1000}', "repetitions"),
        ("root ::= " + '"abc"{2000} ' * 101, "repetitions"),
        ('root ::= "a" # ' + "x" * 300_000, "bytes"),
    ],
)
def test_dangerous_grammar_is_refused(text: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        check_limits(text)


def test_parentheses_in_literals_classes_and_comments_do_not_count() -> None:
    check_limits('root ::= "' + "(" * 200 + '" [' + "(" * 200 + "] # " + "(" * 200)


@pytest.mark.parametrize(
    "text", ['root ::= "a"{1,99999999999999999999}', 'root ::= ("{5}" [a{9}])* # x{9}', 'x ::= "a"{3}']
)
def test_ordinary_repetitions_pass(text: str) -> None:
    check_limits(text)


@pytest.mark.parametrize(
    "text", ["[" * 200_000 + "\\", '"' + "a" * 200_000, "x" + " " * 200_000, "{" * 200_000, "1" * 200_000]
)
def test_checking_takes_linear_time(text: str) -> None:
    check_limits(text)
