"""Prompt chunks on Hopper through our kernel for it, which reads 16-bit floats.

Of a cache in FP8 it gets copies: every key is read by many tiles of queries, so widening it once
costs less than each time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.attention.base import AttentionBatch, AttentionOptions, AttentionShape, DeviceBatch
from kernels import cuda
from kernels.tiles import tile_list
from kernels.transfer import to_device

MAX_COPIED_TOKENS = 32_768
"""Of all sequences of a step; what sees more is left to another kernel."""


@dataclass(frozen=True, slots=True)
class HopperStepAttention:
    """A step through ``native.paged_prefill``."""

    batch: DeviceBatch
    tiles: torch.Tensor
    """[num_tiles, 2] int32, see ``tiles.tile_list``."""

    @classmethod
    def of(
        cls, batch: AttentionBatch, on_device: DeviceBatch, sequences: cuda.Ints, group: int
    ) -> HopperStepAttention:
        """sequences: the ones to serve, indices into the batch."""
        tiles = tile_list(
            batch.query_lens[sequences], batch.seq_lens[sequences], group, cuda.PREFILL_ROWS
        )
        tiles[:, 0] = sequences[tiles[:, 0]]
        return cls(on_device, to_device(tiles, on_device.seq_lens.device))

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        assert how.kv_scales is None, "what is in FP8 is copied first"
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        cuda.native.paged_prefill(
            out,
            q,
            k_cache,
            v_cache,
            self.batch.block_table,
            self.batch.seq_lens,
            self.batch.cu_queries,
            self.tiles,
            scale=how.scale,
            window=how.window or 0,
            soft_cap=how.softcap or 0.0,
            sinks=how.sinks,
        )
        return out


class Fp8Copies:
    """Memory for the copies, of one layer at a time."""

    def __init__(self, device: torch.device, shape: AttentionShape) -> None:
        self._block_size = shape.block_size
        self._group = shape.num_heads // shape.num_kv_heads
        num_blocks = max(1, MAX_COPIED_TOKENS // shape.block_size)
        block = shape.block_size, shape.num_kv_heads, shape.head_dim
        self._k, self._v = torch.empty(
            2, num_blocks, *block, dtype=shape.dtype, device=device
        ).unbind()

    def prepare(self, batch: AttentionBatch, sequences: cuda.Ints) -> CopiedStepAttention | None:
        """None where the sequences see more than is copied."""
        assert batch.on_device is not None
        blocks_each = -(-batch.seq_lens[sequences] // self._block_size)
        if blocks_each.sum() > len(self._k):
            return None
        source, table = copy_plan(sequences, blocks_each, len(batch.seq_lens))
        device = self._k.device
        sequence, position = to_device(source, device)
        on_device = batch.on_device
        blocks = on_device.block_table[sequence, position]
        copied = replace(on_device, block_table=to_device(table, device))
        attend = HopperStepAttention.of(batch, copied, sequences, self._group)
        return CopiedStepAttention(self._k, self._v, blocks, attend)


def copy_plan(
    sequences: cuda.Ints, blocks_each: cuda.Ints, batch: int
) -> tuple[cuda.Ints, np.ndarray[tuple[int, int], np.dtype[np.int32]]]:
    """Copies stand side by side, sequence by sequence.

    Returns [2, num_copies], the sequence and the place in its block table that each copy is of, and
    the block table of the copies: [batch, most blocks] int32.
    """
    starts = blocks_each.cumsum() - blocks_each
    place = np.arange(blocks_each.sum()) - starts.repeat(blocks_each)
    table = np.zeros((batch, int(blocks_each.max())), np.int32)
    table[sequences] = starts[:, None] + np.arange(table.shape[1])
    return np.stack((sequences.repeat(blocks_each), place)), table


@dataclass(frozen=True, slots=True)
class CopiedStepAttention:
    """A step over an FP8 cache: widens the blocks that it reads to 16 bits, then attends."""

    k_copies: torch.Tensor
    v_copies: torch.Tensor
    blocks: torch.Tensor
    """[num_copies] int32: the cache's block that each copy is of."""
    attend: HopperStepAttention

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        scales, copies = how.kv_scales, (self.k_copies, self.v_copies)
        assert scales is not None
        cuda.native.dequantize_blocks(*copies, k_cache, v_cache, scales.k, scales.v, self.blocks)
        return self.attend(q, self.k_copies, self.v_copies, replace(how, kv_scales=None))
