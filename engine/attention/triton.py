"""Attention on a GPU through one Triton kernel: every dtype and head size, prompts and decode."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from engine.attention.base import AttentionBatch, AttentionOptions, AttentionShape, DeviceBatch
from kernels import cuda
from kernels.tiles import tile_list
from kernels.transfer import to_device

if TYPE_CHECKING:
    from kernels.triton.paged_prefill import Tiling


class TritonAttention:
    """Does not split the keys of a sequence: a lone long one decodes slower than with ``cuda``."""

    name = "triton"
    block_size_multiple = 1
    sharing = None
    max_decode_queries = 8

    def __init__(self, device: torch.device, shape: AttentionShape) -> None:
        self._device = device
        self._shape = shape
        self._group = shape.num_heads // shape.num_kv_heads

    @staticmethod
    def refusal(device: torch.device, shape: AttentionShape) -> str | None:
        """Why this backend cannot serve ``shape`` on ``device``; None if it can."""
        if device.type != "cuda":
            return "it needs a GPU"
        if importlib.util.find_spec("triton") is None:
            return "the package triton is not installed"
        if not cuda.available():
            return "the CUDA kernels beside it cannot be built"
        return None

    def prepare(self, batch: AttentionBatch, block_size: int) -> TritonStepAttention:
        return self.prepare_some(batch, np.arange(len(batch.query_lens)))

    def prepare_some(self, batch: AttentionBatch, sequences: cuda.Ints) -> TritonStepAttention:
        """sequences: the ones to serve, indices into the batch."""
        from kernels.triton import paged_prefill

        assert batch.on_device is not None
        query_lens, seq_lens = batch.query_lens[sequences], batch.seq_lens[sequences]
        how = paged_prefill.tiling(
            self._shape.head_dim, self._shape.dtype, int(query_lens.max()) * self._group
        )
        tiles = tile_list(query_lens, seq_lens, self._group, how.rows)
        tiles[:, 0] = sequences[tiles[:, 0]]
        return TritonStepAttention(batch.on_device, to_device(tiles, self._device), how)

    def prepare_decode(
        self, batch: DeviceBatch, block_size: int, num_queries: int = 1
    ) -> TritonStepAttention:
        from kernels.triton import paged_prefill

        num_rows = self._group * num_queries
        how = paged_prefill.tiling(self._shape.head_dim, self._shape.dtype, num_rows)
        sequences = torch.arange(len(batch.seq_lens), dtype=torch.int32, device=self._device)
        num_tiles = -(-num_rows // how.rows)
        tiles = torch.arange(num_tiles, dtype=torch.int32, device=self._device)
        return TritonStepAttention(batch, torch.cartesian_prod(sequences, tiles), how)


@dataclass(frozen=True, slots=True)
class TritonStepAttention:
    """A step through the Triton kernels."""

    batch: DeviceBatch
    tiles: torch.Tensor
    """[num_tiles, 2] int32, see ``tiles.tile_list``."""
    how: Tiling

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(out, q, k_cache, v_cache, how)
        return out

    def attend_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> None:
        """Write the tokens of the sequences being served, and no others."""
        from kernels.triton import latent_attention, paged_prefill

        scales = how.kv_scales
        k_scale = None if scales is None else scales.k
        plain = how.window is None and how.softcap is None and how.sinks is None
        if plain and v_cache is k_cache and self.how.rows == latent_attention.ROWS:
            latent_attention.latent_attention(
                out,
                q,
                k_cache,
                self.batch.block_table,
                self.batch.seq_lens,
                self.batch.cu_queries,
                self.tiles,
                scale=how.scale,
                k_scale=k_scale,
            )
            return
        paged_prefill.paged_prefill(
            out,
            q,
            k_cache,
            v_cache,
            self.batch.block_table,
            self.batch.seq_lens,
            self.batch.cu_queries,
            self.tiles,
            self.how,
            scale=how.scale,
            window=how.window or 0,
            soft_cap=how.softcap or 0.0,
            k_scale=k_scale,
            v_scale=None if scales is None else scales.v,
            sinks=how.sinks,
        )
