"""RMSNorm, with the residual addition before it fused in."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.parameter import Weight
from engine.parallel.group import Output, whole
from kernels import ops, rounded
from kernels.rounded import Activations


class RMSNorm(Module):
    """``x / sqrt(mean(x^2) + eps) * weight`` (arXiv 1910.07467)."""

    def __init__(
        self, hidden_size: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = Weight(torch.empty(hidden_size, dtype=dtype, device=device))
        self.eps = eps

    def __call__(
        self, x: Output, residual: torch.Tensor | None = None, inner: RMSNorm | None = None
    ) -> torch.Tensor:
        """The norm of x, or of residual + x, which is stored in ``residual``. inner: a norm to
        apply to x first."""
        if not isinstance(x, torch.Tensor):
            if residual is not None and inner is None:
                return x.group.add_and_norm(x.summand, residual, self.weight.data, self.eps)
            x = whole(x)
        weight = None if inner is None else inner.weight.data
        return ops.rms_norm(x, self.weight.data, self.eps, residual, weight)

    def into(
        self, reader: Linear | None, x: Output, residual: torch.Tensor | None = None
    ) -> Activations:
        """As a call, for a result that only ``reader`` reads: rounded already where ``reader``
        would round it."""
        weight = self.weight.data
        part = x if isinstance(x, torch.Tensor) else x.summand
        if reader is None or weight.dtype != part.dtype or not reader.rounds(part.shape[0]):
            return self(x, residual)
        x = whole(x)
        return rounded.rms_norm(x, weight, self.eps, residual)


class OffsetRMSNorm(RMSNorm):
    """Gemma's norm: the checkpoint holds the weight minus 1."""

    def pack(self) -> None:
        """Convert to float32: in 16 bits, 1 + w would round w away."""
        self.weight.data = self.weight.data.float() + 1
