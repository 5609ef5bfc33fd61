from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.architectures import QuantizationMethod
from engine.errors import ConfigError, ModelLoadError
from engine.quant.awq import Awq
from engine.quant.compressed_tensors import PackQuantized
from engine.quant.config import read_quantization
from engine.quant.fp8 import Fp8
from engine.quant.fp8_blocks import Fp8Blocks
from engine.quant.gptq import Gptq
from tests.engine.quant.checkpoints import FP8_NUMBERS, INT4_NUMBERS, compressed

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
FP8 = {"quant_method": "fp8"}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
CHANNEL = {**FP8_NUMBERS, "strategy": "channel"}
BLOCKS = {**FP8_NUMBERS, "strategy": "block", "block_structure": [128, 128]}


def targeting(targets: list[str]) -> dict[str, Any]:
    document = compressed(CHANNEL, None)
    document["config_groups"]["group_0"]["targets"] = targets
    return document


def read(
    folder: Path, found: object, method: QuantizationMethod | None = None, *, nested: bool = False
) -> Any:
    document: dict[str, Any] = {} if found is None else {"quantization_config": found}
    if nested:
        document = {"text_config": document}
    (folder / "config.json").write_text(json.dumps(document))
    return read_quantization(folder, method)


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (AWQ, Awq),
        (GPTQ, Gptq),
        (FP8, Fp8),
        ({**FP8, "weight_block_size": [128, 128]}, Fp8Blocks),
        (compressed(BLOCKS, None), Fp8Blocks),
        (compressed(CHANNEL, None), Fp8),
        (compressed(INT4_NUMBERS, None), PackQuantized),
        (MODELOPT, Fp8),
    ],
)
def test_the_checkpoint_decides(found: dict[str, Any], kind: type, tmp_path: Path) -> None:
    assert type(read(tmp_path, found)) is kind
    assert type(read(tmp_path, found, found["quant_method"])) is kind
    assert type(read(tmp_path, found, nested=True)) is kind


def test_a_checkpoint_without_quantization(tmp_path: Path) -> None:
    assert read(tmp_path, None) is None
    assert isinstance(read(tmp_path, None, "fp8"), Fp8)
    with pytest.raises(ConfigError, match=r"'awq', but .* has no quantization_config"):
        read(tmp_path, None, "awq")


def test_an_option_that_contradicts_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is 'fp8', but the checkpoint's .* says 'awq'"):
        read(tmp_path, AWQ, "fp8")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"bits": 4}, "quant_method: not supported: None, only fp8, awq, gptq, compressed-tensors"),
        ({"quant_method": "bitsandbytes"}, "quant_method: not supported: 'bitsandbytes'"),
        ([4], "quant_method: not supported: None"),
        ({**AWQ, "bits": 8}, "bits: not supported: 8, only 4"),
        ({**AWQ, "version": "gemv"}, "version: not supported: 'gemv', only 'gemm'"),
        ({**AWQ, "zero_point": False}, "zero_point: not supported: False"),
        ({"quant_method": "awq", "bits": 4}, "missing required field `group_size`"),
        ({**GPTQ, "bits": 3}, "bits: not supported: 3, only 4"),
        ({**GPTQ, "dynamic": {"x": {}}}, "dynamic: not supported"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "Invalid enum value 'marlin'"),
        ({**FP8, "weight_block_size": [128]}, r"weight_block_size: must be two .* not \[128\]"),
        (
            {**FP8, "weight_block_size": [128, 128], "activation_scheme": "static"},
            "activation_scheme, with weight_block_size: not supported: 'static', only 'dynamic'",
        ),
        (compressed({**CHANNEL, "num_bits": 4}, None), "weights: num_bits: not supported: 4"),
        (compressed({**CHANNEL, "strategy": "group"}, None), "weights: strategy: .* 'group'"),
        (compressed({**CHANNEL, "strategy": "block"}, None), "block_structure: .* not None"),
        (compressed(BLOCKS, {**FP8_NUMBERS, "strategy": "token"}), "strategy: .* only 'group'"),
        (compressed({**INT4_NUMBERS, "num_bits": 8}, None), "weights: num_bits: .* 8, only 4"),
        (compressed(INT4_NUMBERS, FP8_NUMBERS), "input_activations: not supported"),
        (compressed(CHANNEL, {"num_bits": 8}), "input_activations: type: .* 'int', only 'float'"),
        ({**compressed(CHANNEL, None), "sparsity_config": {"a": 1}}, "sparsity_config: not"),
        ({**compressed(CHANNEL, None), "config_groups": {}}, "config_groups: empty"),
        (targeting(["Linear", "Embedding"]), "targets: not supported: 'Embedding', only 'Linear'"),
        ({**MODELOPT, "quant_algo": "NVFP4"}, "quant_algo: not supported: 'NVFP4', only 'FP8'"),
        ({"quant_method": "modelopt"}, "missing required field `quant_algo`"),
    ],
)
def test_what_is_not_supported_is_named(found: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=f"quantization_config: .*{message}"):
        read(tmp_path, found)


def test_layers_left_alone(tmp_path: Path) -> None:
    awq = read(tmp_path, {**AWQ, "modules_to_not_convert": ["mlp.gate", "re:.*o_proj$"]})
    assert awq.of("model.layers.0.mlp.gate_proj") is awq
    for name in ("lm_head", "model.layers.0.mlp.gate", "model.layers.0.self_attn.o_proj"):
        assert awq.of(name) is None
    assert read(tmp_path, {**GPTQ, "lm_head": True}).of("lm_head")


@pytest.mark.parametrize("algorithm", ["FP8", "fp8_per_channel_per_token"])
def test_a_file_of_its_own_may_tell(algorithm: str, tmp_path: Path) -> None:
    table = {"quant_algo": algorithm, "exclude_modules": ["lm_head", "*.layers.1*"]}
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": table}))
    found = read(tmp_path, None)
    assert isinstance(found, Fp8)
    assert not found.is_online
    assert found.of("model.layers.2.mlp.up_proj")
    for name in ("lm_head", "model.layers.1.mlp.up_proj", "model.layers.11.mlp.up_proj"):
        assert found.of(name) is None
    assert isinstance(read(tmp_path, None, "modelopt"), Fp8)
    with pytest.raises(ConfigError, match=r"is 'fp8', but .* says 'modelopt'"):
        read(tmp_path, None, "fp8")
    assert isinstance(read(tmp_path, AWQ), Awq), "config.json goes first"
    beside.write_text('{"quantization": 4}')
    with pytest.raises(ModelLoadError, match=r"hf_quant_config\.json: Expected `object`"):
        read(tmp_path, None)
    beside.write_text(json.dumps({"quantization": {**table, "quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ModelLoadError, match=r"config\.json: quantization: quant_algo: not supp"):
        read(tmp_path, None)


def test_groups_of_layers(tmp_path: Path) -> None:
    """A group that names a layer goes before one of all linear layers, wherever it stands."""
    document = compressed(INT4_NUMBERS, None)
    document["ignore"] = ["re:.*router"]
    groups = document["config_groups"]
    groups["group_1"] = {"targets": ["re:.*lm_head", "model.layers.1.mlp"], "weights": CHANNEL}
    found = read(tmp_path, document)
    assert isinstance(found.of("model.layers.0.mlp.up_proj"), PackQuantized)
    assert isinstance(found.of("lm_head"), Fp8)
    assert found.of("lm_head") is found.of("model.layers.1.mlp.up_proj")
    assert found.of("model.layers.0.router") is None
    assert found.skips("a.weight_shape", lambda name: False)
    assert found.skips("a.input_scale", lambda name: False)
    del groups["group_0"]
    found = read(tmp_path, document)
    assert isinstance(found.of("lm_head"), Fp8)
    assert found.of("model.layers.0.mlp.up_proj") is None
