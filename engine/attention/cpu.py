"""Attention on a CPU: sequences of few queries by our own kernel, prompt chunks by torch's.

The kernel reads the blocks where they are. For long chunks torch's tiled GEMMs win over
it, although the blocks must be gathered first.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBatch, AttentionOptions
from engine.attention.torch_ref import TorchAttention, TorchStepAttention
from kernels import cpu

MAX_QUERIES = 8
"""The longest chunk the kernel takes (measured: about where torch catches up)."""


class CpuAttention:
    """float32 on a CPU, for which our kernels could be built."""

    name = "cpu"
    block_size_multiple = 1

    def __init__(self) -> None:
        self._torch = TorchAttention(torch.device("cpu"), torch.float32)

    def prepare(self, batch: AttentionBatch, block_size: int) -> CpuStepAttention:
        short = batch.query_lens <= MAX_QUERIES
        first_token = batch.query_lens.cumsum() - batch.query_lens
        sequences = cpu.AttentionSequences(
            batch.block_table,
            batch.rows[short],
            first_token[short],
            batch.query_lens[short],
            batch.seq_lens[short],
        )
        rest = None
        if not short.all():
            rest = self._torch.prepare(batch, block_size, np.flatnonzero(~short))
        return CpuStepAttention(sequences, sequences.struct(), rest)


@dataclass(frozen=True, slots=True)
class CpuStepAttention:
    """A step whose short chunks go through the kernel, and the others through ``rest``."""

    sequences: cpu.AttentionSequences
    """Owns the memory that ``struct`` points to."""
    struct: ctypes.Structure
    rest: TorchStepAttention | None

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
        if self.rest is not None and len(self.sequences.rows) == 0:
            return self.rest(q, k_cache, v_cache, how)
        out = torch.empty(q.shape)
        cpu.paged_attention(
            out,
            q,
            k_cache,
            v_cache,
            self.struct,
            how.scale,
            window=how.window,
            softcap=how.softcap,
            k_scale=None if how.kv_scales is None else how.kv_scales.k,
            v_scale=None if how.kv_scales is None else how.kv_scales.v,
            sinks=how.sinks,
        )
        if self.rest is not None:
            self.rest.attend_into(out, q, k_cache, v_cache, how)
        return out
