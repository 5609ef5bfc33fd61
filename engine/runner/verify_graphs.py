"""Steps that check drafts as CUDA graphs: every sequence computes as many tokens as the others.

That is the common step of speculative decoding: one known token and ``num_speculative_tokens``
guesses of each request. Where some have fewer, the step runs without a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import CapturableBackend, DeviceBatch
from engine.layers.attention import KVCache, StepContext
from engine.models.base import Model
from engine.runner.inputs import ChunkFields, StepInputs, assemble
from engine.runner.rows import Ints, RowTable
from kernels import cuda

MAX_BATCH = 128
"""Beyond, checking drafts hardly pays, and launching kernels takes less time than they do."""


def capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph, ascending."""
    largest = min(max_num_seqs, MAX_BATCH)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_BATCH, 16)]
    return [*(size for size in sizes if size < largest), largest]


class SequenceBuffers:
    """Static memory for the inputs of ``num_queries`` tokens of each of up to so many sequences."""

    def __init__(self, table: RowTable, block_size: int, max_batch: int, num_queries: int) -> None:
        device = table.tokens.device
        self._table = table
        self._block_size = block_size
        self._num_queries = num_queries

        def int32(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        ends = num_queries * torch.arange(max_batch + 1, device=device)
        self._cu_queries = ends.to(torch.int32)
        self._seq_lens = int32(max_batch)
        self._batch_table = int32(max_batch * table.block_table.shape[1]).view(max_batch, -1)
        self._tokens = torch.zeros(3, max_batch * num_queries, dtype=torch.int64, device=device)

    def batch(self, size: int) -> DeviceBatch:
        return DeviceBatch(
            self._seq_lens[:size], self._cu_queries[: size + 1], self._batch_table[:size]
        )

    def tokens(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token ids, positions, slots: [size * num_queries] int64 each."""
        token_ids, positions, slots = self._tokens[:, : size * self._num_queries]
        return token_ids, positions, slots

    def look_up(self, rows: torch.Tensor, computed: torch.Tensor) -> None:
        """The tokens from ``computed`` on, of each of ``rows`` (-1 for padding): [size] int32."""
        size = len(rows)
        batch = self.batch(size)
        token_ids, positions, slots = self.tokens(size)
        cuda.step_inputs(
            self._table.tokens,
            self._table.block_table,
            rows,
            computed,
            batch.cu_queries,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            seq_lens=batch.seq_lens,
            batch_table=batch.block_table,
            block_size=self._block_size,
        )


class SentRows:
    """Two integers a sequence on the device, brought there by one copy."""

    def __init__(self, sizes: list[int], device: torch.device) -> None:
        self._sent = torch.zeros(2 * sizes[-1], dtype=torch.int32, device=device)
        self._size_for = np.array(sizes)[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]

    def of(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows and the other integer: [size] int32 each."""
        return self._sent[:size], self._sent[size : 2 * size]

    def pad(self, size: int) -> None:
        self._sent[:size] = -1

    def send(self, rows: Ints, values: Ints) -> int:
        """The size that they run in; rows behind them are -1."""
        batch = len(rows)
        size = int(self._size_for[batch])
        host = torch.empty(2, size, dtype=torch.int32, pin_memory=True)
        filled = host.numpy()
        filled[0, :batch], filled[0, batch:] = rows, -1
        filled[1, :batch], filled[1, batch:] = values, 0
        self._sent[: 2 * size].copy_(host.view(-1), non_blocking=True)
        return size


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    out: torch.Tensor
    """Overwritten by the next replay of any size."""


class VerifyGraphs:
    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        table: RowTable,
        attention: CapturableBackend,
        *,
        block_size: int,
        max_num_seqs: int,
        num_drafts: int,
    ) -> None:
        assert num_drafts < attention.max_decode_queries
        self._model = model
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._block_size = block_size
        self._num_queries = num_drafts + 1
        self._sizes = capture_sizes(max_num_seqs)
        self._sent = SentRows(self._sizes, table.tokens.device)
        self._buffers = SequenceBuffers(table, block_size, self._sizes[-1], self._num_queries)
        self._captured: dict[int, Captured] = {}

    @torch.inference_mode()
    def capture(self) -> None:
        """Record all graphs."""
        pool = torch.cuda.graph_pool_handle()
        for size in reversed(self._sizes):
            self._sent.pad(size)
            self._forward(size)  # whatever is compiled or chosen at first use
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = self._forward(size)
            self._captured[size] = Captured(graph, logits)

    def fits(self, fields: ChunkFields) -> bool:
        """Whether a step is one that ``run`` can execute."""
        return bool(
            len(fields.rows) <= self._sizes[-1]
            and (fields.query_lens == self._num_queries).all()
            and (fields.num_places == self._num_queries).all()
        )

    def run(self, fields: ChunkFields) -> tuple[StepInputs, torch.Tensor]:
        """Execute a step that ``fits``: its inputs, and its logits [num_tokens, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        batch = len(fields.rows)
        size = self._sent.send(fields.rows, fields.computed)
        captured = self._captured[size]
        captured.graph.replay()
        token_ids, positions, slots = self._buffers.tokens(batch)
        inputs = assemble(
            fields,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            block_table=self._table.block_table,
            on_device=self._buffers.batch(batch),
        )
        return inputs, captured.out[: batch * self._num_queries]

    def _forward(self, size: int) -> torch.Tensor:
        self._buffers.look_up(*self._sent.of(size))
        token_ids, positions, slots = self._buffers.tokens(size)
        batch = self._buffers.batch(size)
        attend = self._attention.prepare_decode(batch, self._block_size, self._num_queries)
        step = StepContext(positions, slots, attend, self._kv_cache)
        return self._model.logits(self._model.hidden_states(token_ids, step))
