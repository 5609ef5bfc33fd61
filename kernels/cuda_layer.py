"""A decoder layer on a GPU in two calls, before and after its attention.

The results are bitwise those of the single operations, with a fraction of the host's time. That
matters for steps that are not in a CUDA graph: in these the GPU waits for the host, and a model has
dozens of layers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Matrix(NamedTuple):
    """A weight and how to multiply with it."""

    weight: torch.Tensor
    """[out_features, in_features]"""
    bias: torch.Tensor | None
    code: int
    """See ``gemm.Gemms.code``; with adapters, of a GEMM without gating."""
    adapters: tuple[torch.Tensor, ...] = ()
    """``cuda_lora.described`` of what adapters add to the GEMM; empty for none."""


class Norm(NamedTuple):
    """An RMSNorm."""

    weight: torch.Tensor
    eps: float


class HeadNorms(NamedTuple):
    """The RMSNorm of each head before the rotation."""

    q: torch.Tensor | None
    k: torch.Tensor | None
    eps: float


NO_HEAD_NORMS = HeadNorms(None, None, 0.0)


def attention_inputs(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    norm: Norm,
    qkv: Matrix,
    head_norms: HeadNorms,
    caches: tuple[torch.Tensor, torch.Tensor],
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
) -> torch.Tensor:
    """The queries of ``norm(x + residual)``; its keys and values go into the cache.

    x, residual: [tokens, hidden] as in ``reference.rms_norm``, the residual overwritten with the
    sum. caches, scales: of keys and of values; these and what follows as in
    ``cuda.rope_and_cache``. Returns [tokens, q_heads, head_dim] with contiguous heads.
    """
    out: torch.Tensor = torch.ops.sluice_cuda.attention_inputs.default(
        x, residual, *norm, *qkv, *head_norms, *caches, *scales, cos_sin, positions, slots
    )
    return out


def feed_forward(
    attended: torch.Tensor,
    residual: torch.Tensor,
    output: Matrix,
    norm: Norm,
    gate_up: Matrix,
    down: Matrix,
) -> torch.Tensor:
    """The part of a layer after attention: the output projection, then the feed-forward block.

    attended: [tokens, q_heads * head_dim]; residual: [tokens, hidden], overwritten with the sum of
    itself and the projection. gate_up: its features are [gate | up]. Returns [tokens, hidden],
    which the caller must add to the residual.
    """
    out: torch.Tensor = torch.ops.sluice_cuda.feed_forward.default(
        attended, residual, *output, *norm, *gate_up, *down
    )
    return out
