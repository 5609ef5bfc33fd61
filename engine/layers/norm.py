"""RMSNorm, with the residual addition before it fused in."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.module import Module
from engine.layers.parameter import Weight
from kernels import ops, rounded
from kernels.rounded import Activations


class RMSNorm(Module):
    def __init__(
        self, hidden_size: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = Weight(torch.empty(hidden_size, dtype=dtype, device=device))
        self.eps = eps

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, inner: RMSNorm | None = None
    ) -> torch.Tensor:
        """The norm of x, or of residual + x, which residual then holds; of ``inner(x)`` in place of
        x."""
        weight = None if inner is None else inner.weight.data
        return ops.rms_norm(x, self.weight.data, self.eps, residual, weight)

    def into(
        self, reader: Linear | None, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> Activations:
        """The norm of x or residual + x, which ``reader``, if any, alone reads: rounded where that
        would round it."""
        weight = self.weight.data
        if reader is None or weight.dtype != x.dtype or not reader.rounds(x.shape[0]):
            return self(x, residual)
        return rounded.rms_norm(x, weight, self.eps, residual)


class OffsetRMSNorm(RMSNorm):
    """Gemma's: the checkpoint holds the distance of the weight from 1."""

    def pack(self) -> None:
        """To float32: rounding 1 + w to 16 bits would lose w."""
        self.weight.data = self.weight.data.float() + 1
