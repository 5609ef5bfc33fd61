"""Matrix products, several checkpoint matrices fused into one where they share their input."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from engine.layers.module import Module
from engine.layers.parameter import Weight
from kernels import onednn, ops, products


class Linear(Module):
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
        out_features = sum(parts.values())
        shape = (out_features, in_features)
        self.weight = Weight(torch.empty(shape, dtype=dtype, device=device), parts)
        self.bias: Weight | None = None
        if bias:
            self.bias = Weight(torch.empty(out_features, dtype=dtype, device=device), parts)
        self._packed: torch.Tensor | None = None

    def pack(self) -> None:
        if _packs(self.weight.data):
            self._packed = onednn.pack(self.weight.data)
            self.weight.data = self.weight.data.new_empty(0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.data
        if self._packed is not None:
            return onednn.linear(x, self._packed, bias)
        return products.linear(x, self.weight.data, bias)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up`` of an output that is [gate | up]."""
        if self._packed is not None:
            return ops.silu_mul(self(x))
        bias = None if self.bias is None else self.bias.data
        return products.gated_linear(x, self.weight.data, bias)


class TiedLinear(Module):
    """A language model head that shares the weight of the embedding."""

    def __init__(self, weight: Weight) -> None:
        self._weight = weight
        self._packed: torch.Tensor | None = None

    @property
    def weight(self) -> Weight:
        """The embedding's."""
        return self._weight

    def pack(self) -> None:
        if _packs(self._weight.data):
            self._packed = onednn.pack(self._weight.data)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is not None:
            return onednn.linear(x, self._packed, None)
        return products.linear(x, self._weight.data, None)


def _packs(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and onednn.available()
