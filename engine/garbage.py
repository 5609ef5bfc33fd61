"""When Python looks for cyclic garbage in a process that serves."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Call once everything is loaded: objects that live now are never scanned again.

    Neither steps nor requests make many cycles, and a full collection over torch's objects, or over
    those of a thousand streams, stops the process for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
