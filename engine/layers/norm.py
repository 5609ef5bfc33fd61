"""RMSNorm, with the residual addition before it fused in."""

from __future__ import annotations

import torch
from torch import nn

from engine.layers.parameter import Weight
from kernels import ops


class RMSNorm(nn.Module):
    def __init__(
        self, hidden_size: int, eps: float, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.weight = Weight(torch.empty(hidden_size, dtype=dtype, device=device))
        self.eps = eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """The norm of x, or of residual + x, which residual then holds."""
        return ops.rms_norm(x, self.weight, self.eps, residual)
