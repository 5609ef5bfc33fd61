"""Copying a checkpoint tensor into its part of a parameter."""

from __future__ import annotations

import torch

from engine.errors import ModelLoadError
from engine.weights.names import Target


def load_shard(name: str, target: Target, tensor: torch.Tensor) -> None:
    """Copy with conversion to the parameter's dtype and device; shapes must be equal."""
    place = target.weight.part(target.part)
    if place.shape != tensor.shape:
        raise ModelLoadError(
            f"tensor {name!r} has shape {list(tensor.shape)}, the config asks for "
            f"{list(place.shape)}: config.json and the weights do not belong together"
        )
    place.copy_(tensor)
