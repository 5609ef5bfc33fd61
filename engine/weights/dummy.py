"""Random weights, for measuring the speed of a model without its checkpoint."""

from __future__ import annotations

import torch

from engine.layers.module import Module

_SCALE = 0.02


def draw_weights(model: Module, *, seed: int) -> None:
    """Fill matrices from a normal distribution and vectors (norms, biases) with ones."""
    for _, weight in model.named_weights():
        if weight.data.dim() == 1:
            weight.data.fill_(1)
            continue
        generator = torch.Generator(weight.data.device).manual_seed(seed)
        seed += 1
        weight.data.normal_(0, _SCALE, generator=generator)
