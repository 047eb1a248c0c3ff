"""Ctrl-C during loading: kept aside, raised at the end of the block, and left alone where it is not ours."""

import signal
import threading

import pytest

from dflash_local._interrupt import held_interrupt


def test_interrupt_is_raised_at_the_end_of_the_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), held_interrupt():
        signal.raise_signal(signal.SIGINT)
        steps.append("after the signal")
    assert steps == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_error_of_the_block_passes_and_the_handler_comes_back() -> None:
    with pytest.raises(LookupError, match="own"), held_interrupt():
        raise LookupError("own")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_foreign_handler_stays() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append("foreign"))
    try:
        with held_interrupt():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == ["foreign"]


def test_other_threads_are_left_alone() -> None:
    handlers = []

    def look() -> None:
        with held_interrupt():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
