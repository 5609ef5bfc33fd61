"""Steps as CUDA graphs: one launch in place of the hundreds that the layers make.

In a graph every sequence computes equally many tokens, its *queries*: one to decode, or one known
token and k drafts that are checked. A sequence that has fewer drafts is filled up with the tokens
before its own, which are computed once more, write nothing and are looked at by nobody. (Tokens
behind its own would read what others left in places that it has not written.)

More tokens than attention decodes at once are so many sequences to it, one behind the other: all
tokens' keys are stored before it begins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import takewhile
from operator import add
from typing import NamedTuple

import numpy as np
import torch

from engine.attention.base import CapturableBackend
from engine.executors.base import Executor, Executors
from engine.layers.attention import KVCache, StepContext
from engine.layers.vision import Sight
from engine.lora.slots import AdapterSlots, captured
from engine.runner.graphs.fused import log_faster, measure_most_tokens
from engine.runner.graphs.shared_inputs import SharedInputs
from engine.runner.graphs.sized import (
    SizedGraphs,
    adapted_sizes,
    capture_all,
    capture_lengths,
    capture_sizes,
    cut,
    sharing_sizes,
)
from engine.runner.graphs.static_inputs import SequenceBuffers
from engine.runner.inputs import ChunkFields, SampledTokens
from engine.runner.rows import RowTable
from engine.runner.states import StateCache
from engine.sampling.sampler import DeviceRows
from kernels.transfer import to_device


class Kind(NamedTuple):
    """What steps have graphs of their own, so that a step pays only for what it needs."""

    num_queries: int = 1
    """Tokens of each sequence."""
    shared: bool = False
    """Sequences share prefixes, which are read once; decode steps only."""
    adapted: bool = False
    """Some tokens have a LoRA adapter."""
    resting: bool = False
    """The step keeps nothing for a draft network; decode steps without adapters only."""
    shifted: bool = False
    """Some sequences have rotary positions that are shifted, because they come behind pictures;
    without adapters only."""


class StepGraphs:
    """Graphs of the forward pass for steps in which each chunk samples after all of its tokens.

    Few tokens have some by the fused executor, if there is one, up to the lengths for which
    ``capture`` measured them to be faster.
    """

    def __init__(
        self,
        executors: Executors,
        kv_cache: KVCache,
        table: RowTable,
        attention: CapturableBackend,
        adapters: AdapterSlots | None = None,
        *,
        num_drafts: int = 0,
        states: StateCache | None = None,
        shifts: torch.Tensor | None = None,
    ) -> None:
        """adapters: if any, they are capturable. num_drafts: of a sequence, at most; 0 where layers
        keep states. shifts: [rows] int64, of rotary positions; None if there never are any."""
        self._executors = executors
        self._kv_cache = kv_cache
        self._table = table
        self._attention = attention
        self._adapters = adapters
        self._states = states
        self._shifts = shifts
        self._shared: SharedInputs | None = None
        if attention.sharing is not None and table.num_rows > 1:
            self._shared = SharedInputs(table, attention.sharing)
        self.lengths = capture_lengths(num_drafts)
        """Numbers of drafts of each sequence, of which there are graphs; empty without drafts."""
        self._buffers: dict[int, SequenceBuffers] = {}
        """By the tokens of each sequence, ascending."""
        self._families: dict[Kind, SizedGraphs] = {}
        self._fused: dict[Kind, SizedGraphs] = {}
        """Those by the fused executor."""
        self._max_tokens: dict[tuple[int, int], int] = {}
        """By the tokens of each sequence and the size: known tokens of all sequences together, for
        which they are faster."""
        self._even: dict[tuple[int, int], SampledTokens] = {}
        """By the tokens of each sequence and the batch: what is the same in all steps in which
        nothing is filled up."""
        for length in (0, *self.lengths):
            self._add(*cut(1 + length, attention.max_decode_queries))

    def _add(self, num_parts: int, part_length: int) -> None:
        """Add the graphs of steps with so many tokens of each sequence."""
        num_queries = num_parts * part_length
        table, sizes = self._table, capture_sizes(self._table.num_rows, num_queries)
        block_size = self._kv_cache[0][0].shape[1]
        buffers = SequenceBuffers(table, block_size, sizes[-1], num_queries, num_parts)
        self._buffers[num_queries] = buffers
        plain = Kind(num_queries)
        families = {plain: sizes}
        if self._adapters is not None:
            families[plain._replace(adapted=True)] = adapted_sizes(sizes)
        if num_queries == 1 and self._executors.resting is not None:
            families[Kind(resting=True)] = sizes
        if self._shifts is not None:
            for kind in [kind for kind in families if not kind.adapted]:
                families[kind._replace(shifted=True)] = sizes
        if num_queries == 1 and self._shared is not None:
            for kind, of_kind in list(families.items()):
                families[kind._replace(shared=True)] = sharing_sizes(of_kind)
        for kind, of_kind in families.items():
            forward = partial(self._forward, kind, self._executors_of(kind).recorded)
            self._families[kind] = SizedGraphs(of_kind, forward, num_queries)
        if num_queries > table.tokens.shape[1]:
            return  # No sequence has room for so many.
        for kind in (plain, Kind(resting=True)):
            if kind in families:
                self._add_fused(kind, sizes)

    def _add_fused(self, kind: Kind, sizes: list[int]) -> None:
        """Add graphs of the sizes that the fused executor serves, which are the smallest."""
        fused = self._executors_of(kind).fused
        if fused is None:
            return
        if few := list(takewhile(lambda size: fused.serves(self._step(kind, size)), sizes)):
            forward = partial(self._forward, kind, fused)
            self._fused[kind] = SizedGraphs(few, forward, kind.num_queries)

    def _executors_of(self, kind: Kind) -> Executors:
        return (self._executors.resting if kind.resting else None) or self._executors

    @property
    def num_fillers(self) -> int:
        """Tokens before its own that a sequence is filled up with, at most."""
        return max(self._buffers) - 1

    # ---- recording ------------------------------------------------------------------------------

    def capture(self, on_progress: Callable[[float], None]) -> None:
        """Record all graphs; ``on_progress`` hears how much is done, in [0, 1].

        Call it before any request has a row: measured steps write into blocks that nobody holds.
        """
        capture_all([*self._families.values(), *self._fused.values()], self._pad, on_progress)
        if self._fused:
            self._measure_fused()

    def _pad(self, size: int) -> None:
        nobody = np.zeros(0, np.int64)
        for buffers in self._buffers.values():
            if size <= buffers.max_batch:
                buffers.send(nobody, nobody, size=size)

    def _measure_fused(self) -> None:
        # What is kept for a draft network is no part of the layers: one kind stands for both.
        measured = {kind.num_queries: kind for kind in self._fused}
        for num_queries, kind in measured.items():
            fused, layers = self._fused[kind], self._families[kind]
            for size in fused.sizes:
                prepare = partial(self._send_even, num_queries, size)
                step = fused, layers, size, prepare, self._table, self._kv_cache
                self._max_tokens[num_queries, size] = measure_most_tokens(*step)
        names = {
            str(size) if num_queries == 1 else f"{size} × {num_queries}": most
            for (num_queries, size), most in self._max_tokens.items()
        }
        log_faster("steps", names)
        useful = {num_queries for (num_queries, _), most in self._max_tokens.items() if most}
        self._fused = {k: graphs for k, graphs in self._fused.items() if k.num_queries in useful}

    def _send_even(self, num_queries: int, size: int, seq_len: int) -> None:
        starts = np.full(size, max(0, seq_len - num_queries))
        self._buffers[num_queries].send(np.arange(size), starts, size=size)

    # ---- running --------------------------------------------------------------------------------

    def fits(self, fields: ChunkFields, *, adapted: bool = False, shifted: bool = False) -> bool:
        """Whether a step is one that ``run`` can execute. adapted: some rows have an adapter.
        shifted: or rotary positions of their own."""
        lens = fields.query_lens.tolist()  # For few numbers lists are faster than arrays.
        if fields.num_sampled.tolist() != lens:
            return False
        longest = max(lens)
        if longest > 1 + max(self.lengths, default=0):
            return False
        num_queries = self._num_queries(longest)
        graphs = self._families.get(Kind(num_queries, adapted=adapted, shifted=shifted))
        if graphs is None or len(lens) > graphs.max_batch:
            return False
        # Sequences that are filled up need tokens for that.
        return longest == 1 or bool(min(map(add, fields.computed.tolist(), lens)) >= num_queries)

    def _num_queries(self, longest: int) -> int:
        """Tokens of each sequence in the smallest graph that has so many."""
        return next(number for number in self._buffers if number >= longest)

    def run(
        self,
        fields: ChunkFields,
        *,
        adapted: bool = False,
        shifted: bool = False,
        keeps_features: bool = True,
    ) -> tuple[SampledTokens, torch.Tensor]:
        """Execute a step that ``fits``: what is sampled, and its logits [num_sampled, vocab].

        Both live in memory that the next ``run`` overwrites, in stream order. keeps_features: for a
        draft network; steps that check drafts always do.
        """
        longest, batch = int(fields.query_lens.max()), len(fields.rows)
        num_queries = self._num_queries(longest)
        decodes = num_queries == 1
        kind = Kind(
            num_queries,
            shared=decodes and self._shared is not None and self._shared.find(fields),
            adapted=adapted,
            resting=decodes
            and self._executors.resting is not None
            and not (keeps_features or adapted),
            shifted=shifted,
        )
        graphs, buffers = self._choose(fields, kind), self._buffers[num_queries]
        size = graphs.size_for(batch)
        if self._shared is not None and kind.shared:
            self._shared.send(size)
        if self._adapters is not None and adapted:
            self._adapters.send(fields.rows, size * num_queries, num_queries)
        # Not in the graph: the host's integers are arguments of the kernel that looks up the rest.
        if decodes:
            buffers.send(fields.rows, fields.computed, size=size)
        else:
            num_filled = num_queries - fields.query_lens
            buffers.send(fields.rows, fields.computed - num_filled, size=size)
            buffers.send_filled(num_filled)
        logits = graphs.replay(size)[: batch * num_queries]
        if decodes:
            on_device = DeviceRows(buffers.rows(batch), buffers.batch(batch).seq_lens)
            return SampledTokens.of(fields, on_device), logits
        if not num_filled.any():
            return self._evenly_sampled(fields, num_queries), logits
        own = np.flatnonzero((np.arange(num_queries) >= num_filled[:, None]).ravel())
        index = to_device(own, logits.device)
        rows, positions = buffers.sampled(batch).index_select(1, index)
        sampled = replace(SampledTokens.of(fields), on_device=DeviceRows(rows, positions))
        return sampled, logits.index_select(0, index)

    def _evenly_sampled(self, fields: ChunkFields, num_queries: int) -> SampledTokens:
        """As ``SampledTokens.of``, where nothing is filled up: most of it is the same each time."""
        key = num_queries, len(fields.rows)
        if key not in self._even:
            rows, positions = self._buffers[num_queries].sampled(len(fields.rows))
            sampled = SampledTokens.of(fields)
            self._even[key] = replace(sampled, on_device=DeviceRows(rows, positions))
        positions_on_host = (fields.computed[:, None] + np.arange(1, num_queries + 1)).ravel()
        rows_on_host = fields.rows.repeat(num_queries)
        return replace(self._even[key], rows=rows_on_host, positions=positions_on_host)

    def _choose(self, fields: ChunkFields, kind: Kind) -> SizedGraphs:
        layers, fused = self._families[kind], self._fused.get(kind)
        if fused is None or len(fields.rows) > fused.max_batch:
            return layers
        size = fused.size_for(len(fields.rows))
        num_tokens = int(fields.computed.sum() + fields.query_lens.sum())
        return fused if num_tokens <= self._max_tokens[kind.num_queries, size] else layers

    def _forward(self, kind: Kind, executor: Executor, size: int) -> torch.Tensor:
        buffers, num_tokens = self._buffers[kind.num_queries], size * kind.num_queries
        if kind.num_queries > 1:
            buffers.note_sampled(size)
        token_ids, _ = buffers.tokens(size)
        with captured(self._adapters if kind.adapted else None, num_tokens):
            return executor.logits(executor.hidden_states(token_ids, self._step(kind, size)))

    def _step(self, kind: Kind, size: int) -> StepContext:
        buffers = self._buffers[kind.num_queries]
        shared = self._shared if kind.shared else None
        prefixes = None if shared is None else shared.on_device(size)
        states, (_, positions) = self._states, buffers.tokens(size)
        return StepContext(
            positions,
            buffers.group_steps(self._attention, size, prefixes),
            self._kv_cache,
            adapted=kind.adapted,
            group_of=self._table.group_of,
            states=None if states is None else states.graph_step(buffers.rows(size), positions),
            sight=self._shifted(buffers.rows(size), positions) if kind.shifted else None,
        )

    def _shifted(self, rows: torch.Tensor, positions: torch.Tensor) -> Sight:
        """rows: of equally many positions each; those below 0 are padding."""
        assert self._shifts is not None
        shifts = self._shifts[rows.clamp(min=0)].repeat_interleave(len(positions) // len(rows))
        rotary = (positions + shifts).clamp(min=0)
        return Sight.of_text(rotary.expand(3, -1))
