from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.cache.groups import group_layers, single_group
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.runner.block_copies import BlockCopies
from engine.runner.memory import (
    PagedCache,
    block_bytes,
    choose_groups,
    count_blocks,
    fit_max_model_len,
)
from tests.engine.models.test_registry import CONFIG

CPU, GPU = torch.device("cpu"), torch.device("cuda")
LOCAL = replace(CONFIG, num_layers=6, windows=(None, 8, 8) * 2, max_position_embeddings=256)
"""One layer in three sees everything."""


def test_layers_are_views_of_the_documented_shape() -> None:
    cache = PagedCache(CONFIG, 5, 4, dtype=torch.float32, device=torch.device("cpu"))
    assert len(cache.layers) == CONFIG.num_layers
    for k_cache, v_cache in cache.layers:
        assert k_cache.shape == v_cache.shape == (5, 4, CONFIG.num_kv_heads, CONFIG.head_dim)
        assert k_cache.is_contiguous()
        assert v_cache.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_the_stack_is_the_memory_of_all_layers(dtype: torch.dtype) -> None:
    cache = PagedCache(CONFIG, 5, 4, dtype=dtype, device=torch.device("cpu"))
    slot_bytes = CONFIG.num_kv_heads * CONFIG.head_dim * dtype.itemsize
    assert cache.stack.shape == (2 * CONFIG.num_layers, 5, 4, slot_bytes)
    tensors = [tensor for layer in cache.layers for tensor in layer]
    assert [t.data_ptr() for t in cache.stack] == [t.data_ptr() for t in tensors]
    cache.layers[0][1][3, 2] = 1.0
    assert cache.stack[1, 3, 2].any()
    assert int(cache.stack.count_nonzero()) == int(cache.stack[1, 3, 2].count_nonzero())


class TestLayerGroups:
    def test_layers_of_different_groups_share_memory_and_those_of_one_do_not(self) -> None:
        groups = group_layers(LOCAL.layer_windows, 256)
        cache = PagedCache(LOCAL, 5, 4, groups, dtype=torch.float32, device=CPU)
        assert groups.windows == (None, 8, 8)
        assert len(cache.tensors) == 2
        places = [k_cache.data_ptr() for k_cache, _ in cache.layers]
        assert places[0] == places[1] == places[4] != places[3] == places[2] == places[5]
        for index, (k_cache, v_cache) in enumerate(cache.tensors):
            k_cache[3], v_cache[3] = index + 1.0, index + 2.0
        BlockCopies([cache.stack]).copy([(3, 1, 2)])
        assert [float(k_cache[1, 1, 0, 0]) for k_cache, _ in cache.layers] == [1, 1, 2, 2, 1, 2]
        assert not any(k_cache[1, 2:].any() for k_cache, _ in cache.layers)

    def test_a_block_is_as_large_as_the_layers_of_a_group(self) -> None:
        groups = group_layers(LOCAL.layer_windows, 256)
        whole = block_bytes(LOCAL, 4, torch.float32)
        assert block_bytes(LOCAL, 4, torch.float32, groups) * 3 == whole
        config = EngineConfig(model="m", block_size=4, kv_cache_memory_bytes=7 * whole)
        counted = count_blocks(config, LOCAL, torch.float32, CPU, lambda: 0, groups=groups)
        assert counted == 21

    @pytest.mark.parametrize("device", [CPU, GPU])
    def test_they_are_made_unless_turned_off(self, device: torch.device) -> None:
        """On a GPU a window leaves whole tiles behind."""
        step = 1 if device == CPU else 128
        groups = replace(group_layers(LOCAL.layer_windows, 256), window_step=step)
        for disabled, expected in ((None, groups), (False, groups), (True, single_group(6))):
            config = EngineConfig(model="m", disable_hybrid_kv_cache_manager=disabled)
            assert choose_groups(config, LOCAL, 256, device) == expected

    def test_beside_a_draft_network_what_it_keeps_counts_for_every_block(self) -> None:
        config = EngineConfig(model="m")
        groups = group_layers(LOCAL.layer_windows, 256)
        assert choose_groups(config, LOCAL, 256, CPU, draft_layers=1.0) == groups
        heavy = choose_groups(config, LOCAL, 10, CPU, draft_layers=100.0)
        assert heavy == single_group(6), "blocks are fewest where all layers share them"

    def test_a_draft_network_needs_a_group_that_sees_everything(self) -> None:
        local = replace(LOCAL, windows=(8,) * 6)
        config = EngineConfig(model="m")
        assert choose_groups(config, local, 256, CPU).windows == (8,)
        assert choose_groups(config, local, 256, CPU, draft_layers=1.0) == single_group(6)
        asked = EngineConfig(model="m", disable_hybrid_kv_cache_manager=False)
        with pytest.raises(ConfigError, match=r"_manager = false: a draft network looks back"):
            choose_groups(asked, local, 256, CPU, draft_layers=1.0)

    def test_the_longest_request_counts_every_group(self) -> None:
        groups = group_layers(LOCAL.layer_windows, 256)
        config = EngineConfig(model="m", block_size=4, max_num_batched_tokens=8)
        # Eight blocks for the window and the steps in flight, twice.
        assert fit_max_model_len(config, LOCAL, 16 + 30, groups) == 120
        assert fit_max_model_len(config, LOCAL, 500, groups) == 256
        assert fit_max_model_len(config, LOCAL, 30, single_group(6)) == 120
        assert fit_max_model_len(config, LOCAL, 9, single_group(6, 8)) == 256
        asked = EngineConfig(model="m", block_size=4, max_num_batched_tokens=8, max_model_len=121)
        with pytest.raises(ConfigError, match="max_model_len 121 does not fit"):
            fit_max_model_len(asked, LOCAL, 46, groups)
