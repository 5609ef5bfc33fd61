"""Steps that check drafts as CUDA graphs: one known token and a number of drafts of each request.

In a graph every sequence computes as many tokens as the others. One that has fewer drafts is
filled up with the tokens before its own, which are computed once more, write nothing and are looked
at by nobody. (Tokens behind its own would read what others left in places that it has not written.)

More tokens than attention decodes at once are so many sequences to it, one behind the other: all
tokens' keys are stored before it begins.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from functools import partial
from operator import add

import numpy as np
import torch

from engine.attention.base import CapturableBackend, plain_batch
from engine.layers.attention import KVCache, StepContext
from engine.lora.slots import AdapterSlots, captured
from engine.models.base import Model
from engine.runner.graphs.decode import adapted_sizes
from engine.runner.graphs.one_kernel import log_faster, measure_most_tokens
from engine.runner.graphs.sized import SizedGraphs, capture_all
from engine.runner.graphs.static_inputs import SentRows, SequenceBuffers
from engine.runner.inputs import ChunkFields, SampledTokens
from engine.runner.rows import Ints, RowTable
from engine.sampling.sampler import DeviceRows
from kernels.transfer import to_device

MAX_BATCH = 128
"""Beyond, checking drafts hardly pays, and launching kernels takes less time than they do."""
MAX_TOKENS = 8 * MAX_BATCH
"""Of all sequences of a step, likewise."""


def capture_sizes(max_num_seqs: int, num_queries: int = 1) -> list[int]:
    """Batch sizes worth a graph, ascending, of so many tokens for each sequence."""
    largest = min(max_num_seqs, MAX_BATCH, max(1, MAX_TOKENS // num_queries))
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, MAX_BATCH, 16)]
    return [*(size for size in sizes if size < largest), largest]


def capture_lengths(num_drafts: int) -> list[int]:
    """Numbers of drafts worth a graph, ascending to ``num_drafts``."""
    return sorted({1, 2, 3, 5, 7, 11, 15, 23, num_drafts} & set(range(num_drafts + 1)))


def cut(num_tokens: int, max_queries: int) -> tuple[int, int]:
    """(parts, tokens of each): the fewest equal parts of at most ``max_queries`` tokens that so
    many tokens of a sequence fit in."""
    parts = -(-num_tokens // max_queries)
    return parts, -(-num_tokens // parts)


def max_num_tokens(max_num_seqs: int, num_drafts: int) -> int:
    """Tokens of a step that runs as one of these graphs, at most, padding included; and so also
    parts of sequences."""
    of_each = 2 * (1 + num_drafts)  # The last of its parts is not all padding.
    return max(of_each, min(max_num_seqs * of_each, MAX_TOKENS))


class VerifyGraphs:
    """Few tokens have some with all layers as one kernel, too, as in ``DecodeGraphs``."""

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
        joined_tokens: Container[int] = (),
    ) -> None:
        """adapters: if any, they are capturable. num_drafts: of a sequence, at most. joined_tokens:
        numbers of tokens of a step for which one kernel behind each attention is faster."""
        self._model = model
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._adapters = adapters
        self._block_size = block_size
        self._joined_tokens = joined_tokens
        self.lengths = capture_lengths(num_drafts)
        """Drafts of each sequence, of which there are graphs."""
        most = capture_sizes(max_num_seqs)[-1]
        self._sent = SentRows(most, table.tokens.device, num_others=2)
        self._sampled: dict[int, torch.Tensor] = {}
        """Rows and positions of what is sampled: [2, tokens] int32."""
        self._even: dict[tuple[int, int], tuple[Ints, DeviceRows]] = {}
        """Of steps in which nothing is filled up, by the tokens of each sequence and the batch: the
        sequence of each token, and what is sampled."""
        self._buffers: dict[int, SequenceBuffers] = {}
        self._graphs: dict[tuple[int, bool], SizedGraphs] = {}
        """By the tokens of each sequence, and whether there are adapters."""
        self._as_one: dict[int, SizedGraphs] = {}
        """Those with the layers as one kernel, by the tokens of each sequence."""
        self._max_tokens: dict[tuple[int, int], int] = {}
        """By these and their sizes: known tokens of all sequences, for which they are faster."""
        for length in self.lengths:
            self._add(*cut(1 + length, attention.max_decode_queries), max_num_seqs)

    def _add(self, num_parts: int, part_length: int, max_num_seqs: int) -> None:
        """Add the graphs of steps with so many tokens of each sequence."""
        num_queries = num_parts * part_length
        table, sizes = self._table, capture_sizes(max_num_seqs, num_queries)
        self._buffers[num_queries] = SequenceBuffers(
            table, self._block_size, sizes[-1], num_queries, num_parts
        )
        self._sampled[num_queries] = torch.zeros(
            2, sizes[-1] * num_queries, dtype=torch.int32, device=table.tokens.device
        )
        kinds = {False: sizes}
        if self._adapters is not None:
            kinds[True] = adapted_sizes(sizes)
        for adapted, of_kind in kinds.items():
            self._graphs[num_queries, adapted] = SizedGraphs(
                of_kind, partial(self._forward, num_queries, adapted), num_queries
            )
        most_as_one = self._model.max_one_kernel_drafted
        few = [size for size in sizes if size * num_queries <= most_as_one]
        fits = num_queries <= table.tokens.shape[1]  # else there are no such steps
        if few and fits and self._leaves_attention_to_others(num_queries):
            forward = partial(self._forward, num_queries, False, one_kernel=True)
            self._as_one[num_queries] = SizedGraphs(few, forward, num_queries)

    @property
    def num_fillers(self) -> int:
        """Tokens before its own that a sequence is filled up with, at most."""
        return max(self._buffers) - 1

    def capture(self) -> None:
        """Record all graphs.

        Call it before any request has a row: measured steps write into blocks that nobody holds.
        """
        capture_all([*self._graphs.values(), *self._as_one.values()], self._sent.pad)
        if self._as_one:
            self._measure_all_as_one()

    def _leaves_attention_to_others(self, num_queries: int) -> bool:
        first = self._buffers[num_queries].group_step(self._attention, 1)
        return plain_batch(first.attend) is not None

    def _measure_all_as_one(self) -> None:
        for num_queries, as_one in self._as_one.items():
            for size in as_one.sizes:
                prepare = partial(self._send_even, num_queries, size)
                layers = self._graphs[num_queries, False]
                step = as_one, layers, size, prepare, self._table, self._kv_cache
                self._max_tokens[num_queries, size] = measure_most_tokens(*step)
        names = {f"{size} × {n}": most for (n, size), most in self._max_tokens.items()}
        log_faster("steps that check drafts", names)

    def _send_even(self, num_queries: int, size: int, seq_len: int) -> None:
        starts = np.full(size, max(0, seq_len - num_queries))
        self._sent.send(np.arange(size), starts, np.zeros(size, np.int64), size=size)

    def fits(self, fields: ChunkFields, *, adapted: bool = False) -> bool:
        """Whether a step is one that ``run`` can execute. adapted: some rows have an adapter."""
        lens = fields.query_lens.tolist()  # For few numbers lists are faster than arrays.
        if fields.num_sampled.tolist() != lens:
            return False
        longest = max(lens)
        if not 1 < longest <= 1 + self.lengths[-1]:
            return False
        num_queries = self._num_queries(longest)
        graphs = self._graphs.get((num_queries, adapted))
        if graphs is None or len(fields.rows) > graphs.max_batch:
            return False
        # Sequences that are filled up need tokens for that.
        return bool(min(map(add, fields.computed.tolist(), lens)) >= num_queries)

    def _num_queries(self, longest: int) -> int:
        """Tokens of each sequence in the smallest graph that has so many."""
        return next(number for number in self._buffers if number >= longest)

    def run(
        self, fields: ChunkFields, *, adapted: bool = False
    ) -> tuple[SampledTokens, torch.Tensor]:
        """Execute a step that ``fits``: what is sampled, and its logits [num_tokens, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order.
        """
        lens = fields.query_lens.tolist()
        num_queries = self._num_queries(max(lens))
        graphs = self._choose(fields, num_queries, adapted)
        batch, size = len(fields.rows), graphs.size_for(len(fields.rows))
        num_filled = num_queries - fields.query_lens
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size * num_queries, num_queries)
        self._sent.send(fields.rows, fields.computed - num_filled, num_filled, size=size)
        logits = graphs.replay(size)
        if batch < size:
            logits = logits[: batch * num_queries]
        if min(lens) == num_queries:
            return self._evenly_sampled(fields, num_queries), logits
        sampled = self._sampled[num_queries][:, : batch * num_queries]
        own = np.flatnonzero((np.arange(num_queries) >= num_filled[:, None]).ravel())
        index = to_device(own, logits.device)
        sampled = sampled.index_select(1, index)
        found = SampledTokens.of(fields)
        found = replace(found, on_device=DeviceRows(sampled[0], sampled[1]))
        return found, logits.index_select(0, index)

    def _evenly_sampled(self, fields: ChunkFields, num_queries: int) -> SampledTokens:
        """As ``SampledTokens.of``, where nothing is filled up: most of it is the same each time."""
        batch = len(fields.rows)
        even = self._even.get((num_queries, batch))
        if even is None:
            sampled = self._sampled[num_queries][:, : batch * num_queries]
            even = self._even[num_queries, batch] = (
                np.arange(batch).repeat(num_queries),
                DeviceRows(sampled[0], sampled[1]),
            )
        chunks, on_device = even
        return SampledTokens(
            chunks,
            once_each=False,
            rows=fields.rows.repeat(num_queries),
            positions=(fields.computed[:, None] + np.arange(1, num_queries + 1)).ravel(),
            on_device=on_device,
        )

    def _choose(self, fields: ChunkFields, num_queries: int, adapted: bool) -> SizedGraphs:
        layers, as_one = self._graphs[num_queries, adapted], self._as_one.get(num_queries)
        if as_one is None or adapted or len(fields.rows) > as_one.max_batch:
            return layers
        max_tokens = self._max_tokens[num_queries, as_one.size_for(len(fields.rows))]
        num_tokens = int(fields.computed.sum() + fields.query_lens.sum())
        return as_one if num_tokens <= max_tokens else layers

    def _forward(
        self, num_queries: int, adapted: bool, size: int, *, one_kernel: bool = False
    ) -> torch.Tensor:
        buffers = self._buffers[num_queries]
        rows, starts, num_filled = self._sent.of(size)
        buffers.look_up(rows, starts)
        token_ids, positions = buffers.tokens(size)
        sampled = self._sampled[num_queries][:, : size * num_queries]
        sampled[0].view(size, num_queries).copy_(rows[:, None])
        sampled[1].copy_(positions + 1)
        buffers.skip_first(num_filled)
        step = StepContext(
            positions,
            buffers.group_steps(self._attention, size),
            self._kv_cache,
            adapted=adapted,
            group_of=self._table.group_of,
            one_kernel=one_kernel,
            joins_products=size * num_queries in self._joined_tokens,
        )
        with captured(self._adapters if adapted else None, size * num_queries):
            return self._model.logits(self._model.hidden_states(token_ids, step))
