"""Steps that check drafts as CUDA graphs: one known token and a number of drafts of each request.

In a graph every sequence computes as many tokens as the others. One that has fewer drafts is
filled up with the tokens before its own, which are computed once more, write nothing and are looked
at by nobody. (Tokens behind its own would read what others left in places that it has not written.)
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from engine.attention.base import CapturableBackend
from engine.layers.attention import KVCache, StepContext
from engine.lora.slots import AdapterSlots, captured
from engine.models.base import Model
from engine.runner.graphs import adapted_sizes
from engine.runner.inputs import ChunkFields, StepInputs, assemble
from engine.runner.rows import RowTable
from engine.runner.sized_graphs import SizedGraphs, capture_all
from engine.runner.static_inputs import SentRows, SequenceBuffers
from engine.sampling.sampler import DeviceRows
from kernels.transfer import to_device

MAX_BATCH = 128
"""Beyond, checking drafts hardly pays, and launching kernels takes less time than they do."""


def capture_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes worth a graph, ascending."""
    largest = min(max_num_seqs, MAX_BATCH)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_BATCH, 16)]
    return [*(size for size in sizes if size < largest), largest]


def capture_lengths(num_drafts: int) -> list[int]:
    """Numbers of drafts worth a graph, ascending to ``num_drafts``."""
    return sorted({1, 2, 3, 5, num_drafts} & set(range(num_drafts + 1)))


class VerifyGraphs:
    def __init__(
        self,
        model: Model,
        kv_cache: KVCache,
        table: RowTable,
        attention: CapturableBackend,
        adapters: AdapterSlots | None = None,
        *,
        block_size: int,
        max_num_seqs: int,
        num_drafts: int,
    ) -> None:
        """adapters: if any, they are capturable. num_drafts: of a sequence, at most."""
        assert num_drafts < attention.max_decode_queries
        self._model = model
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._adapters = adapters
        self._block_size = block_size
        sizes = capture_sizes(max_num_seqs)
        self.lengths = capture_lengths(num_drafts)
        """Drafts of each sequence, of which there are graphs."""
        self.num_fillers = num_drafts
        """Tokens before its own that a sequence is filled up with, at most."""
        self._sent = SentRows(sizes[-1], table.tokens.device, num_others=2)
        self._sampled: dict[int, torch.Tensor] = {}
        """Rows and positions of what is sampled: [2, tokens] int32."""
        self._buffers: dict[int, SequenceBuffers] = {}
        self._graphs: dict[tuple[int, bool], SizedGraphs] = {}
        """By the tokens of each sequence, and whether there are adapters."""
        of_kinds = (
            {False: sizes} if adapters is None else {False: sizes, True: adapted_sizes(sizes)}
        )
        for num_queries in (1 + length for length in self.lengths):
            self._buffers[num_queries] = SequenceBuffers(table, block_size, sizes[-1], num_queries)
            self._sampled[num_queries] = torch.zeros(
                2, sizes[-1] * num_queries, dtype=torch.int32, device=table.tokens.device
            )
            for adapted, of_kind in of_kinds.items():
                self._graphs[num_queries, adapted] = SizedGraphs(
                    of_kind, partial(self._forward, num_queries, adapted), num_queries
                )

    def capture(self) -> None:
        """Record all graphs."""
        capture_all(list(self._graphs.values()), self._sent.pad)

    def fits(self, fields: ChunkFields, *, adapted: bool = False) -> bool:
        """Whether a step is one that ``run`` can execute. adapted: some rows have an adapter."""
        if (fields.num_sampled != fields.query_lens).any():
            return False
        longest = int(fields.query_lens.max())
        if not 1 < longest <= 1 + self.lengths[-1]:
            return False
        num_queries = self._num_queries(longest)
        graphs = self._graphs.get((num_queries, adapted))
        if graphs is None or len(fields.rows) > graphs.max_batch:
            return False
        # Sequences that are filled up need tokens for that.
        ends = fields.computed + fields.query_lens
        return bool(ends.min() >= num_queries)

    def _num_queries(self, longest: int) -> int:
        """Tokens of each sequence in the smallest graph that has so many."""
        return next(number for number in self._buffers if number >= longest)

    def run(self, fields: ChunkFields, *, adapted: bool = False) -> tuple[StepInputs, torch.Tensor]:
        """Execute a step that ``fits``: its inputs, and its logits [num_tokens, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        lens = fields.query_lens
        num_queries = self._num_queries(int(lens.max()))
        graphs, buffers = self._graphs[num_queries, adapted], self._buffers[num_queries]
        batch, size = len(fields.rows), graphs.size_for(len(fields.rows))
        num_filled = num_queries - lens
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size * num_queries, num_queries)
        self._sent.send(fields.rows, fields.computed - num_filled, num_filled, size=size)
        logits = graphs.replay(size)[: batch * num_queries]
        token_ids, positions, slots = buffers.tokens(batch)
        sampled = self._sampled[num_queries][:, : batch * num_queries]
        if num_filled.any():
            own = np.flatnonzero((np.arange(num_queries) >= num_filled[:, None]).ravel())
            index = to_device(own, logits.device)
            logits, sampled = logits.index_select(0, index), sampled.index_select(1, index)
            token_ids, positions, slots = token_ids[index], positions[index], slots[index]
        inputs = assemble(
            fields,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            block_table=self._table.block_table,
        )
        return replace(inputs, sampled_on_device=DeviceRows(sampled[0], sampled[1])), logits

    def _forward(self, num_queries: int, adapted: bool, size: int) -> torch.Tensor:
        buffers = self._buffers[num_queries]
        rows, starts, num_filled = self._sent.of(size)
        buffers.look_up(rows, starts)
        token_ids, positions, slots = buffers.tokens(size)
        sampled = self._sampled[num_queries][:, : size * num_queries]
        sampled[0].view(size, num_queries).copy_(rows[:, None])
        sampled[1].copy_(positions + 1)
        buffers.skip_first(num_filled)
        attend = self._attention.prepare_decode(buffers.batch(size), self._block_size, num_queries)
        others = buffers.by_layer(size, self._attention)
        step = StepContext(
            positions, slots, attend, self._kv_cache, adapted=adapted, by_layer=others
        )
        with captured(self._adapters if adapted else None, size * num_queries):
            return self._model.logits(self._model.hidden_states(token_ids, step))
