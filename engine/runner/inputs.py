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

from engine.attention.base import AttentionBatch, DeviceBatch
from engine.runner.rows import Ints, RowTable
from engine.sampling.sampler import DeviceRows
from engine.scheduler.plan import Chunk
from kernels import cuda
from kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The tensors of a forward pass, and which of its logits are sampled for whom."""

    token_ids: torch.Tensor
    """[num_tokens] int64"""
    positions: torch.Tensor
    """[num_tokens] int64"""
    slots: torch.Tensor
    """[num_tokens] int64"""
    attention: AttentionBatch
    sampled_chunks: Ints
    """[num_sampled], on the host, ascending: the chunk that each sampled token belongs to."""
    samples_once_each: bool
    """Exactly one token is sampled for each chunk: no chunk ends in the middle of a prompt, and
    none has drafts."""
    sampled_rows: Ints
    """[num_sampled], on the host: the row of each sampled token."""
    sampled_positions: Ints
    """[num_sampled], on the host: the position of each sampled token."""
    sampled_on_device: DeviceRows | None
    """Rows and positions of the sampled tokens in device memory; None if only the host has
    them."""
    logits_index: torch.Tensor | None
    """[num_sampled] int64: indices of the tokens whose logits are needed; None: all of them."""


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
    return assemble(
        fields,
        token_ids=table.tokens[token_rows, positions],
        positions=positions,
        slots=_slots(table.block_table, token_rows, positions, block_size),
        block_table=table.block_table,
        window=table.windows[0],
    )


def other_groups(
    fields: ChunkFields, table: RowTable, block_size: int
) -> list[tuple[torch.Tensor, AttentionBatch]]:
    """Slots and sequences of the same step, for each layer group but the first."""
    if len(table.windows) == 1:
        return []
    if table.tokens.is_cuda and cuda.available():
        steps = [
            _build_on_device(fields, table, block_size, group)
            for group in range(1, len(table.windows))
        ]
        return [(step.slots, step.attention) for step in steps]
    token_rows, positions = _tokens_of(fields, table.tokens.device)
    seq_lens = fields.computed + fields.query_lens
    others = table.block_tables[1:]
    return [
        (
            slots,
            AttentionBatch(fields.query_lens, seq_lens, fields.rows, block_table, window=window),
        )
        for slots, block_table, window in zip(
            _slots(others, token_rows, positions, block_size).unbind(),
            others.unbind(),
            table.windows[1:],
            strict=True,
        )
    ]


def _tokens_of(fields: ChunkFields, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, positions) of all tokens: [num_tokens] int64 each."""
    query_lens, ends = fields.query_lens, fields.query_lens.cumsum()
    positions = np.arange(ends[-1]) + (fields.computed - ends + query_lens).repeat(query_lens)
    on_device = to_device(np.stack((fields.rows.repeat(query_lens), positions)), device)
    return on_device[0], on_device[1]


def _slots(
    block_table: torch.Tensor, token_rows: torch.Tensor, positions: torch.Tensor, block_size: int
) -> torch.Tensor:
    """Slots of the tokens: [..., num_tokens] int64. block_table: [..., num_rows, max_blocks]."""
    blocks = block_table[..., token_rows, positions // block_size]
    return blocks * block_size + positions % block_size


def _build_on_device(
    fields: ChunkFields, table: RowTable, block_size: int, group: int = 0
) -> StepInputs:
    """The step's inputs for the layers of one group."""
    device, block_table = table.tokens.device, table.block_tables[group]
    batch, num_tokens = len(fields.rows), int(fields.query_lens.sum())
    host = np.zeros(3 * batch + 1, np.int32)
    host[:batch], host[batch : 2 * batch] = fields.rows, fields.computed
    np.cumsum(fields.query_lens, out=host[2 * batch + 1 :])
    sent = to_device(host, device)
    rows, computed, cu_queries = sent[:batch], sent[batch : 2 * batch], sent[2 * batch :]
    token_ids, positions, slots = torch.empty(3, num_tokens, dtype=torch.int64, device=device)
    on_device = DeviceBatch(
        torch.empty(batch, dtype=torch.int32, device=device),
        cu_queries,
        block_table.new_empty(batch, block_table.shape[1]),
        group=group,
    )
    cuda.step_inputs(
        table.tokens,
        block_table,
        rows,
        computed,
        cu_queries,
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        seq_lens=on_device.seq_lens,
        batch_table=on_device.block_table,
        block_size=block_size,
    )
    return assemble(
        fields,
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        block_table=block_table,
        on_device=on_device,
        rows=rows,
        window=table.windows[group],
    )


def assemble(
    fields: ChunkFields,
    *,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    block_table: torch.Tensor,
    on_device: DeviceBatch | None = None,
    rows: torch.Tensor | None = None,
    window: int | None = None,
) -> StepInputs:
    """Put the tensors of a step together with what follows from ``fields`` alone.

    block_table: [num_rows, max_blocks] int32. on_device, rows ([num_chunks] int32): copies of what
    the host has, where the device needs them. window: see ``AttentionBatch``.
    """
    counts = fields.num_sampled
    seq_lens = fields.computed + fields.query_lens
    logits_index = sampled_on_device = None
    samples_once_each = bool((counts == 1).all())
    if samples_once_each:
        sampled, sampled_rows, sampled_positions = np.arange(len(counts)), fields.rows, seq_lens
        if rows is not None and on_device is not None:
            sampled_on_device = DeviceRows(rows, on_device.seq_lens)
    else:
        sampled = np.arange(len(counts)).repeat(counts)
        # How many tokens each sampled one is before the last of its chunk.
        back = counts.cumsum().repeat(counts) - np.arange(1, len(sampled) + 1)
        sampled_rows, sampled_positions = fields.rows[sampled], seq_lens[sampled] - back
    if len(sampled) < len(positions):
        before_end = 1 + seq_lens[sampled] - sampled_positions
        ends = fields.query_lens.cumsum()[sampled]
        logits_index = to_device(ends - before_end, positions.device)
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        slots=slots,
        attention=AttentionBatch(
            fields.query_lens, seq_lens, fields.rows, block_table, on_device, window
        ),
        sampled_chunks=sampled,
        samples_once_each=samples_once_each,
        sampled_rows=sampled_rows,
        sampled_positions=sampled_positions,
        sampled_on_device=sampled_on_device,
        logits_index=logits_index,
    )
