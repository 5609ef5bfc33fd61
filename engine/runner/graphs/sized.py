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

MAX_CHECKED = 128
"""Sequences of a step with drafts, at most. Beyond, checking drafts hardly pays, and launching
kernels takes less time than they do."""
MAX_CHECKED_TOKENS = 8 * MAX_CHECKED
"""Of all sequences of such a step, likewise."""


def capture_sizes(max_num_seqs: int, num_queries: int = 1) -> list[int]:
    """Batch sizes worth a graph, of so many tokens for each sequence: close enough that padding
    costs little, the largest included. Ascending."""
    largest = max_num_seqs
    if num_queries > 1:
        largest = min(max_num_seqs, MAX_CHECKED, max(1, MAX_CHECKED_TOKENS // num_queries))
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, largest, 32)]
    return [*(size for size in sizes if size < largest), largest]


def sharing_sizes(sizes: list[int]) -> list[int]:
    """Those of the batch sizes that are worth a second graph, for batches with shared prefixes."""
    return [size for size in sizes if size in (8, 16, sizes[-1]) or size % 32 == 0]


def adapted_sizes(sizes: list[int]) -> list[int]:
    """Those of the batch sizes that are worth another graph, for batches with adapters."""
    some = {1, 2, 4, 8, 16, 32, 96, sizes[-1]}
    return [size for size in sizes if size in some or size % 64 == 0]


def capture_lengths(num_drafts: int) -> list[int]:
    """Numbers of drafts worth a graph, ascending to ``num_drafts``."""
    return sorted({1, 2, 3, 5, 7, 11, 15, 23, num_drafts} & set(range(1, num_drafts + 1)))


def cut(num_tokens: int, max_queries: int) -> tuple[int, int]:
    """(parts, tokens of each): the fewest equal parts of at most ``max_queries`` tokens that so
    many tokens of a sequence fit in."""
    parts = -(-num_tokens // max_queries)
    return parts, -(-num_tokens // parts)


def max_checked_tokens(max_num_seqs: int, num_drafts: int) -> int:
    """Tokens of a step with drafts that runs as a graph, at most, padding included; and so also
    parts of sequences."""
    of_each = 2 * (1 + num_drafts)  # The last of its parts is not all padding.
    return max(of_each, min(max_num_seqs * of_each, MAX_CHECKED_TOKENS))


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
