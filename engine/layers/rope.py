"""Rotary position embeddings: which frequencies, and the table of their cosines and sines.

The scalings are those of ``transformers.modeling_rope_utils``, but a token's result never depends
on how long its neighbours in the batch are. So ``dynamic``, which changes nothing up to the model's
own length, is served up to that length only; and of ``longrope``'s two sets of frequencies, the
length that is served decides for one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """The frequencies of a rotary embedding (arXiv 2104.09864)."""

    theta: float = 10000.0
    """Infinite: nothing is rotated."""
    scaling: str = "default"
    """One of ``SCALINGS``."""
    parameters: dict[str, Any] = field(default_factory=dict)
    """The scaling's parameters, by the checkpoint's names."""
    rotary_fraction: float = 1.0
    """The share of a head's dimensions, the first ones, that are rotated."""
    max_position_embeddings: int = 0
    """The model's own length, for the scalings that refer to it."""


def cos_sin_table(
    config: RopeConfig, head_dim: int, max_positions: int, device: torch.device
) -> torch.Tensor:
    """[max_positions, rotary_dim] float32: cosines, then sines, see ``ops.rope_and_cache``."""
    inv_freq = inverse_frequencies(config, head_dim, max_positions)
    angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * inv_freq
    table = torch.cat((angles.cos(), angles.sin()), -1) * attention_factor(config)
    return table.to(device)


def inverse_frequencies(
    config: RopeConfig, head_dim: int, max_positions: int | None = None
) -> torch.Tensor:
    """[rotary_dim / 2] float32. max_positions: the length served, the model's own by default."""
    rotary_dim = int(head_dim * config.rotary_fraction)
    if math.isinf(config.theta):
        return torch.zeros(rotary_dim // 2)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    inv_freq = 1.0 / (config.theta**exponents)
    match config.scaling:
        case "linear":
            return inv_freq / float(config.parameters["factor"])
        case "llama3":
            return _llama3(inv_freq, config.parameters)
        case "yarn":
            return _yarn(config, inv_freq, rotary_dim)
        case "longrope":
            return _longrope(config, inv_freq, max_positions or config.max_position_embeddings)
    return inv_freq


def attention_factor(config: RopeConfig) -> float:
    """Factor on queries and keys, besides the rotation."""
    given = config.parameters.get("attention_factor")
    if given is not None:
        return float(given)
    if config.scaling == "yarn":
        scale = stretch(config)
        mscale, all_dim = (config.parameters.get(k) for k in ("mscale", "mscale_all_dim"))
        if mscale and all_dim:
            return yarn_mscale(scale, float(mscale)) / yarn_mscale(scale, float(all_dim))
        return yarn_mscale(scale)
    if config.scaling == "longrope":
        scale = stretch(config)
        original_len = float(config.parameters["original_max_position_embeddings"])
        return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original_len))
    return 1.0


def stretch(config: RopeConfig) -> float:
    """How many times longer than in its original training the context is (yarn, longrope)."""
    factor = config.parameters.get("factor")
    if factor is not None:
        return float(factor)
    original_len = float(config.parameters["original_max_position_embeddings"])
    return config.max_position_embeddings / original_len


def yarn_mscale(scale: float, mscale: float = 1.0) -> float:
    return 1.0 if scale <= 1 else 0.1 * mscale * math.log(scale) + 1.0


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


def _yarn(config: RopeConfig, inv_freq: torch.Tensor, rotary_dim: int) -> torch.Tensor:
    """arXiv 2309.00071: dimensions that turn often are kept, those that turn seldom stretched."""
    parameters = config.parameters
    original_len = float(parameters["original_max_position_embeddings"])

    def dimension_turning(times: float) -> float:
        turns = math.log(original_len / (times * 2 * math.pi))
        return rotary_dim * turns / (2 * math.log(config.theta))

    low = dimension_turning(float(parameters.get("beta_fast") or 32))
    high = dimension_turning(float(parameters.get("beta_slow") or 1))
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    dimensions = torch.arange(rotary_dim // 2, dtype=torch.float32)
    ramp = ((dimensions - low) / ((high - low) or 0.001)).clamp(0, 1)
    return inv_freq / stretch(config) * ramp + inv_freq * (1 - ramp)


def _longrope(config: RopeConfig, inv_freq: torch.Tensor, max_positions: int) -> torch.Tensor:
    """arXiv 2402.13753: every dimension has its own stretch."""
    original_len = int(config.parameters["original_max_position_embeddings"])
    name = "long_factor" if max_positions > original_len else "short_factor"
    return inv_freq / torch.tensor(config.parameters[name], dtype=torch.float32)
