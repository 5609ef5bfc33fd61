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
        """sizes: ascending. compute: reads and writes static memory only. num_queries: tokens of
        each sequence, used to order graphs by size."""
        self.sizes = sizes
        self.num_queries = num_queries
        self._compute = compute
        self._size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        self._captured: dict[int, tuple[Replayable, torch.Tensor]] = {}

    @property
    def max_batch(self) -> int:
        return self.sizes[-1]

    def size_for(self, batch: int) -> int:
        """The size of the graph in which a batch runs."""
        return int(self._size_for[batch])

    def capture(self, size: int, pool: Any) -> None:
        self._captured[size] = record(lambda: self._compute(size), pool)

    def replay(self, size: int) -> torch.Tensor:
        """Run the graph; returns what ``compute`` returned, overwritten by the next replay of any
        size, and of any graphs captured together with these."""
        graph, out = self._captured[size]
        graph.replay()
        return out


def record(compute: Callable[[], torch.Tensor], pool: Any) -> tuple[Replayable, torch.Tensor]:
    """A graph of what ``compute`` does, and the tensor that it leaves the result in."""
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
    # The largest first: smaller ones reuse its memory.
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
    """Keeps the garbage collector off: freeing the graphs of a former engine while another graph is
    recorded would make the recording fail."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
