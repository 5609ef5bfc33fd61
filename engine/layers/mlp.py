"""The gated feed-forward block: ``down(silu(gate(x)) * up(x))`` (arXiv 2002.05202)."""

from __future__ import annotations

import torch

from engine.layers.linear import Linear
from engine.layers.module import Module


class GatedMLP(Module):
    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.gate_up_proj = Linear(
            hidden_size,
            {"gate_proj": intermediate_size, "up_proj": intermediate_size},
            bias=bias,
            dtype=dtype,
            device=device,
        )
        self.down_proj = Linear(
            intermediate_size, {"": hidden_size}, bias=bias, dtype=dtype, device=device
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.gate_up_proj.gated(x))
