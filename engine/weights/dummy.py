"""Random weights, for measuring the speed of a model without its checkpoint."""

from __future__ import annotations

import torch

from engine.layers.module import Module

_SCALE = 0.02


def draw_weights(model: Module, *, seed: int) -> None:
    """Fill matrices from a normal distribution and vectors (norms, biases) with ones."""
    for _, weight in model.named_weights():
        weight.draw(_SCALE, torch.Generator(weight.data.device).manual_seed(seed))
        seed += weight.data.dim() > 1
