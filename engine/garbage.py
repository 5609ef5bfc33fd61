"""When Python looks for cyclic garbage while requests run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 50)
FULL_THRESHOLD = 1000
"""Collections of the two younger generations for each full one: several million objects."""


def tune_collector() -> None:
    """Call once everything is loaded: objects that live now are never scanned again.

    Neither steps nor requests make many cycles, and a full collection over torch's objects, or over
    those of a thousand streams, stops the process for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


@contextmanager
def full_collections_held_back() -> Iterator[None]:
    """For a process that is not ours: nothing is frozen, and afterwards all is as it was.

    By Python's own rule the objects of a few hundred requests bring about a full collection: with
    torch loaded that is a tenth of a second and more in which no step is launched. Young objects
    are looked through as always: each time takes less than a step.
    """
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], FULL_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
