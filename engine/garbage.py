"""When Python looks for cyclic garbage while requests run, and what freed memory is kept."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 50)
FULL_THRESHOLD = 1000
"""Collections of the two younger generations for each full one: several million objects."""

MAPPED_BYTES, KEPT_BYTES = 2**20, 4 * 2**20
"""Blocks of this size have memory of their own, which goes back when they are freed; and so much
that is free may stay at the end of the heap."""

LOOK_BYTES = 8 * 2**20
"""After so many bytes of requests the youngest objects are looked through."""
LOOKS = 16
"""Looks at a generation for each look at the next older one."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


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


def return_large_blocks() -> None:
    """Call once in a process that gets large bodies: what they take goes back to the system.

    By its own rule the C library raises both limits to several times the largest block that was
    ever freed, up to 64 MB, and then keeps as much. With a library that is not glibc, nothing
    happens.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def return_freed() -> None:
    """Give memory back to the system that was freed in small blocks and that the C library keeps.

    It keeps the most that was ever in use, for each of its arenas. Takes a tenth of a second for
    300 MB; other threads run meanwhile. With a library that is not glibc, nothing happens.
    """
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class Received:
    """Bounds the memory that cycles keep, by the bytes that clients send.

    The thresholds count objects, and a cycle of a few may hold a body of megabytes: at a thousand
    such requests nothing would be looked through. Requests should leave no cycle; one that does
    all the same keeps no more than a few times ``LOOK_BYTES``.
    """

    def __init__(self) -> None:
        self._num_bytes = self._num_looks = 0

    def add(self, num_bytes: int) -> None:
        """So many bytes have come. May look through young objects, which takes a millisecond."""
        self._num_bytes += num_bytes
        if self._num_bytes < LOOK_BYTES:
            return
        self._num_bytes = 0
        self._num_looks += 1
        if gc.isenabled():
            is_older = self._num_looks % LOOKS == 0
            is_oldest = self._num_looks % LOOKS**2 == 0
            gc.collect(is_older + is_oldest)


received = Received()
"""What all clients of this process have sent."""
