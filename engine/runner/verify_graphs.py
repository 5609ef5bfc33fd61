"""Steps that check drafts as CUDA graphs: every sequence computes as many tokens as the others.

That is the common step of speculative decoding: one known token and a number of guesses of each
request. Where some have fewer, the step runs without a graph.
"""

from __future__ import annotations

from functools import partial
from itertools import product

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
        self._sent = SentRows(sizes[-1], table.tokens.device)
        self._buffers: dict[int, SequenceBuffers] = {}
        self._graphs: dict[tuple[int, bool], SizedGraphs] = {}
        """By the tokens of each sequence, and whether there are adapters."""
        of_kinds = (
            {False: sizes} if adapters is None else {False: sizes, True: adapted_sizes(sizes)}
        )
        for length, (adapted, of_kind) in product(self.lengths, of_kinds.items()):
            num_queries = 1 + length
            self._buffers[num_queries] = SequenceBuffers(table, block_size, sizes[-1], num_queries)
            self._graphs[num_queries, adapted] = SizedGraphs(
                of_kind, partial(self._forward, num_queries, adapted), num_queries
            )

    def capture(self) -> None:
        """Record all graphs."""
        capture_all(list(self._graphs.values()), self._sent.pad)

    def fits(self, fields: ChunkFields, *, adapted: bool = False) -> bool:
        """Whether a step is one that ``run`` can execute. adapted: some rows have an adapter."""
        num_queries = int(fields.query_lens[0])
        graphs = self._graphs.get((num_queries, adapted))
        return bool(
            graphs is not None
            and len(fields.rows) <= graphs.max_batch
            and (fields.query_lens == num_queries).all()
            and (fields.num_places == num_queries).all()
        )

    def run(self, fields: ChunkFields, *, adapted: bool = False) -> tuple[StepInputs, torch.Tensor]:
        """Execute a step that ``fits``: its inputs, and its logits [num_tokens, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        batch, num_queries = len(fields.rows), int(fields.query_lens[0])
        graphs, buffers = self._graphs[num_queries, adapted], self._buffers[num_queries]
        size = graphs.size_for(batch)
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size * num_queries, num_queries)
        self._sent.send(fields.rows, fields.computed, size)
        logits = graphs.replay(size)
        token_ids, positions, slots = buffers.tokens(batch)
        inputs = assemble(
            fields,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            block_table=self._table.block_table,
            on_device=buffers.batch(batch),
        )
        return inputs, logits[: batch * num_queries]

    def _forward(self, num_queries: int, adapted: bool, size: int) -> torch.Tensor:
        buffers = self._buffers[num_queries]
        buffers.look_up(*self._sent.of(size))
        token_ids, positions, slots = buffers.tokens(size)
        attend = self._attention.prepare_decode(buffers.batch(size), self._block_size, num_queries)
        others = buffers.by_layer(size, self._attention)
        step = StepContext(
            positions, slots, attend, self._kv_cache, adapted=adapted, by_layer=others
        )
        with captured(self._adapters if adapted else None, size * num_queries):
            return self._model.logits(self._model.hidden_states(token_ids, step))
