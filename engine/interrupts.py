"""Holding back Ctrl-C while something must not be interrupted halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """The first Ctrl-C (SIGINT) takes effect when the block is over, a second one at once.

    Python delivers signals to the main thread only: in any other thread this does nothing.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is None:
        yield
        return
    held = False

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        if held:
            signal.default_int_handler(number, frame)
        held = True

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if held:
            signal.raise_signal(signal.SIGINT)
