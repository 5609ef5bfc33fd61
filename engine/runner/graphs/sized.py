"""CUDA graphs of one computation, one for each of a few batch sizes.

A graph has a fixed shape. So a batch runs in the graph of the next larger size, padded with rows
that write nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch


class Replayable(Protocol):
    """``torch.cuda.CUDAGraph``, as far as it is needed here."""

    def replay(self) -> None: ...


class SizedGraphs:
    """The graphs of one computation, by size."""

    def __init__(
        self, sizes: Sequence[int], compute: Callable[[int], torch.Tensor], num_queries: int = 1
    ) -> None:
        """sizes: ascending. compute: what a graph of a size does; it may read and write static
        memory only. num_queries: tokens of each sequence, by which ``capture_all`` orders
        graphs."""
        self.sizes = sizes
        self.num_queries = num_queries
        self._compute = compute
        self._size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        self._captured: dict[int, tuple[Replayable, torch.Tensor]] = {}

    @property
    def max_batch(self) -> int:
        """The largest size."""
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
    """A graph of ``compute``, and the tensor in which every replay leaves the result. pool: memory
    that graphs share, from ``torch.cuda.graph_pool_handle``."""
    compute()  # What is compiled or chosen at first use cannot be captured.
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

    ``pad(size)`` fills the static inputs of that size with padding, so that nothing is written
    while graphs are recorded."""
    # The largest first: smaller graphs reuse its memory.
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
