"""Decode steps as CUDA graphs: one launch in place of the hundreds that the layers make.

A graph has a fixed shape, so there is one for each of a few batch sizes; a batch runs in the next
larger one, filled up with rows that write nothing. A graph reads what to do from a buffer of two
integers a sequence, and everything else from the row table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import CapturableBackend, DeviceBatch
from engine.layers.attention import KVCache, StepContext
from engine.models.base import Model
from engine.runner.inputs import ChunkFields, StepInputs, assemble
from engine.runner.rows import RowTable
from kernels import cuda


def capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph: close enough that padding costs little, the largest included."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor
    """[size, vocab], overwritten by the next replay of any size."""


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
        self._captured: dict[int, _Captured] = {}
        self._size_for = np.zeros(max_num_seqs + 1, np.int64)

    @torch.inference_mode()
    def capture(self, on_progress: Callable[[float], None]) -> None:
        """Record all graphs; ``on_progress`` hears how much is done, in [0, 1]."""
        sizes = capture_sizes(self.max_batch)
        pool = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones fit into its memory.
        for done, size in enumerate(reversed(sizes)):
            self._sent[:size] = -1
            self._forward(size)  # whatever is compiled or chosen at first use
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = self._forward(size)
            self._captured[size] = _Captured(graph, logits)
            on_progress((done + 1) / len(sizes))
        self._size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(self.max_batch + 1))]

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
        size = int(self._size_for[batch])
        host = torch.empty(2, size, dtype=torch.int32, pin_memory=True)
        filled = host.numpy()
        filled[0, :batch], filled[0, batch:] = fields.rows, -1
        filled[1, :batch] = fields.computed
        self._sent[: 2 * size].copy_(host.view(-1), non_blocking=True)
        captured = self._captured[size]
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

    def _batch(self, size: int) -> DeviceBatch:
        return DeviceBatch(
            self._seq_lens[:size], self._cu_queries[: size + 1], self._batch_table[:size]
        )

    def _forward(self, size: int) -> torch.Tensor:
        batch = self._batch(size)
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
