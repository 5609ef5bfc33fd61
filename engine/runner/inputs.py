"""Turning a plan's chunks into the tensors of a forward pass.

Chunk i of row r computes the tokens [c, c + n) of the row:

    token_ids    tokens[r, c .. c+n-1]
    positions    c .. c+n-1
    slots        block_table[r, p // block_size] * block_size + p % block_size
    sampled      the token at position c+n, from the logits of the chunk's last token
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBatch
from engine.runner.rows import Ints, RowTable
from engine.scheduler.plan import Chunk


@dataclass(frozen=True, slots=True)
class StepInputs:
    token_ids: torch.Tensor
    """[num_tokens] int64"""
    positions: torch.Tensor
    """[num_tokens] int64"""
    slots: torch.Tensor
    """[num_tokens] int64"""
    attention: AttentionBatch
    sampled_chunks: Ints
    """[num_sampled], on the host: the chunks that sample, ascending."""
    sampled_rows: Ints
    sampled_positions: Ints
    """[num_sampled], on the host: where the sampled token goes."""
    logits_index: torch.Tensor | None
    """[num_sampled] int64: the tokens whose logits are needed; None: all of them."""


def build_inputs(chunks: Sequence[Chunk], table: RowTable, block_size: int) -> StepInputs:
    device = table.tokens.device
    fields = np.array(
        [(c.row, c.num_computed_tokens, c.num_scheduled_tokens, c.samples) for c in chunks],
        np.int64,
    )
    rows, computed, query_lens, samples = np.ascontiguousarray(fields.T)
    seq_lens = computed + query_lens
    if int(query_lens.max()) == 1:
        token_rows, positions, last_tokens = rows, computed, np.arange(len(rows))
    else:
        ends = query_lens.cumsum()
        token_rows = rows.repeat(query_lens)
        positions = np.arange(ends[-1]) + (computed - ends + query_lens).repeat(query_lens)
        last_tokens = ends - 1
    sampled = samples.nonzero()[0]

    host = np.stack((token_rows, positions))
    on_device = torch.from_numpy(host).to(device, non_blocking=True)
    token_rows_d, positions_d = on_device[0], on_device[1]
    blocks = table.block_table[token_rows_d, positions_d // block_size]
    everything_sampled = len(sampled) == len(positions)
    return StepInputs(
        token_ids=table.tokens[token_rows_d, positions_d],
        positions=positions_d,
        slots=blocks * block_size + positions_d % block_size,
        attention=AttentionBatch(query_lens, seq_lens, rows, table.block_table),
        sampled_chunks=sampled,
        sampled_rows=rows[sampled],
        sampled_positions=seq_lens[sampled],
        logits_index=None
        if everything_sampled
        else torch.from_numpy(last_tokens[sampled]).to(device, non_blocking=True),
    )
