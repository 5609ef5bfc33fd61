"""Python face of the CUDA kernels: loading, workspaces and the ops' contracts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from kernels import build

MAX_DECODE_ROWS = 32
"""Query tokens times query heads per KV head that one pass of the decode kernel takes."""
CTAS_PER_SM = {64: 2, 96: 2, 128: 2, 256: 1}
"""Resident CTAs of the decode kernel by head_dim, set by its shared memory."""


@functools.cache
def load() -> None:
    """Build if needed and register ``torch.ops.sluice_cuda``. Raises ``build.BuildError``."""
    torch.ops.load_library(str(build.library()))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class DecodeWorkspace:
    """Scratch memory of ``paged_decode``, shared by all layers and steps of one stream."""

    schedule: torch.Tensor
    """[1 + num_ctas, 16] int32: where each span of work starts, see ``decode_schedule``."""
    tile_ends: torch.Tensor
    """[max_batch] int32, scratch of ``decode_schedule``"""
    partial_out: torch.Tensor
    """[num_ctas, 2, MAX_DECODE_ROWS, head_dim] float32"""
    partial_stats: torch.Tensor
    """[num_ctas, 2, MAX_DECODE_ROWS, 2] float32"""
    arrivals: torch.Tensor
    """[max_batch * num_q_heads] int32, zero between launches"""

    @classmethod
    def create(
        cls,
        max_batch: int,
        num_q_heads: int,
        head_dim: int,
        device: torch.device,
        waves: int = 1,
    ) -> DecodeWorkspace:
        """``waves``: spans of work per resident CTA; more of them even out slow SMs."""
        load()
        sms = torch.cuda.get_device_properties(device).multi_processor_count
        num_ctas = sms * CTAS_PER_SM[head_dim] * waves
        rows = (num_ctas, 2, MAX_DECODE_ROWS)
        return cls(
            schedule=torch.zeros(1 + num_ctas, 16, dtype=torch.int32, device=device),
            tile_ends=torch.zeros(max_batch, dtype=torch.int32, device=device),
            partial_out=torch.empty(*rows, head_dim, dtype=torch.float32, device=device),
            partial_stats=torch.empty(*rows, 2, dtype=torch.float32, device=device),
            arrivals=torch.zeros(max_batch * num_q_heads, dtype=torch.int32, device=device),
        )


def decode_schedule(
    workspace: DecodeWorkspace,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    block_table: torch.Tensor,
    *,
    block_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    max_queries: int = 1,
    window: int = 0,
    min_span: int = 1,
) -> None:
    """Deal out the work of a step; once per step and kind of layer, shared by all its layers.

    seq_lens: [batch] int32, the step's query tokens included, 0 for padding.
    cu_queries: [batch + 1] int32, prefix sums of the query tokens. window: 0 = unlimited.
    block_table: [batch, max_blocks] int32, the one ``paged_decode`` will get.
    min_span: KV tiles (of 64 tokens) that a CTA takes at least.
    """
    torch.ops.sluice_cuda.decode_schedule(
        workspace.schedule,
        workspace.tile_ends,
        seq_lens,
        cu_queries,
        block_table,
        block_size,
        num_q_heads,
        num_kv_heads,
        head_dim,
        max_queries,
        min_span,
        window,
    )


def paged_decode(
    out: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_queries: torch.Tensor,
    workspace: DecodeWorkspace,
    *,
    scale: float,
    max_queries: int = 1,
    window: int = 0,
    soft_cap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
) -> None:
    """Causal attention of up to ``max_queries`` last tokens of each sequence, into ``out``.

    q, out: [num_tokens, num_q_heads, head_dim] bfloat16 or float16; head_dim 64, 96, 128 or 256.
    k_cache, v_cache: [num_blocks, block_size, num_kv_heads, head_dim], block_size a multiple of 16.
    block_table: [batch, max_blocks] int32. ``decode_schedule`` must have run with the same lengths,
    heads, max_queries and window. Rows of padding sequences are left untouched.
    """
    torch.ops.sluice_cuda.paged_decode(
        out,
        q,
        k_cache,
        v_cache,
        block_table,
        seq_lens,
        cu_queries,
        workspace.schedule,
        workspace.partial_out,
        workspace.partial_stats,
        workspace.arrivals,
        alibi_slopes,
        max_queries,
        window,
        scale,
        soft_cap,
    )


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """RMSNorm of the rows of x [rows, width]; with ``residual`` (updated in place) of their sum."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.ops.sluice_cuda.rms_norm(out, x, residual, weight, eps)
    return out


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for x = [gate | up], [rows, 2 * width] -> [rows, width]."""
    out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype, device=x.device)
    torch.ops.sluice_cuda.silu_mul(out, x)
    return out


def rope_and_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    *,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Rotate q in place and k on its way into the paged cache, next to v.

    q, k, v: [tokens, heads, head_dim], views of one fused projection.
    cos_sin: [max_positions, rotary_dim] float32, cosines then sines (halves convention).
    positions, slots: [tokens] int64; slot = block * block_size + offset, -1 writes nothing.
    q_norm, k_norm: [head_dim] weights of a per-head RMSNorm before the rotation.
    """
    torch.ops.sluice_cuda.rope_and_cache(
        q, k, v, k_cache, v_cache, cos_sin, positions, slots, q_norm, k_norm, eps
    )
