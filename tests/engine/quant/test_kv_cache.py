"""Scales of a KV cache that checkpoints bring along, under every name they have there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelLoadError
from engine.models.base import CacheLayout
from engine.quant.kv_cache import read_kv_scales

CPU = torch.device("cpu")
LAYOUT = CacheLayout(num_layers=2, num_kv_heads=3, head_dim=4)


def checkpoint(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file({"model.norm.weight": torch.ones(2), **tensors}, folder / "model.safetensors")
    return folder


def of_layers(k: str, v: str, *shape: int) -> dict[str, torch.Tensor]:
    """Layer i has i + 1 for keys and i + 5 for values."""
    return {
        f"model.layers.{i}.self_attn.{name}": torch.full(shape, float(i + first))
        for i in range(2)
        for name, first in ((k, 1), (v, 5))
    }


@pytest.mark.parametrize(
    ("k", "v"),
    [
        ("k_scale", "v_scale"),
        ("k_proj.k_scale", "v_proj.v_scale"),
        ("attn.k_scale", "attn.v_scale"),
        ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1, 1)])
def test_every_layout(tmp_path: Path, k: str, v: str, shape: tuple[int, ...]) -> None:
    scales = read_kv_scales(checkpoint(tmp_path, of_layers(k, v, *shape)), LAYOUT, CPU)
    assert scales is not None
    assert [(s.k.tolist(), s.v.tolist()) for s in scales] == [
        ([1.0] * 3, [5.0] * 3),
        ([2.0] * 3, [6.0] * 3),
    ]


def test_one_for_both(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.self_attn.kv_scale": torch.tensor(2.5) for i in range(2)}
    scales = read_kv_scales(checkpoint(tmp_path, tensors), LAYOUT, CPU)
    assert scales is not None
    assert scales[1].k.tolist() == scales[1].v.tolist() == [2.5] * 3


def test_layers_without_keys_have_none(tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.self_attn.kv_scale": torch.tensor(i / 2) for i in (3, 7)}
    scales = read_kv_scales(checkpoint(tmp_path, tensors), LAYOUT, CPU, (3, 7))
    assert scales is not None
    assert [s.k.tolist() for s in scales] == [[1.5] * 3, [3.5] * 3]


def test_a_checkpoint_without_any(tmp_path: Path) -> None:
    assert read_kv_scales(checkpoint(tmp_path, {}), LAYOUT, CPU) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.layers.1.self_attn.v_scale": None}, "no v_scale of layer 1"),
        (
            {"model.layers.0.self_attn.k_scale": torch.ones(2)},
            "'model.layers.0.self_attn.k_scale' has 2 elements, neither 1 nor one for each of",
        ),
        ({"model.layers.0.self_attn.k_scale": torch.tensor(-1.0)}, "no positive number"),
        ({"model.layers.0.self_attn.k_scale": torch.tensor(float("nan"))}, "no positive number"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, torch.Tensor | None], message: str
) -> None:
    tensors = {**of_layers("k_scale", "v_scale"), **change}
    checkpoint(tmp_path, {name: t for name, t in tensors.items() if t is not None})
    with pytest.raises(ModelLoadError, match=message):
        read_kv_scales(tmp_path, LAYOUT, CPU)


def test_a_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    checkpoint(tmp_path, of_layers("k_scale", "v_scale"))
    assert load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"\x00" * 4)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors cannot be read"):
        read_kv_scales(tmp_path, LAYOUT, CPU)
