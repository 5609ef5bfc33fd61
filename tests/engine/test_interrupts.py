from __future__ import annotations

import signal
import threading

import pytest

from engine.interrupts import interrupts_held_back


def interrupted(times: int, done: list[str]) -> None:
    with interrupts_held_back():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        done.append("all of it")


@pytest.mark.parametrize(("times", "expected"), [(1, ["all of it"]), (2, [])])
def test_the_first_one_waits_for_the_end(times: int, expected: list[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(times, done)
    assert done == expected
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_have_none() -> None:
    done = []

    def work() -> None:
        with interrupts_held_back():
            done.append("all of it")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["all of it"]


def test_nothing_happens_without_one() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_held_back():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
