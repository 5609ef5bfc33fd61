"""A decoder layer on a GPU in two calls, before and after its attention.

They do to the bit what the single operations do, with a fraction of the host's time: there are
dozens of layers, and a step that is not in a CUDA graph is waited for by the GPU.
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
    """See ``products.Products.code``; with adapters, of a product without gating."""
    adapters: tuple[torch.Tensor, ...] = ()
    """``cuda_low_rank.described`` of what is added to the product; empty: nothing."""


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
    """What follows attention: its output projection, then the feed-forward block.

    attended: [tokens, q_heads * head_dim]; residual: [tokens, hidden], overwritten with the sum of
    itself and the projection. gate_up: its features are [gate | up]. Returns [tokens, hidden],
    still to be added to the residual.
    """
    out: torch.Tensor = torch.ops.sluice_cuda.feed_forward.default(
        attended, residual, *output, *norm, *gate_up, *down
    )
    return out
