"""Attention on a GPU: sequences of few tokens by our CUDA kernel, prompt chunks by Triton's.

The CUDA kernel splits the keys of a step evenly over the GPU, whatever the lengths; how is decided
on the device, once a step for all layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBatch, AttentionShape, DeviceBatch, StepAttention
from engine.attention.triton import TritonAttention, TritonStepAttention
from kernels import cuda
from kernels.transfer import to_device

MAX_QUERIES = 8
"""The longest chunk that counts as few tokens."""


class CudaAttention:
    name = "cuda"
    block_size_multiple = 16

    def __init__(self, device: torch.device, shape: AttentionShape) -> None:
        self._device = device
        self._shape = shape
        self._triton = TritonAttention(device, shape)
        self._max_queries = min(MAX_QUERIES, cuda.max_decode_rows(shape.head_dim))
        self._workspace = cuda.DecodeWorkspace.create(
            shape.max_num_seqs, shape.num_heads, shape.head_dim, device
        )

    @staticmethod
    def refusal(device: torch.device, shape: AttentionShape) -> str | None:
        """Why this backend cannot serve ``shape`` on ``device``; None if it can."""
        if device.type != "cuda":
            return "it needs a GPU"
        if torch.cuda.get_device_capability(device) < (8, 0):
            return "it needs a GPU of compute capability 8.0 or later"
        if shape.dtype not in cuda.DECODE_DTYPES:
            return f"it serves bfloat16 and float16, not {shape.dtype}"
        if shape.head_dim not in cuda.DECODE_HEAD_DIMS:
            sizes = ", ".join(map(str, sorted(cuda.DECODE_HEAD_DIMS)))
            return f"it serves head sizes {sizes}, not {shape.head_dim}"
        if shape.window is not None:
            return "it does not serve sliding windows"
        return TritonAttention.refusal(device, shape)

    def prepare(self, batch: AttentionBatch, block_size: int) -> StepAttention:
        assert batch.on_device is not None
        short = batch.query_lens <= self._max_queries
        if not short.any():
            return self._triton.prepare(batch, block_size)
        max_queries = int(batch.query_lens[short].max())
        if short.all():
            return self._prepare_short(batch.on_device, max_queries, block_size)
        # To the CUDA kernel the long ones are padding.
        seq_lens = to_device(np.where(short, batch.seq_lens, 0).astype(np.int32), self._device)
        on_device = DeviceBatch(seq_lens, batch.on_device.cu_queries, batch.on_device.block_table)
        return _MixedStepAttention(
            self._triton.prepare_some(batch, np.flatnonzero(~short)),
            self._prepare_short(on_device, max_queries, block_size),
        )

    def prepare_decode(self, batch: DeviceBatch, block_size: int) -> StepAttention:
        return self._prepare_short(batch, 1, block_size)

    def _prepare_short(
        self, batch: DeviceBatch, max_queries: int, block_size: int
    ) -> _ShortStepAttention:
        cuda.decode_schedule(
            self._workspace,
            batch.seq_lens,
            batch.cu_queries,
            batch.block_table,
            block_size=block_size,
            num_q_heads=self._shape.num_heads,
            num_kv_heads=self._shape.num_kv_heads,
            head_dim=self._shape.head_dim,
            max_queries=max_queries,
        )
        return _ShortStepAttention(batch, self._workspace, max_queries)


@dataclass(frozen=True, slots=True)
class _ShortStepAttention:
    batch: DeviceBatch
    workspace: cuda.DecodeWorkspace
    max_queries: int

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.attend_into(out, q, k_cache, v_cache, scale, window=window, softcap=softcap)
        return out

    def attend_into(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        assert window is None, "refused by CudaAttention.refusal"
        cuda.paged_decode(
            out,
            q,
            k_cache,
            v_cache,
            self.batch.block_table,
            self.batch.seq_lens,
            self.batch.cu_queries,
            self.workspace,
            scale=scale,
            max_queries=self.max_queries,
            soft_cap=softcap or 0.0,
        )


@dataclass(frozen=True, slots=True)
class _MixedStepAttention:
    """One after the other: side by side on two streams was measured to be slower."""

    long: TritonStepAttention
    short: _ShortStepAttention

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        scale: float,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> torch.Tensor:
        out = self.long(q, k_cache, v_cache, scale, window=window, softcap=softcap)
        self.short.attend_into(out, q, k_cache, v_cache, scale, window=window, softcap=softcap)
        return out
