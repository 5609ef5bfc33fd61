"""RMSNorm, with the residual addition before it fused in."""

from __future__ import annotations

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight
from kernels import ops


class RMSNorm(Module):
    def __init__(
        self, hidden_size: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = Weight(torch.empty(hidden_size, dtype=dtype, device=device))
        self.eps = eps

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The norm of x, or of residual + x, which residual then holds."""
        return ops.rms_norm(x, self.weight.data, self.eps, residual)
