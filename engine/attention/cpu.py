"""Attention on a CPU by our own kernel, which reads the blocks where they are.

A query's result has the same bits whichever queries are computed with it, so an answer does not
depend on how its prompt is cut. Torch's attention has another order of summing for each step.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.base import AttentionBatch, AttentionOptions
from kernels import cpu

MAX_QUERIES = 8
"""Queries that the kernel takes together: longer chunks are cut, for the threads to share out."""


class CpuAttention:
    """float32 on a CPU, for which our kernels could be built."""

    name = "cpu"
    block_size_multiple = 1

    def prepare(self, batch: AttentionBatch, block_size: int) -> CpuStepAttention:
        first_token = batch.query_lens.cumsum() - batch.query_lens
        rows, query_lens, seq_lens = batch.rows, batch.query_lens, batch.seq_lens
        is_cut = bool((query_lens > MAX_QUERIES).any())
        if is_cut:
            num_pieces = -(-query_lens // MAX_QUERIES)
            of = np.repeat(np.arange(len(rows)), num_pieces)
            first_piece = num_pieces.cumsum() - num_pieces
            start = (np.arange(len(of)) - first_piece[of]) * MAX_QUERIES
            num_before = seq_lens[of] - query_lens[of] + start
            query_lens = np.minimum(query_lens[of] - start, MAX_QUERIES)
            rows, first_token = rows[of], first_token[of] + start
            seq_lens = num_before + query_lens
        sequences = cpu.AttentionSequences(
            batch.block_table, rows, first_token, query_lens, seq_lens
        )
        return CpuStepAttention(sequences, sequences.struct(), is_cut)


@dataclass(frozen=True, slots=True)
class CpuStepAttention:
    """A step, as the kernel takes it."""

    sequences: cpu.AttentionSequences
    """Owns the memory that ``struct`` points to."""
    struct: ctypes.Structure
    is_cut: bool
    """Whether some sequences are pieces of one, which read keys of each other's tokens: these must
    be stored before attention begins."""

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        how: AttentionOptions,
    ) -> torch.Tensor:
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
        return out
