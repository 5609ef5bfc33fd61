"""The signals that end a process, for whoever runs an event loop in it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def ending_signals_sent_to(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM call ``on_signal``. Use it in a task of the main thread.

    Afterwards Ctrl-C raises ``KeyboardInterrupt`` again: otherwise a closed uvloop would keep
    receiving it, and whatever runs next in the process never would.
    """
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
