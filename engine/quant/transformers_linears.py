"""Quantizing the linear layers of transformers' own modules while they load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from engine.errors import ModelLoadError
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


@torch.inference_mode()
def quantize_head(model: Any, quantization: Quantization, device: torch.device) -> None:
    """Replace the head. One that is tied to the embedding is a copy from now on.

    ``ModelLoadError`` where it is no plain linear layer.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        raise ModelLoadError(
            f"quantize_lm_head: the head of {type(model).__name__} is {type(head).__name__}, which "
            "cannot be quantized: turn quantize_lm_head off"
        )
    model.set_output_embeddings(QuantizedLinear(_ours(head, quantization, device)))


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
    made.load(weight.detach().to(device), None if bias is None else bias.detach().to(device))
    made.pack()
    return made
