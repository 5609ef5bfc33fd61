"""Where the scales of a cache in FP8 come from, and what the layers get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine.attention.base import FP8, KVScales
from engine.config import EngineConfig
from engine.layers.attention import SelfAttention
from engine.runner import load_runner
from engine.runner.startup.kv_scales import HEADROOM, scale_of
from kernels.reference import FP8_MAX


@given(
    st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=4),
    st.integers(1, 3),
)
def test_a_measured_scale_is_the_least_power_of_two_with_headroom(
    largest: list[float], num_heads: int
) -> None:
    heads = [largest[i % len(largest)] for i in range(num_heads)]
    cached = torch.zeros(2, 3, num_heads, 5)
    for head, value in enumerate(heads):
        cached[1, 2, head, 4] = -value
    scale = scale_of(cached)
    for value, found in zip(heads, scale.tolist(), strict=True):
        assert found > 0
        assert torch.tensor(found).log2().frac() == 0
        wanted = HEADROOM * value / FP8_MAX
        if wanted > 2.0**-100:
            assert wanted * 0.999 <= found < 2.001 * wanted
        elif value == 0:
            assert found == 1.0


def layers_of(config: EngineConfig) -> list[KVScales]:
    runner = load_runner(config)
    assert all(tensor.dtype == FP8 for pair in runner._blocks.cache.layers for tensor in pair)
    model = runner._forward_pass.executors.eager.model
    layers = [m for m in model.modules() if isinstance(m, SelfAttention)]
    assert len(layers) == 3
    return [layer.options.kv_scales for layer in layers if layer.options.kv_scales is not None]


def fp8(tiny_config: EngineConfig, **options: Any) -> EngineConfig:
    return msgspec.structs.replace(tiny_config, kv_cache_dtype="fp8", **options)


def test_they_are_measured_alike_each_time(tiny_config: EngineConfig) -> None:
    first, second = layers_of(fp8(tiny_config)), layers_of(fp8(tiny_config))
    assert len(first) == 3
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.k, b.k)
        assert torch.equal(a.v, b.v)
        assert (a.k.log2().frac() == 0).all()
    assert any((scales.v != 1).any() for scales in first)


def test_they_are_1_if_nobody_is_to_measure(tiny_config: EngineConfig) -> None:
    for scales in layers_of(fp8(tiny_config, calculate_kv_scales=False)):
        assert scales.k.tolist() == scales.v.tolist() == [1.0, 1.0]


def test_the_checkpoints_own_come_first(
    tiny_dir: Path, tiny_config: EngineConfig, tmp_path: Path
) -> None:
    tensors = load_file(tiny_dir / "model.safetensors")
    for layer in range(3):
        tensors[f"model.layers.{layer}.self_attn.k_scale"] = torch.tensor(0.25 + layer)
        tensors[f"model.layers.{layer}.self_attn.v_scale"] = torch.tensor([0.5, 0.125])
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((tiny_dir / "config.json").read_bytes())
    config = fp8(tiny_config, model=str(tmp_path))
    for layer, scales in enumerate(layers_of(config)):
        assert scales.k.tolist() == [0.25 + layer] * 2
        assert scales.v.tolist() == [0.5, 0.125]
    # A cache of floats does not need them.
    runner = load_runner(msgspec.structs.replace(config, kv_cache_dtype="auto"))
    assert runner._blocks.cache.layers[0][0].dtype == torch.float32


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_four_times_as_many_blocks_as_of_float32(tiny_config: EngineConfig, name: str) -> None:
    memory = msgspec.structs.replace(
        tiny_config, num_gpu_blocks_override=None, kv_cache_memory_bytes=1 << 20
    )
    plain = load_runner(memory).num_blocks
    small = load_runner(msgspec.structs.replace(memory, kv_cache_dtype=name)).num_blocks
    assert small // 4 == plain
