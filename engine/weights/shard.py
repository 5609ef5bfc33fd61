"""Copying a checkpoint tensor into its part of a parameter."""

from __future__ import annotations

import torch

from engine.weights.names import Target


def load_shard(target: Target, tensor: torch.Tensor) -> None:
    """Copy a tensor of the same shape, converting it to the parameter's dtype and device."""
    target.weight.load(target.part, tensor)
