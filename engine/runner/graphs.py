"""Decode steps as CUDA graphs: one launch in place of the hundreds that the layers make.

A graph has a fixed shape, so there is one for each of a few batch sizes; a batch runs in the next
larger one, filled up with rows that write nothing. A graph reads what to do from a buffer of two
integers a sequence, and everything else from the row table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.base import CapturableBackend, DeviceBatch
from engine.layers.attention import KVCache, StepContext
from engine.models.base import Model
from engine.runner.inputs import ChunkFields, StepInputs, assemble
from engine.runner.rows import RowTable
from engine.runner.shared_inputs import SharedInputs
from kernels import cuda


def capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph: close enough that padding costs little, the largest included."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


def sharing_sizes(sizes: list[int]) -> list[int]:
    """Those of the batch sizes that are worth a second graph, for batches with shared prefixes."""
    return [size for size in sizes if size in (8, 16, sizes[-1]) or size % 32 == 0]


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    """[size, vocab], overwritten by the next replay of any size."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The graphs of one kind, by batch size."""

    sizes: list[int]
    size_for: npt.NDArray[np.int64]
    """[largest + 1]: the size in which a batch runs."""
    captured: dict[int, _Captured]

    @classmethod
    def of(cls, sizes: list[int]) -> _Sizes:
        size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]
        return cls(sizes, size_for, {})


class DecodeGraphs:
    """Graphs of the forward pass for steps in which every sequence computes one token."""

    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        table: RowTable,
        attention: CapturableBackend,
        *,
        block_size: int,
        max_num_seqs: int,
    ) -> None:
        device = table.tokens.device
        self._model = model
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._block_size = block_size
        self.max_batch = max_num_seqs

        def int32(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        # Rows, then computed tokens, of the size at hand: one copy brings both.
        self._sent = int32(2 * max_num_seqs)
        self._cu_queries = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._seq_lens = int32(max_num_seqs)
        self._batch_table = int32(max_num_seqs * table.block_table.shape[1]).view(max_num_seqs, -1)
        self._tokens = torch.zeros(3, max_num_seqs, dtype=torch.int64, device=device)
        sizes = capture_sizes(max_num_seqs)
        self._plain = _Sizes.of(sizes)
        self._shared = None
        self._sharing = None
        if attention.sharing is not None and max_num_seqs > 1:
            self._shared = SharedInputs(table, attention.sharing)
            self._sharing = _Sizes.of(sharing_sizes(sizes))

    @torch.inference_mode()
    def capture(self, on_progress: Callable[[float], None]) -> None:
        """Record all graphs; ``on_progress`` hears how much is done, in [0, 1]."""
        families = [family for family in (self._plain, self._sharing) if family is not None]
        # The largest first: the smaller ones fit into its memory.
        work = sorted(
            ((size, family) for family in families for size in family.sizes),
            key=lambda item: -item[0],
        )
        pool = torch.cuda.graph_pool_handle()
        for done, (size, family) in enumerate(work):
            shared = family is self._sharing
            self._sent[:size] = -1
            self._forward(size, shared=shared)  # whatever is compiled or chosen at first use
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = self._forward(size, shared=shared)
            family.captured[size] = _Captured(graph, logits)
            on_progress((done + 1) / len(work))

    def fits(self, fields: ChunkFields) -> bool:
        """Whether a step is one that ``run`` can execute."""
        return bool(
            len(fields.rows) <= self.max_batch
            and (fields.query_lens == 1).all()
            and (fields.num_places == 1).all()
        )

    def run(self, fields: ChunkFields) -> tuple[StepInputs, torch.Tensor]:
        """Execute a step that ``fits``: its inputs, and its logits [num_chunks, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        batch = len(fields.rows)
        family = self._plain
        if self._shared is not None and self._sharing is not None and self._shared.find(fields):
            family = self._sharing
        size = int(family.size_for[batch])
        if family is self._sharing and self._shared is not None:
            self._shared.send(size)
        host = torch.empty(2, size, dtype=torch.int32, pin_memory=True)
        filled = host.numpy()
        filled[0, :batch], filled[0, batch:] = fields.rows, -1
        filled[1, :batch] = fields.computed
        self._sent[: 2 * size].copy_(host.view(-1), non_blocking=True)
        captured = family.captured[size]
        captured.graph.replay()
        token_ids, positions, slots = self._tokens[:, :batch]
        inputs = assemble(
            fields,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            block_table=self._table.block_table,
            on_device=self._batch(batch),
            rows=self._sent[:batch],
        )
        return inputs, captured.logits[:batch]

    def _batch(self, size: int, *, shared: bool = False) -> DeviceBatch:
        return DeviceBatch(
            self._seq_lens[:size],
            self._cu_queries[: size + 1],
            self._batch_table[:size],
            self._shared.on_device(size) if shared and self._shared is not None else None,
        )

    def _forward(self, size: int, *, shared: bool) -> torch.Tensor:
        batch = self._batch(size, shared=shared)
        token_ids, positions, slots = self._tokens[:, :size]
        cuda.step_inputs(
            self._table.tokens,
            self._table.block_table,
            self._sent[:size],
            self._sent[size : 2 * size],
            batch.cu_queries,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            seq_lens=batch.seq_lens,
            batch_table=batch.block_table,
            block_size=self._block_size,
        )
        attend = self._attention.prepare_decode(batch, self._block_size)
        step = StepContext(positions, slots, attend, self._kv_cache)
        return self._model.logits(self._model.hidden_states(token_ids, step))
