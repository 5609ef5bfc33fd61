from __future__ import annotations

import math

import torch

from engine.runner.memory import PagedCache
from tests.engine.models.test_registry import CONFIG


def test_layers_are_views_of_the_documented_shape() -> None:
    cache = PagedCache(CONFIG, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    assert len(cache.layers) == CONFIG.num_layers
    for k_cache, v_cache in cache.layers:
        assert k_cache.shape == v_cache.shape == (5, 4, CONFIG.num_kv_heads, CONFIG.head_dim)
        assert k_cache.is_contiguous()
        assert v_cache.is_contiguous()


def test_copying_a_block_copies_its_leading_slots_only() -> None:
    cache = PagedCache(CONFIG, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    for layer, (k_cache, v_cache) in enumerate(cache.layers):
        k_cache[3], v_cache[3] = layer + 1.0, -layer - 1.0
        k_cache[1], v_cache[1] = math.pi, math.pi
    cache.copy_block(3, 1, 3)
    for layer, (k_cache, v_cache) in enumerate(cache.layers):
        assert (k_cache[1, :3] == layer + 1).all()
        assert (v_cache[1, :3] == -layer - 1).all()
        assert (k_cache[1, 3] == math.pi).all()
        assert (k_cache[3] == layer + 1).all()
