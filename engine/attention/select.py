"""Which attention backend a device runs."""

from __future__ import annotations

import torch

from engine.attention.base import AttentionBackend
from engine.attention.torch_ref import TorchAttention
from engine.errors import ConfigError


def select_backend(device: torch.device, dtype: torch.dtype, block_size: int) -> AttentionBackend:
    """The best backend for ``device``; ``ConfigError`` when it cannot take the block size."""
    backend = TorchAttention(device, dtype)
    if block_size % backend.block_size_multiple:
        raise ConfigError(
            f"block_size must be a multiple of {backend.block_size_multiple} for the attention "
            f"backend {backend.name!r}, got {block_size}"
        )
    return backend
