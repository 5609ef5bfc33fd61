"""Turning a plan's chunks into the tensors of a forward pass.

Chunk i of row r computes the tokens [c, c + n) of the row:

    token_ids    tokens[r, c .. c+n-1]
    positions    c .. c+n-1
    slots        block_table[r, p // block_size] * block_size + p % block_size
    sampled      the token at position c+n, from the logits of the chunk's last token; with d drafts
                  also those at c+n-d .. c+n-1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBackend, AttentionBatch, DeviceBatch
from engine.layers.attention import GroupStep
from engine.runner.rows import Ints, RowTable
from engine.sampling.sampler import DeviceRows
from engine.scheduler.plan import Chunk
from kernels import cuda
from kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Which logits of a step are sampled, and for whom."""

    chunks: Ints
    """[num_sampled], on the host, ascending: the chunk that each sampled token belongs to."""
    once_each: bool
    """Exactly one token is sampled for each chunk: no chunk ends in the middle of a prompt, and
    none has drafts."""
    rows: Ints
    """[num_sampled], on the host: the row of each sampled token."""
    positions: Ints
    """[num_sampled], on the host: the position of each sampled token."""
    on_device: DeviceRows | None = None
    """Rows and positions of the sampled tokens in device memory; None if only the host has
    them."""

    @classmethod
    def of(cls, fields: ChunkFields, on_device: DeviceRows | None = None) -> SampledTokens:
        """on_device: the rows of the chunks and how many tokens of each are known, if there; they
        are the rows and positions of what is sampled wherever that is once for each chunk."""
        counts = fields.num_sampled
        seq_lens = fields.computed + fields.query_lens
        if bool((counts == 1).all()):
            return cls(np.arange(len(counts)), True, fields.rows, seq_lens, on_device)
        chunks = np.arange(len(counts)).repeat(counts)
        # How many tokens each sampled one is before the last of its chunk.
        back = counts.cumsum().repeat(counts) - np.arange(1, len(chunks) + 1)
        return cls(chunks, False, fields.rows[chunks], seq_lens[chunks] - back)

    def index_in(self, fields: ChunkFields) -> Ints | None:
        """[num_sampled]: the tokens of the step whose logits are needed; None: all of them."""
        ends = fields.query_lens.cumsum()
        if len(self.chunks) == ends[-1]:
            return None
        seq_lens = (fields.computed + fields.query_lens)[self.chunks]
        index: Ints = ends[self.chunks] - 1 - (seq_lens - self.positions)
        return index


@dataclass(frozen=True, slots=True)
class GroupInputs:
    """A step as the layers of one group see it, before attention is prepared."""

    slots: torch.Tensor
    """[num_tokens] int64"""
    batch: AttentionBatch

    def prepared(self, attention: AttentionBackend, block_size: int) -> GroupStep:
        return GroupStep(self.slots, attention.prepare(self.batch, block_size))


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The tensors of a forward pass, and which of its logits are sampled for whom."""

    token_ids: torch.Tensor
    """[num_tokens] int64"""
    positions: torch.Tensor
    """[num_tokens] int64"""
    groups: list[GroupInputs]
    """By layer group."""
    sampled: SampledTokens


@dataclass(frozen=True, slots=True)
class ChunkFields:
    """A plan's chunks as columns: [num_chunks] each, on the host."""

    rows: Ints
    computed: Ints
    query_lens: Ints
    num_sampled: Ints
    """After how many of each chunk's tokens, the last ones, the step samples: one plus one per
    draft, or none."""

    @classmethod
    def read(cls, chunks: Sequence[Chunk]) -> ChunkFields:
        fields = np.array(
            [
                (
                    c.row,
                    c.num_computed_tokens,
                    c.num_scheduled_tokens,
                    c.samples + len(c.draft_token_ids),
                )
                for c in chunks
            ],
            np.int64,
        )
        return cls(*np.ascontiguousarray(fields.T))

    def sampled_only(self) -> ChunkFields:
        """The chunks cut down to the tokens whose logits are sampled. If there are none, one token
        is left, because the layers need at least one."""
        counts, ends = self.num_sampled, self.computed + self.query_lens
        some = counts > 0
        if not some.any():
            return ChunkFields(self.rows[:1], self.computed[:1], np.ones(1, np.int64), counts[:1])
        return ChunkFields(self.rows[some], (ends - counts)[some], counts[some], counts[some])


def build_inputs(fields: ChunkFields, table: RowTable, block_size: int) -> StepInputs:
    """Look up the tokens, positions and slots of a step: by a kernel on a GPU, else by torch."""
    if table.tokens.is_cuda and cuda.available():
        return _build_on_device(fields, table, block_size)
    token_rows, positions = _tokens_of(fields, table.tokens.device)
    blocks = table.block_tables[:, token_rows, positions // block_size]
    slots = blocks * block_size + positions % block_size
    return StepInputs(
        token_ids=table.tokens[token_rows, positions],
        positions=positions,
        groups=[
            GroupInputs(slots[group], _batch(fields, table, group))
            for group in range(len(table.windows))
        ],
        sampled=SampledTokens.of(fields),
    )


def _batch(
    fields: ChunkFields, table: RowTable, group: int, on_device: DeviceBatch | None = None
) -> AttentionBatch:
    seq_lens = fields.computed + fields.query_lens
    block_table, window = table.block_tables[group], table.windows[group]
    return AttentionBatch(fields.query_lens, seq_lens, fields.rows, block_table, on_device, window)


def _tokens_of(fields: ChunkFields, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, positions) of all tokens: [num_tokens] int64 each."""
    query_lens, ends = fields.query_lens, fields.query_lens.cumsum()
    positions = np.arange(ends[-1]) + (fields.computed - ends + query_lens).repeat(query_lens)
    on_device = to_device(np.stack((fields.rows.repeat(query_lens), positions)), device)
    return on_device[0], on_device[1]


def _build_on_device(fields: ChunkFields, table: RowTable, block_size: int) -> StepInputs:
    device, width = table.tokens.device, table.block_tables.shape[2]
    batch, num_tokens = len(fields.rows), int(fields.query_lens.sum())
    host = np.zeros(3 * batch + 1, np.int32)
    host[:batch], host[batch : 2 * batch] = fields.rows, fields.computed
    np.cumsum(fields.query_lens, out=host[2 * batch + 1 :])
    sent = to_device(host, device)
    rows, computed, cu_queries = sent[:batch], sent[batch : 2 * batch], sent[2 * batch :]
    token_ids, positions = torch.empty(2, num_tokens, dtype=torch.int64, device=device)
    seq_lens = torch.empty(batch, dtype=torch.int32, device=device)
    groups = []
    for group, block_table in enumerate(table.block_tables):
        slots = torch.empty(num_tokens, dtype=torch.int64, device=device)
        batch_table = block_table.new_empty(batch, width)
        cuda.native.step_inputs(
            table.tokens,
            block_table,
            rows,
            computed,
            cu_queries=cu_queries,
            token_ids=token_ids,
            positions=positions,
            slots=slots,
            seq_lens=seq_lens,
            batch_table=batch_table,
            block_size=block_size,
        )
        on_device = DeviceBatch(seq_lens, cu_queries, batch_table, group=group)
        groups.append(GroupInputs(slots, _batch(fields, table, group, on_device)))
    sampled = SampledTokens.of(fields, DeviceRows(rows, seq_lens))
    return StepInputs(token_ids, positions, groups, sampled)
