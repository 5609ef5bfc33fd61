"""Rotary position embeddings: which frequencies, and the table of their cosines and sines.

The scalings are those of ``transformers.modeling_rope_utils``. ``dynamic`` changes nothing up to
the model's own length, and beyond it would make a token's result depend on how long its neighbours
in the batch are; so it is served up to that length only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

SCALINGS = ("default", "linear", "dynamic", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    theta: float = 10000.0
    scaling: str = "default"
    """One of ``SCALINGS``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """What the scaling needs, with the checkpoint's names."""


def cos_sin_table(
    config: RopeConfig, head_dim: int, max_positions: int, device: torch.device
) -> torch.Tensor:
    """[max_positions, head_dim] float32: cosines, then sines, see ``ops.rope_and_cache``."""
    inv_freq = inverse_frequencies(config, head_dim)
    angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * inv_freq
    return torch.cat((angles.cos(), angles.sin()), -1).to(device)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """[head_dim / 2] float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    inv_freq = 1.0 / (config.theta**exponents)
    if config.scaling == "linear":
        return inv_freq / float(config.parameters["factor"])
    if config.scaling == "llama3":
        return _llama3(inv_freq, config.parameters)
    return inv_freq


def _llama3(inv_freq: torch.Tensor, parameters: dict[str, Any]) -> torch.Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between interpolated."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    original_len = float(parameters["original_max_position_embeddings"])
    wavelength = 2 * math.pi / inv_freq
    stretched = torch.where(wavelength > original_len / low, inv_freq / factor, inv_freq)
    smooth = (original_len / wavelength - low) / (high - low)
    interpolated = (1 - smooth) * stretched / factor + smooth * stretched
    between = (wavelength >= original_len / high) & (wavelength <= original_len / low)
    return torch.where(between, interpolated, stretched)
