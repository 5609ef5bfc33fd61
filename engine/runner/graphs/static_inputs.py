"""Memory that CUDA graphs read their inputs from.

The host sends only a few integers per sequence; everything else is looked up in the row table.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from engine.attention.base import CapturableBackend, DeviceBatch
from engine.layers.attention import GroupStep
from engine.runner.rows import Ints, RowTable
from kernels import cuda
from kernels.cuda import SharedPrefixes
from kernels.transfer import write


class SentRows:
    """Two integers per sequence, sent to the device in one copy: its row, and another."""

    def __init__(self, max_batch: int, device: torch.device) -> None:
        self._sent = torch.zeros(2 * max_batch, dtype=torch.int32, device=device)
        # To take parts of tensors costs the host more than to keep them.
        self._parts: dict[int, tuple[torch.Tensor, ...]] = {}
        self._targets: dict[int, torch.Tensor] = {}

    def of(self, size: int) -> tuple[torch.Tensor, ...]:
        """The rows, then the other integers: [size] int32 each."""
        parts = self._parts.get(size)
        if parts is None:
            parts = self._sent[: 2 * size].view(2, size).unbind(0)
            self._parts[size] = parts
        return parts

    def pad(self, size: int) -> None:
        self._sent[:size] = -1

    def send(self, rows: Ints, others: Ints, *, size: int) -> None:
        """Send these; rows beyond them, up to ``size``, are -1."""
        batch = len(rows)
        if batch == size:
            host = np.concatenate((rows, others), dtype=np.int32, casting="same_kind")
        else:
            padded = np.zeros((2, size), np.int32)
            padded[0, batch:] = -1
            padded[:, :batch] = rows, others
            host = padded.reshape(-1)
        target = self._targets.get(size)
        if target is None:
            target = self._targets[size] = self._sent[: 2 * size]
        write(target, host)


class SequenceBuffers:
    """The inputs of ``num_queries`` tokens of each of up to so many sequences.

    For attention a sequence may be cut into parts of equally many tokens, each of which is a
    sequence of its own that ends where the next one begins."""

    def __init__(
        self,
        table: RowTable,
        block_size: int,
        max_batch: int,
        num_queries: int,
        num_parts: int = 1,
    ) -> None:
        assert num_queries % num_parts == 0
        device = table.tokens.device
        self._table = table
        self._block_size = block_size
        self._num_queries = num_queries
        self._num_parts = num_parts
        self.part_length = num_queries // num_parts
        """Tokens of what attention takes for a sequence."""

        def int32(size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        self.max_batch = max_batch
        self._part_starts = self.part_length * np.arange(num_parts)
        most = max_batch * num_parts
        self._rows = int32(most)
        self._num_filled = int32(max_batch)
        self._has_filled = False
        """Whether any of ``_num_filled`` is not 0."""
        self._sampled = int32(2 * max_batch * num_queries).view(2, -1)
        ends = self.part_length * torch.arange(most + 1, device=device)
        self._cu_queries = ends.to(torch.int32)
        self._seq_lens = int32(most)
        num_groups, _, width = table.block_tables.shape
        self._batch_tables = int32(num_groups * most * width).view(num_groups, most, -1)
        self._tokens = torch.zeros(2, max_batch * num_queries, dtype=torch.int64, device=device)
        self._slots = self._tokens.new_zeros(num_groups, max_batch * num_queries)
        self._batches: dict[tuple[int, int], DeviceBatch] = {}
        self._parts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def batch(self, size: int, group: int = 0) -> DeviceBatch:
        """The sequences, or their parts, as the layers of a group see them."""
        batch = self._batches.get((size, group))
        if batch is None:
            num = size * self._num_parts
            batch = self._batches[size, group] = DeviceBatch(
                self._seq_lens[:num],
                self._cu_queries[: num + 1],
                self._batch_tables[group, :num],
                group=group,
                in_parts=self._num_parts > 1,
            )
        return batch

    def tokens(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and positions: [size * num_queries] int64 each."""
        parts = self._parts.get(size)
        if parts is None:
            token_ids, positions = self._tokens[:, : size * self._num_queries]
            parts = self._parts[size] = token_ids, positions
        return parts

    def slots(self, size: int, group: int = 0) -> torch.Tensor:
        """Where the layers of a group store keys and values: [size * num_queries] int64."""
        return self._slots[group, : size * self._num_queries]

    def group_step(
        self,
        attention: CapturableBackend,
        size: int,
        group: int = 0,
        shared: SharedPrefixes | None = None,
    ) -> GroupStep:
        """The step for the layers of a group, with attention that a graph can capture. shared: see
        ``DeviceBatch``."""
        batch = self.batch(size, group)
        batch = batch if shared is None else replace(batch, shared=shared)
        attend = attention.prepare_decode(batch, self._block_size, self.part_length)
        return GroupStep(self.slots(size, group), attend)

    def group_steps(
        self, attention: CapturableBackend, size: int, shared: SharedPrefixes | None = None
    ) -> list[GroupStep]:
        """The step for every group. shared: of the blocks of the first one."""
        return [
            self.group_step(attention, size, group, None if group else shared)
            for group in range(len(self._table.windows))
        ]

    def rows(self, size: int) -> torch.Tensor:
        """The rows that ``send`` has sent, one for each part: [size * num_parts] int32."""
        return self._rows[: size * self._num_parts]

    def send(self, rows: Ints, computed: Ints, *, size: int) -> None:
        """Fill in the tokens from position ``computed`` on of each of ``rows``, which the host
        knows. Sequences beyond these, up to ``size``, are padding."""
        host = np.full((2, size, self._num_parts), -1, np.int32)
        host[0, : len(rows)] = rows[:, None]
        host[1, : len(rows)] = computed[:, None] + self._part_starts
        sent = torch.from_numpy(host).view(2, -1)
        self._look_up(sent[0], sent[1], self.rows(size))

    def send_filled(self, num_filled: Ints) -> None:
        """Tell the graphs how many of each sequence's first tokens fill it up: they are not
        written. None are of the sequences beyond these."""
        has_filled = bool(num_filled.any())
        if has_filled or self._has_filled:
            host = np.zeros(self.max_batch, np.int32)
            host[: len(num_filled)] = num_filled
            write(self._num_filled, host)
            self._has_filled = has_filled

    def note_sampled(self, size: int) -> None:
        """In a graph, after ``send``: fill in ``sampled``, and keep what ``send_filled`` said from
        being written."""
        rows, positions = self.sampled(size)
        rows.view(-1, self.part_length).copy_(self.rows(size)[:, None])
        positions.copy_(self.tokens(size)[1] + 1)
        places = torch.arange(self._num_queries, dtype=torch.int32, device=rows.device)
        is_filler = places < self._num_filled[:size, None]
        slots = self._slots[:, : size * self._num_queries]
        slots.view(len(slots), size, -1).masked_fill_(is_filler, -1)

    def sampled(self, size: int) -> torch.Tensor:
        """Rows and positions of what is sampled after each token: [2, size * num_queries] int32."""
        return self._sampled[:, : size * self._num_queries]

    def look_up(self, rows: torch.Tensor, computed: torch.Tensor) -> None:
        """As ``send``, of sequences that are not cut, from what the device knows: [size] int32
        each; row -1 is padding."""
        assert self._num_parts == 1
        self._look_up(rows, computed)

    def _look_up(
        self, rows: torch.Tensor, computed: torch.Tensor, sent_rows: torch.Tensor | None = None
    ) -> None:
        size = len(rows) // self._num_parts
        token_ids, positions = self.tokens(size)
        for group, block_table in enumerate(self._table.block_tables):
            batch = self.batch(size, group)
            cuda.native.step_inputs(
                self._table.tokens,
                block_table,
                rows,
                computed,
                cu_queries=batch.cu_queries,
                token_ids=token_ids,
                positions=positions,
                slots=self.slots(size, group),
                seq_lens=batch.seq_lens,
                batch_table=batch.block_table,
                block_size=self._block_size,
                sent_rows=sent_rows,
            )
