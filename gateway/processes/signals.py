"""Handles the signals that end a process, in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ending_signals_sent_to(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """A block in which SIGINT and SIGTERM call ``on_signal``. Use it in a task of the main thread.

    Afterwards Ctrl-C raises ``KeyboardInterrupt`` again. Without this, a closed uvloop would still
    take the signal, and code that runs later in the process would not get it.
    """
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
