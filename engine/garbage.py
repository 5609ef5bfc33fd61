"""When Python looks for cyclic garbage in the process that steps the engine."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 20, 50)


def tune_collector() -> None:
    """Call once everything is loaded: what lives now is never looked at again.

    Steps make few cycles, and a full collection over torch's objects takes tens of milliseconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
