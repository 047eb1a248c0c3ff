"""OpenMP settings made on import."""

from __future__ import annotations

import pytest

from dflash_local import _openmp


def test_a_short_spin_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    _openmp.spin_briefly()
    assert _openmp.os.environ["GOMP_SPINCOUNT"] == str(_openmp.SPIN_COUNT)


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "7")])
def test_the_users_choice_stays(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv(name, value)
    _openmp.spin_briefly()
    assert _openmp.os.environ.get("GOMP_SPINCOUNT") == (value if name == "GOMP_SPINCOUNT" else None)
