"""How large a context is, and what memory there is for it."""

from types import SimpleNamespace

import pytest

from dflash_local import OutOfMemory, memory
from dflash_local.memory import available_bytes, check_context_fits, kv_bytes, parse_available

F16, Q8_0 = 1, 8
SMOL = {
    "general.architecture": "llama",
    "llama.block_count": "30",
    "llama.embedding_length": "576",
    "llama.attention.head_count": "9",
    "llama.attention.head_count_kv": "3",
}


def test_bytes_of_a_context() -> None:
    assert kv_bytes(SMOL, 8192, F16, F16) == 8192 * 30 * 2 * 3 * 64 * 2
    assert kv_bytes(SMOL, 1, Q8_0, Q8_0) == 30 * 2 * 6 * 34
    assert kv_bytes({**SMOL, "llama.attention.key_length": "128"}, 1, F16, F16) == 30 * 3 * (128 + 64) * 2


@pytest.mark.parametrize(
    "other",
    [
        {"llama.attention.sliding_window": "512"},
        {"llama.ssm.state_size": "16"},
        {"llama.attention.head_count": "[8, 0]"},
        {"general.architecture": "unknown"},
    ],
)
def test_no_guess_where_layers_differ(other: dict[str, str]) -> None:
    assert kv_bytes({**SMOL, **other}, 8192, F16, F16) is None


def test_available_memory() -> None:
    assert parse_available("MemTotal: 9 kB\nMemAvailable:   1000 kB\n") == 1_024_000
    assert parse_available("MemTotal: 9 kB\n") is None
    free = available_bytes()
    assert free is None or free > 0


def test_context_is_refused_only_when_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    params = SimpleNamespace(n_ctx=8192, type_k=F16, type_v=F16)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**30)
    check_context_fits(SMOL, params)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2**20)
    with pytest.raises(OutOfMemory, match=r"a context of 8192 tokens takes 0\.2 GiB of memory, 0\.0 GiB are there"):
        check_context_fits(SMOL, params)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    check_context_fits(SMOL, params)
