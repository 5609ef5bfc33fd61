"""Which attention backend a device runs."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.attention.cpu import CpuAttention
from engine.attention.torch_ref import TorchAttention
from engine.errors import ConfigError
from kernels import cpu


def select_backend(
    device: torch.device, dtype: torch.dtype, block_size: int, head_dim: int
) -> AttentionBackend:
    """The best backend for the model; ``ConfigError`` when it cannot take the block size."""
    backend = _best(device, dtype, head_dim)
    if block_size % backend.block_size_multiple:
        raise ConfigError(
            f"block_size must be a multiple of {backend.block_size_multiple} for the attention "
            f"backend {backend.name!r}, got {block_size}"
        )
    return backend


def _best(device: torch.device, dtype: torch.dtype, head_dim: int) -> AttentionBackend:
    fits = device.type == "cpu" and dtype == torch.float32 and head_dim <= cpu.MAX_HEAD_DIM
    if fits and cpu.available():
        return CpuAttention()
    return TorchAttention(device, dtype)
