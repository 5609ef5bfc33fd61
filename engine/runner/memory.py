"""The size of the KV cache, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from engine.cache.groups import LayerGroups, group_layers, max_request_tokens, single_group
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.layers.attention import KVCache
from engine.models.base import ModelFacts
from engine.runner.block_copies import as_stack

GPU_WINDOW_STEP = 128
"""Keys that the largest tile of any attention kernel reads at a time."""
CPU_KV_CACHE_BYTES = 512 * 1024 * 1024


def device_bytes(device: torch.device) -> int:
    """All memory of a GPU; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 0


def choose_groups(
    config: EngineConfig,
    model: ModelFacts,
    max_model_len: int,
    device: torch.device,
    *,
    draft_layers: float | None = None,
) -> LayerGroups:
    """How the layers share blocks.

    draft_layers: what a draft network stores with each block, measured in layers of the model; None
    without such a network. The network looks back at every block, so the first group must be one
    that keeps them all. ``ConfigError`` says why groups that were asked for are impossible.
    """
    single = single_group(model.cache_layout.num_layers)
    if config.disable_hybrid_kv_cache_manager:
        return single
    groups = group_layers(model.layer_windows, max_model_len, more_layers=draft_layers or 0.0)
    if draft_layers is not None and groups.windows[0] is not None:
        if config.disable_hybrid_kv_cache_manager is False:
            raise ConfigError(
                "disable_hybrid_kv_cache_manager = false: a draft network looks back at every "
                "block, and every layer of the model has a window"
            )
        return single
    return replace(groups, window_step=1 if device.type == "cpu" else GPU_WINDOW_STEP)


def block_bytes(
    model: ModelFacts, block_size: int, dtype: torch.dtype, groups: LayerGroups | None = None
) -> int:
    """Bytes of keys and values of one block, in all layers or in those of a group."""
    layout = model.cache_layout
    width = layout.num_tensors * layout.num_kv_heads * layout.head_dim
    num_layers = layout.num_layers if groups is None else groups.num_layers_each
    return block_size * num_layers * width * dtype.itemsize


def count_blocks(
    config: EngineConfig,
    model: ModelFacts,
    dtype: torch.dtype,
    device: torch.device,
    activation_bytes: Callable[[], int],
    draft_bytes: int = 0,
    groups: LayerGroups | None = None,
) -> int:
    """Blocks in the KV cache; ``draft_bytes`` come to each block for drafting.

    ``num_gpu_blocks_override`` wins, then ``kv_cache_memory_bytes``. Else a CPU takes a fixed
    amount, a GPU what ``gpu_memory_utilization`` leaves beside all memory in use and the
    activations of the largest step, which ``activation_bytes`` measures.
    """
    if config.num_gpu_blocks_override is not None:
        return config.num_gpu_blocks_override
    budget = config.kv_cache_memory_bytes
    if budget is None:
        if device.type == "cpu":
            budget = CPU_KV_CACHE_BYTES
        else:
            needed = activation_bytes()
            free, total = torch.cuda.mem_get_info(device)
            budget = int(total * config.gpu_memory_utilization) - (total - free) - needed
    num_blocks = budget // (block_bytes(model, config.block_size, dtype, groups) + draft_bytes)
    if num_blocks < 1:
        raise ConfigError(
            f"{max(budget, 0)} bytes hold no block of the KV cache: raise kv_cache_memory_bytes "
            "or, on a GPU, gpu_memory_utilization"
        )
    return num_blocks


def requested_max_model_len(config: EngineConfig, model: ModelFacts) -> int:
    """The length that the config asks for; by default the model's own limit."""
    asked, limit = config.max_model_len, model.max_position_embeddings
    if asked is not None and asked > limit:
        raise ConfigError(
            f"max_model_len {asked} exceeds the model's {limit} (max_position_embeddings)"
        )
    return asked or limit


def fit_max_model_len(
    config: EngineConfig, model: ModelFacts, num_blocks: int, groups: LayerGroups
) -> int:
    """The longest request to serve. One such request alone always fits the cache.

    Raises ``ConfigError`` when a length was asked for that the cache cannot hold.
    """
    asked, limit = config.max_model_len, model.max_position_embeddings
    capacity = max_request_tokens(
        groups.windows, num_blocks, config.block_size, 2 * config.chunk_tokens, groups.window_step
    )
    if asked is None:
        return limit if capacity is None else min(limit, capacity)
    if capacity is not None and asked > capacity:
        raise ConfigError(
            f"max_model_len {asked} does not fit the KV cache of {num_blocks} blocks of "
            f"{config.block_size} tokens: lower max_model_len or raise kv_cache_memory_bytes"
        )
    return asked


class PagedCache:
    """The KV cache of all layers in one tensor.

    With layer groups, layers with the same index in their group share a part of the tensor, where
    each group uses blocks of its own.
    """

    def __init__(
        self,
        model: ModelFacts,
        num_blocks: int,
        block_size: int,
        groups: LayerGroups | None = None,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """dtype: of the stored keys and values."""
        layout = model.cache_layout
        self.groups = groups or single_group(layout.num_layers)
        shape = (self.groups.num_layers_each, layout.num_tensors, num_blocks, block_size)
        memory = torch.zeros(
            *shape, layout.num_kv_heads, layout.head_dim, dtype=dtype, device=device
        )
        self.num_blocks = num_blocks
        self.stack = as_stack(memory.view(-1, *memory.shape[2:]))
        """All layers, as ``BlockCopies`` wants them."""
        self.tensors: KVCache = [
            (layer[0],) * 2 if layout.is_latent else (layer[0], layer[1]) for layer in memory
        ]
        """The caches without repetitions."""
        self.layers: KVCache = [self.tensors[number] for _, number in self.groups.places]
