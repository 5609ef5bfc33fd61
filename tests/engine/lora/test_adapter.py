from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.errors import AdapterLoadError
from engine.lora.adapter import Adapter, load_adapter
from engine.lora.config import AdapterConfig
from engine.lora.target_modules import find_target_modules
from engine.models.base import Model
from engine.models.registry import create_model, read_config
from tests.engine.lora.making import write_adapter, write_files
from tests.engine.runner.tiny_llama import save_tiny_llama

PREFIX = "base_model.model.model.layers.0.self_attn."


def make_model(folder: Path) -> Model:
    return create_model(
        read_config(folder), max_model_len=32, dtype=torch.float32, device=torch.device("cpu")
    )


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def load(model_dir: Path) -> Callable[..., Adapter]:
    modules = find_target_modules(make_model(model_dir))

    def load(folder: Path, max_rank: int = 64) -> Adapter:
        return load_adapter(folder, modules, max_rank=max_rank, dtype=torch.float32)

    return load


Load = Callable[..., Adapter]


def test_every_linear_layer_of_the_checkpoint_is_a_place(model_dir: Path) -> None:
    modules = find_target_modules(make_model(model_dir))
    assert len(modules) == 3 * 7
    module = modules["model.layers.1.self_attn.v_proj"]
    assert (module.columns, module.in_features, module.out_features) == (slice(64, 80), 48, 16)
    assert modules["model.layers.2.mlp.up_proj"].columns == slice(80, 160)
    assert "lm_head" not in modules


@pytest.mark.parametrize(("use_rslora", "scaling"), [(False, 2.0), (True, 8.0)])
def test_what_is_read(
    load: Load, model_dir: Path, tmp_path: Path, use_rslora: bool, scaling: float
) -> None:
    write_adapter(tmp_path, model_dir, rank=16, targets=("v_proj",), use_rslora=use_rslora)
    adapter = load(tmp_path)
    assert adapter.rank == 16
    assert set(adapter.pairs) == {f"model.layers.{i}.self_attn.v_proj" for i in range(3)}
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    pair = adapter.pairs["model.layers.0.self_attn.v_proj"]
    torch.testing.assert_close(pair.down, tensors[PREFIX + "v_proj.lora_A.weight"])
    torch.testing.assert_close(pair.up, tensors[PREFIX + "v_proj.lora_B.weight"] * scaling)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float64])
def test_floats_of_any_size_are_read(load: Load, tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        PREFIX + "q_proj.lora_A.weight": torch.full((8, 48), 0.5).to(dtype),
        PREFIX + "q_proj.lora_B.weight": torch.full((48, 8), 0.25).to(dtype),
    }
    write_files(tmp_path, tensors, r=8, target_modules=["q_proj"])
    pair = load(tmp_path).pairs["model.layers.0.self_attn.q_proj"]
    torch.testing.assert_close(pair.down, torch.full((8, 48), 0.5))
    torch.testing.assert_close(pair.up, torch.full((48, 8), 1.0))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float32])
def test_what_is_no_number_is_refused(load: Load, tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {PREFIX + "q_proj.lora_A.weight": torch.full((8, 48), float("nan")).to(dtype)}
    write_files(tmp_path, tensors, r=8, target_modules=["q_proj"])
    with pytest.raises(AdapterLoadError, match="no finite numbers"):
        load(tmp_path)


def test_the_digest_is_of_the_content(load: Load, model_dir: Path, tmp_path: Path) -> None:
    no_fields: dict[str, Any] = {}
    digests = [
        load(write_adapter(tmp_path / name, model_dir, **fields)).digest
        for name, fields in (
            ("one", no_fields),
            ("same", no_fields),
            ("seed", {"seed": 1}),
            ("alpha", {"lora_alpha": 8}),
        )
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "use_dora: not supported: True"),
        ({"bias": "all"}, "bias: not supported: 'all', only 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: not supported"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern: not supported"),
        ({"alpha_pattern": {"q_proj": 4}}, "alpha_pattern: not supported"),
        ({"peft_type": "IA3"}, "peft_type 'IA3' is not LORA"),
        ({"init_lora_weights": "pissa_niter_4"}, "has changed the base's weights"),
        ({"r": 128}, "r is 128, but max_lora_rank is 64"),
        ({"r": 0}, "r must be at least 1"),
        ({"r": "8"}, r"Expected `int`, got `str` - at `\$.r`"),
        ({"lora_alpha": None}, r"got `null` - at `\$.lora_alpha`"),
        ({"target_modules": ["q_proj", "w1"]}, "target_modules names 'w1'"),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused_by_field(
    load: Load, model_dir: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    write_adapter(tmp_path, model_dir)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(AdapterLoadError, match=message):
        load(tmp_path)


def pair(name: str, *, rank: int = 8, ins: int = 48, outs: int = 48) -> dict[str, torch.Tensor]:
    return {
        f"{name}.lora_A.weight": torch.zeros(rank, ins),
        f"{name}.lora_B.weight": torch.zeros(outs, rank),
    }


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            pair(PREFIX + "q_proj", ins=64),
            r"q_proj.lora_A.weight' has shape \[8, 64\], this model asks for \[8, 48\]: "
            "the adapter was made for 'some/base'",
        ),
        (pair(PREFIX + "q_proj", outs=64), r"lora_B.weight' has shape \[64, 8\]"),
        (pair(PREFIX + "q_proj", rank=4), r"has shape \[4, 48\], this model asks for \[8, 48\]"),
        (
            pair(PREFIX.replace("0", "3") + "q_proj"),
            "layers.3.self_attn.q_proj.lora_A.weight' has no place in this model: the adapter was",
        ),
        (pair("base_model.model.lm_head"), "lm_head.lora_A.weight' has no place"),
        (
            {PREFIX + "q_proj.lora_magnitude_vector": torch.zeros(48)},
            "q_proj.lora_magnitude_vector' is not supported",
        ),
        (
            {PREFIX + "q_proj.lora_A.weight": torch.zeros(8, 48)},
            "lacks lora_B of 'model.layers.0.self_attn.q_proj'",
        ),
        (
            {PREFIX + "q_proj.lora_B.weight": torch.zeros(48, 8)},
            "lacks lora_A of 'model.layers.0.self_attn.q_proj'",
        ),
        (
            {PREFIX + "q_proj.lora_A.weight": torch.zeros(8, 48, dtype=torch.int8)},
            "has dtype torch.int8",
        ),
        (
            {PREFIX + "q_proj.lora_A.weight": torch.full((8, 48), float("inf"))},
            "q_proj.lora_A.weight' holds values that are no finite numbers",
        ),
        ({}, "holds no tensor"),
    ],
    ids=range(11),
)
def test_tensors_that_do_not_fit_are_named(
    load: Load, tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    write_files(tmp_path, tensors, r=8, target_modules=["q_proj"])
    with pytest.raises(AdapterLoadError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_files_that_are_missing_or_cut_short_are_named(
    load: Load, model_dir: Path, tmp_path: Path, name: str
) -> None:
    path = write_adapter(tmp_path, model_dir) / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(AdapterLoadError, match=f"{name}.* (truncated|cut short)"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(
        AdapterLoadError, match=f"{name} cannot be read: No such file or directory$"
    ):
        load(tmp_path)


def test_scaling() -> None:
    config = AdapterConfig(r=16, lora_alpha=32, target_modules="all-linear")
    assert config.scaling == 2.0
