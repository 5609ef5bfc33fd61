"""When Python looks for cyclic garbage while requests run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Call once everything is loaded: objects that live now are never scanned again.

    Neither steps nor requests make many cycles, and a full collection over torch's objects, or over
    those of a thousand streams, stops the process for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """As rarely as ``tune_collector`` says, in a process that is not ours: nothing is frozen, and
    afterwards the thresholds are what they were.

    With Python's own thresholds the objects of a few hundred requests bring about a full
    collection, a tenth of a second in which no step is launched.
    """
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
