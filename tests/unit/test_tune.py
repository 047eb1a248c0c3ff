"""The choice of threads and flash attention: pure decisions, and what is measured at all."""

import time

import pytest

from dflash_local import tune

SHAPE = tune.HeadShape(9, 3, 64)


class Clock:
    """A stand-in for the native timer: answers from a table, remembers what was asked."""

    def __init__(self, flash_ms: float = 1.0, off_ms: float = 2.0, by_threads: dict[int, float] | None = None) -> None:
        self.flash_ms, self.off_ms, self.by_threads = flash_ms, off_ms, by_threads or {}
        self.calls: list[tuple[int, int, bool, int]] = []

    def __call__(
        self,
        n_head: int,
        n_head_kv: int,
        head_dim: int,
        n_kv: int,
        n_rows: int,
        flash: bool,
        n_threads: int,
        budget_ms: float,
    ) -> float:
        assert budget_ms > 0
        self.calls.append((n_kv, n_rows, flash, n_threads))
        return self.by_threads.get(n_threads, 1.0) * (self.flash_ms if flash else self.off_ms)


@pytest.mark.parametrize(
    ("off", "on", "flash"),
    [
        ({1: 1.0, 4: 1.0}, {1: 2.0, 4: 3.0}, False),
        ({1: 1.0, 4: 4.0}, {1: 0.9, 4: 2.0}, True),
        ({1: 1.0, 4: 1.0}, {1: 0.99, 4: 0.99}, False),  # a tie stays off
        ({1: 1.0, 4: 1.0}, {1: 0.8, 4: 1.3}, False),
    ],
)
def test_flash_attention_must_be_faster_over_all_widths(
    off: dict[int, float], on: dict[int, float], flash: bool
) -> None:
    assert tune.choose_flash(off, on) is flash


@pytest.mark.parametrize(
    ("times", "threads"),
    [({8: 1.0, 4: 0.9}, 8), ({8: 10.0, 4: 0.9}, 4), ({1: 5.0}, 1), ({2: 1.0, 1: 2.0}, 2)],
)
def test_fewer_threads_only_when_clearly_faster(times: dict[int, float], threads: int) -> None:
    assert tune.choose_threads(times) == threads


def test_measures_both_variants_at_both_widths() -> None:
    clock = Clock(flash_ms=1.0, off_ms=2.0)
    tuning = tune.tune(SHAPE, 4096, clock, cores=4)
    assert (tuning.n_threads, tuning.flash_attn_type) == (4, tune.FLASH_ON)
    assert {call[:3] for call in clock.calls} == {(512, rows, flash) for rows in (1, 4) for flash in (False, True)}


def test_short_context_is_timed_as_it_is() -> None:
    clock = Clock()
    tune.tune(SHAPE, 256, clock, cores=1)
    assert {call[0] for call in clock.calls} == {256}


def test_busy_cores_are_left_alone() -> None:
    clock = Clock(by_threads={4: 50.0, 2: 1.0})
    assert tune.tune(SHAPE, 4096, clock, cores=4).n_threads == 2


def test_explicit_values_win_and_nothing_is_measured() -> None:
    clock = Clock()
    tuning = tune.tune(SHAPE, 4096, clock, n_threads=3, flash_attn=False)
    assert (tuning.n_threads, tuning.flash_attn_type) == (3, tune.FLASH_OFF)
    assert not clock.calls


def test_quantized_v_forces_flash_attention() -> None:
    clock = Clock(flash_ms=9.0, off_ms=1.0)
    assert tune.tune(SHAPE, 4096, clock, n_threads=1, type_v=8).flash_attn_type == tune.FLASH_ON
    assert tune.tune(SHAPE, 4096, clock, n_threads=1, type_v=1).flash_attn_type == tune.FLASH_OFF


def test_quantized_v_without_flash_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        tune.tune(SHAPE, 4096, Clock(), type_v=8, flash_attn=False)


def test_no_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="n_threads is 0"):
        tune.tune(SHAPE, 4096, Clock(), n_threads=0)


def test_device_and_headless_targets_are_left_to_llama_cpp() -> None:
    clock = Clock()
    assert tune.tune(SHAPE, 4096, clock, gpu=True, cores=4).flash_attn_type == tune.FLASH_AUTO
    assert tune.tune(tune.HeadShape(0, 0, 0), 4096, clock, cores=4).flash_attn_type == tune.FLASH_AUTO
    assert not clock.calls


def test_a_machine_too_busy_to_time_gets_flash_attention_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(*_: object) -> float:
        now[0] += 0.4
        return 1.0

    tuning = tune.tune(SHAPE, 4096, slow, cores=2)
    assert tuning.flash_attn_type == tune.FLASH_OFF
    assert "too busy" in tuning.note


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("-1 100000", None)]
)
def test_cgroup_quota(text: str, cores: float | None) -> None:
    assert tune.quota_cores(text) == cores


def test_available_cores() -> None:
    assert tune.available_cores() >= 1
    assert tune.thread_candidates(1) == [1]
    assert tune.thread_candidates(8) == [8, 4]
