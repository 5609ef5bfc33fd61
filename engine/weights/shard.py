"""Copying a checkpoint tensor into its part of a parameter."""

from __future__ import annotations

import torch

from engine.weights.names import Target


def load_shard(target: Target, tensor: torch.Tensor) -> None:
    """Copy with conversion to the parameter's form and device. The shapes are equal."""
    target.weight.load(target.part, tensor)
