"""Matrix products, several checkpoint matrices fused into one where they share their input."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from engine.layers.parameter import Weight
from kernels import onednn, ops, products


class Linear(nn.Module):
    """``x @ weight.T + bias``; ``parts`` maps checkpoint names to their output features."""

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        out_features = sum(parts.values())
        shape = (out_features, in_features)
        self.weight = Weight(torch.empty(shape, dtype=dtype, device=device), parts)
        self.bias: Weight | None = None
        if bias:
            self.bias = Weight(torch.empty(out_features, dtype=dtype, device=device), parts)
        self._packed: torch.Tensor | None = None

    def pack(self) -> None:
        """Call once the weight is loaded: replaces it by a packed copy where that is faster."""
        if _packs(self.weight):
            self._packed = onednn.pack(self.weight.data)
            self.weight.data = self.weight.data.new_empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return onednn.linear(x, self._packed, self.bias)
        return products.linear(x, self.weight, self.bias)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of an output that is [gate | up]."""
        if self._packed is not None:
            return ops.silu_mul(self(x))
        return products.gated_linear(x, self.weight, self.bias)


class TiedLinear(nn.Module):
    """A language model head that shares the weight of the embedding."""

    def __init__(self, weight: Weight) -> None:
        super().__init__()
        self._weight = [weight]  # In a list, so that it is not a parameter of this module too.
        self._packed: torch.Tensor | None = None

    @property
    def weight(self) -> Weight:
        return self._weight[0]

    def pack(self) -> None:
        if _packs(self._weight[0]):
            self._packed = onednn.pack(self._weight[0].data)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return onednn.linear(x, self._packed, None)
        return products.linear(x, self._weight[0], None)


def _packs(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and onednn.available()
