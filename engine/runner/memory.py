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
from engine.runner.states import StateCache

GPU_WINDOW_STEP = 128
"""The largest number of keys that any attention kernel reads as one tile."""
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
    """Divide the layers into groups that share blocks (see ``engine.cache.groups``).

    draft_layers: bytes that a draft network stores with each block, divided by those of one layer
    of the model; None without such a network. The network reads the keys of all tokens, so the
    first group must keep all blocks. Raises ``ConfigError`` if the config asks for groups that are
    impossible."""
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
    """Bytes of the keys and values in one block: of all layers or, with ``groups``, of one
    group."""
    layout = model.cache_layout
    width = layout.num_tensors * layout.num_kv_heads * layout.head_dim
    num_layers = layout.num_stored
    if groups is not None:
        num_layers = groups.stored(layout.stored).num_layers_each
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
    """The number of blocks in the KV cache.

    ``num_gpu_blocks_override`` decides, or else ``kv_cache_memory_bytes``. Without these it is a
    fixed amount of memory on a CPU; on a GPU, what ``gpu_memory_utilization`` leaves beside the
    memory in use and ``activation_bytes()``, the measured need of the largest step. draft_bytes:
    what drafting stores with each block."""
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
    """The greatest length of a request, such that one alone always fits in the cache.

    Raises ``ConfigError`` if the config asks for a length that the cache cannot hold.
    """
    asked, limit = config.max_model_len, model.max_position_embeddings
    capacity = max_request_tokens(
        groups.kinds, num_blocks, config.block_size, config.most_in_flight * config.chunk_tokens
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
    """The KV cache of all layers, allocated as one tensor.

    With several layer groups, layers with the same index in their groups share a part of that
    tensor: a block belongs to one group at a time."""

    def __init__(
        self,
        model: ModelFacts,
        num_blocks: int,
        block_size: int,
        groups: LayerGroups | None = None,
        *,
        states: StateCache | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """states: of layers that keep one in place of keys and values. dtype: of the stored keys
        and values."""
        layout = model.cache_layout
        self.states = states
        self.groups = (groups or single_group(layout.num_layers)).stored(layout.stored)
        shape = (self.groups.num_layers_each, layout.num_tensors, num_blocks, block_size)
        memory = torch.zeros(
            *shape, layout.num_kv_heads, layout.head_dim, dtype=dtype, device=device
        )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.stack = as_stack(memory.view(-1, *memory.shape[2:]))
        """The whole cache, as ``BlockCopies`` takes it."""
        self.tensors: KVCache = [
            (layer[0],) * 2 if layout.is_latent else (layer[0], layer[1]) for layer in memory
        ]
        """(k_cache, v_cache) of the layers of one group; the layers of other groups use the
        same."""
        self.layers: KVCache = [self.tensors[number] for _, number in self.groups.places]
        """(k_cache, v_cache) of each layer of the model; of layers that are not stored, those of
        another."""
