"""Random weights, for measuring the speed of a model without its checkpoint."""

from __future__ import annotations

import torch
from torch import nn

_SCALE = 0.02


def draw_weights(model: nn.Module, *, seed: int) -> None:
    """Fill matrices from a normal distribution and vectors (norms, biases) with ones."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.fill_(1)
            continue
        generator = torch.Generator(parameter.device).manual_seed(seed)
        seed += 1
        parameter.data.normal_(0, _SCALE, generator=generator)
