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

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The norm of x, or of residual + x, which residual then holds."""
        return ops.rms_norm(x, self.weight.data, self.eps, residual)

    def into(
        self, reader: Linear | None, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> Activations:
        """The norm as above, which ``reader``, if any, alone reads: rounded where it would be."""
        if reader is None or not reader.rounds(x.shape[0]):
            return self(x, residual)
        return rounded.rms_norm(x, self.weight.data, self.eps, residual)


class OffsetRMSNorm(RMSNorm):
    """Gemma's: the checkpoint holds the distance of the weight from 1."""

    def __init__(
        self, hidden_size: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(hidden_size, eps, dtype=dtype, device=device)
        self._ones = torch.ones(hidden_size, dtype=dtype, device=device)

    def into(
        self, reader: Linear | None, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> Activations:
        return self(x, residual)

    @property
    def folds(self) -> bool:
        """Whether ``weight`` becomes a plain norm's. Rounding 1 + w to 16 bits would lose w."""
        return self.weight.data.dtype == torch.float32

    def pack(self) -> None:
        if self.folds:
            self.weight.data += 1

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if self.folds:
            return super().__call__(x, residual)
        normed = ops.rms_norm(x, self._ones, self.eps, residual)
        return torch.addcmul(normed, normed, self.weight.data)
