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

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the normed sum of x and residual, and the sum itself: the next residual."""
        if residual is None:
            return ops.rms_norm(x, self.weight, self.eps), x
        return ops.fused_add_rms_norm(x, residual, self.weight, self.eps)
