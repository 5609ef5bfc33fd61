"""A quantized checkpoint that does not fit is refused, and its tensor or layer named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.layers.linear import Linear
from engine.quant.fp8 import Fp8
from engine.quant.gptq import Gptq
from engine.runner import load_runner
from tests.engine.quant import checkpoints
from tests.engine.quant.checkpoints import GROUP, Tensors

CONFIG = {"quant_method": "awq", "bits": 4, "group_size": GROUP}
NAME = "model.layers.1.self_attn.k_proj."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("awq"), checkpoints.awq, CONFIG)[0]


def config(folder: Path, load_format: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=str(folder),
        device="cpu",
        num_gpu_blocks_override=20,
        num_threads=1,
        load_format=load_format,  # type: ignore[arg-type]
    )


def load(folder: Path, load_format: str = "auto") -> None:
    load_runner(config(folder, load_format))


def drop(tensors: Tensors) -> None:
    del tensors[NAME + "qzeros"]


def reshape(tensors: Tensors) -> None:
    tensors[NAME + "scales"] = tensors[NAME + "scales"][:1].clone()


def retype(tensors: Tensors) -> None:
    tensors[NAME + "qweight"] = tensors[NAME + "qweight"].float()


def add(tensors: Tensors) -> None:
    tensors[NAME + "g_idx"] = torch.zeros(48, dtype=torch.int32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (drop, f"lacks tensor '{NAME}qzeros'"),
        (reshape, rf"tensor '{NAME}scales' has shape \[1, 16\], the config asks for \[3, 16\]"),
        (retype, f"tensor '{NAME}qweight' has dtype F32, the config asks for int32"),
        (add, f"holds tensor '{NAME}g_idx', which the model has no place for"),
    ],
)
def test_a_tensor_that_does_not_fit(
    damage: Callable[[Tensors], None], message: str, folder: Path, tmp_path: Path
) -> None:
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ModelLoadError, match=message):
        load(tmp_path)


def test_quantized_weights_without_a_word_in_the_config(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    del document["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match="qweight', which the model has no place for"):
        load(tmp_path)


def test_random_weights(folder: Path) -> None:
    load(folder, "dummy")


def linear(in_features: int = 64, **parts: int) -> Linear:
    dtype, device = torch.float32, torch.device("cpu")
    return Linear(in_features, parts or {"": 16}, bias=False, dtype=dtype, device=device)


def test_groups_that_do_not_divide_a_layer() -> None:
    with pytest.raises(ValueError, match="group_size 48 does not divide 64 inputs"):
        Gptq(48).weight(linear())
    with pytest.raises(ValueError, match="12 features are no multiple of 8"):
        Gptq(16).weight(linear(q_proj=12))


def test_a_weight_takes_no_memory_before_its_first_use() -> None:
    layer = linear()
    layer.quantized = Fp8(online=True).weight(layer)
    ((name, weight),) = layer.named_weights()
    assert (name, weight.data.dtype) == ("weight", torch.float8_e4m3fn)
    with pytest.raises(AttributeError):
        object.__getattribute__(layer.weight, "data")
    assert layer.weight.data.shape == (16, 64)
