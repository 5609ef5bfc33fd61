"""How large the KV cache is, and its memory."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.layers.attention import KVCache
from engine.models.base import ModelConfig

CPU_KV_CACHE_BYTES = 512 * 1024 * 1024


def block_bytes(model: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Keys and values of one block in all layers."""
    per_token = 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize
    return block_size * per_token


def cpu_num_blocks(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    budget = config.kv_cache_memory_bytes or CPU_KV_CACHE_BYTES
    return budget // block_bytes(model, config.block_size, dtype)


def fit_max_model_len(config: EngineConfig, model: ModelConfig, num_blocks: int) -> int:
    """The longest request to serve. One such request alone always fits the cache.

    Raises ``ConfigError`` when a length was asked for that the model or the cache cannot hold.
    """
    model_limit, capacity = model.max_position_embeddings, num_blocks * config.block_size
    asked = config.max_model_len
    if asked is None:
        if capacity == 0:
            raise ConfigError("kv_cache_memory_bytes is too small for a single block")
        return min(model_limit, capacity)
    if asked > model_limit:
        raise ConfigError(
            f"max_model_len {asked} exceeds the model's {model_limit} (max_position_embeddings)"
        )
    if asked > capacity:
        raise ConfigError(
            f"max_model_len {asked} does not fit the KV cache of {num_blocks} blocks of "
            f"{config.block_size} tokens: lower max_model_len or raise kv_cache_memory_bytes"
        )
    return asked


class PagedCache:
    """The KV cache of all layers in one tensor."""

    def __init__(
        self,
        model: ModelConfig,
        num_blocks: int,
        block_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (model.num_layers, 2, num_blocks, block_size, model.num_kv_heads, model.head_dim)
        self._memory = torch.zeros(shape, dtype=dtype, device=device)
        self.num_blocks = num_blocks
        self.layers: KVCache = [(layer[0], layer[1]) for layer in self._memory]

    def copy_block(self, source: int, target: int, num_slots: int) -> None:
        """Copy the leading slots of a block to another, in all layers."""
        self._memory[:, :, target, :num_slots] = self._memory[:, :, source, :num_slots]
