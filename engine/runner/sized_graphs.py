"""CUDA graphs of one computation, one for each of a few batch sizes.

A graph has a fixed shape, so a batch runs in the next larger one, filled up with rows that write
nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch


class Replayable(Protocol):
    def replay(self) -> None: ...


class SizedGraphs:
    def __init__(
        self, sizes: Sequence[int], compute: Callable[[int], torch.Tensor], num_queries: int = 1
    ) -> None:
        """sizes: ascending. ``compute(size)`` reads and writes static memory alone. num_queries:
        tokens of each sequence, which say how large a graph is."""
        self.sizes = sizes
        self.num_queries = num_queries
        self._compute = compute
        self._size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        self._captured: dict[int, tuple[Replayable, torch.Tensor]] = {}

    @property
    def max_batch(self) -> int:
        return self.sizes[-1]

    def size_for(self, batch: int) -> int:
        """In which a batch runs."""
        return int(self._size_for[batch])

    def capture(self, size: int, pool: Any) -> None:
        self._captured[size] = record(lambda: self._compute(size), pool)

    def replay(self, size: int) -> torch.Tensor:
        """What ``compute`` returned: overwritten by the next replay of any size, and of any other
        graphs that were captured along with these."""
        graph, out = self._captured[size]
        graph.replay()
        return out


def record(compute: Callable[[], torch.Tensor], pool: Any) -> tuple[Replayable, torch.Tensor]:
    """A graph that does the same again, and where it leaves the result."""
    compute()  # whatever is compiled or chosen at first use
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        out = compute()
    return graph, out


@torch.inference_mode()
def capture_all(
    families: Sequence[SizedGraphs],
    pad: Callable[[int], None],
    on_progress: Callable[[float], None] = lambda done: None,
) -> None:
    """Record all sizes of all families; ``on_progress`` hears how much is done, in [0, 1].

    ``pad(size)`` makes so many rows padding, for the first runs to write nothing.
    """
    # The largest first: the smaller ones fit into its memory.
    work = sorted(
        ((size, family) for family in families for size in family.sizes),
        key=lambda item: -item[0] * item[1].num_queries,
    )
    pool = torch.cuda.graph_pool_handle()
    with no_collection():
        for done, (size, family) in enumerate(work):
            pad(size)
            family.capture(size, pool)
            on_progress((done + 1) / len(work))


@contextmanager
def no_collection() -> Iterator[None]:
    """Nothing is freed by the garbage collector inside: graphs of an engine that is gone, freed
    while another is recorded, would end the recording with an error."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
