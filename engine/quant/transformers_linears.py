"""Quantizing the linear layers of transformers' own modules while they load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from engine.layers.linear import Linear
from engine.quant.base import Quantization

_ROUTERS = ("gate", "router")
"""What transformers' mixtures call the layer that picks experts: as small as it is decisive."""


class QuantizedLinear(nn.Module):
    """Stands for one of transformers' linear layers; computes with one of ours."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, sum(linear.parts.values())
        self._linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self._linear(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


@torch.inference_mode()
def quantize_linears(model: Any, quantization: Quantization, device: torch.device) -> None:
    """Replace the linear layers of the decoder, one after the other: ``device`` never holds more
    than one of them as it was. The head, routers, and experts in one tensor stay as they are."""
    for parent, name, module in list(_linears(model)):
        setattr(parent, name, QuantizedLinear(_ours(module, quantization, device)))


def _linears(model: Any) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for parent in model.get_decoder().modules():
        for name, child in parent.named_children():
            if type(child) in (nn.Linear, Conv1D) and child is not head and name not in _ROUTERS:
                yield parent, name, child


def _ours(module: Any, quantization: Quantization, device: torch.device) -> Linear:
    # Conv1D keeps its weight the other way round.
    weight = module.weight if isinstance(module, nn.Linear) else module.weight.T
    features, k = weight.shape
    bias = module.bias
    made = Linear(k, {"": features}, bias=bias is not None, dtype=weight.dtype, device=device)
    made.quantize(quantization.weight)
    for path, target in made.named_weights():
        source = weight if path == "weight" else bias
        assert source is not None, path
        target.load("", source.detach().to(device))
    made.pack()
    return made
