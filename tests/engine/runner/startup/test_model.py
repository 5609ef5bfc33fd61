"""Which implementation serves a model, and what of it is refused before a weight is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.messages import LoadProgress
from engine.models.base import Model, ModelConfig
from engine.models.llama import ForCausalLM
from engine.models.transformers_fallback import FallbackConfig
from engine.models.transformers_model import TransformersModel
from engine.runner.startup.model import load_model, read_facts
from tests.engine.models.families import FALLBACK_CASES, write
from tests.engine.runner.tiny_llama import save_tiny_llama

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def olmo2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (case,) = (case for case in FALLBACK_CASES if case.name == "olmo2")
    return write(case, tmp_path_factory.mktemp("olmo2"))


def config(folder: Path, **options: Any) -> EngineConfig:
    return EngineConfig(model=str(folder), device="cpu", **options)


def load(asked: EngineConfig) -> tuple[Model, list[LoadProgress]]:
    heard: list[LoadProgress] = []
    model = load_model(
        asked,
        read_facts(asked),
        max_model_len=64,
        dtype=torch.float32,
        device=CPU,
        report=heard.append,
    )
    return model, heard


def test_a_family_with_a_file_here_is_served_by_it(llama: Path) -> None:
    facts = read_facts(config(llama))
    assert isinstance(facts, ModelConfig)
    model, heard = load(config(llama))
    assert isinstance(model, ForCausalLM)
    shares = [progress.fraction for progress in heard]
    assert shares == sorted(shares)
    assert 0.05 <= shares[0] <= shares[-1] <= 0.9


def test_others_are_served_by_transformers(olmo2: Path) -> None:
    facts = read_facts(config(olmo2))
    assert isinstance(facts, FallbackConfig)
    model, _ = load(config(olmo2))
    assert isinstance(model, TransformersModel)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_others_are_refused_with_quantized_weights(
    load_format: str, olmo2: Path, tmp_path: Path
) -> None:
    """Also where the weights' own file tells of it, and config.json does not."""
    folder = shutil.copytree(olmo2, tmp_path / "quantized")
    table = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(table))
    with pytest.raises(ModelLoadError, match=r"Olmo2ForCausalLM .* quantized weights cannot run"):
        load(config(folder, load_format=load_format))


def test_transformers_serves_a_native_family_when_asked(llama: Path) -> None:
    assert isinstance(read_facts(config(llama, model_impl="transformers")), FallbackConfig)


def test_what_has_no_file_here_is_refused_as_native(olmo2: Path) -> None:
    with pytest.raises(ModelLoadError, match="Olmo2ForCausalLM"):
        read_facts(config(olmo2, model_impl="native"))


def test_adapters_need_a_native_model(olmo2: Path) -> None:
    with pytest.raises(ConfigError, match="enable_lora needs a native model, and Olmo2ForCausalLM"):
        read_facts(config(olmo2, enable_lora=True))


def test_weights_are_the_checkpoints_or_drawn_by_seed(llama: Path) -> None:
    def norm(**options: Any) -> torch.Tensor:
        model, _ = load(config(llama, **options))
        assert isinstance(model, ForCausalLM)
        return model.model.embed_tokens.weight.data

    stored, drawn = norm(), norm(load_format="dummy", seed=1)
    assert not torch.equal(stored, drawn)
    assert torch.equal(drawn, norm(load_format="dummy", seed=1))
    assert not torch.equal(drawn, norm(load_format="dummy", seed=2))


def test_nothing_is_built_for_a_quantization_that_nobody_knows(llama: Path, tmp_path: Path) -> None:
    fields = json.loads((llama / "config.json").read_text())
    fields["quantization_config"] = {"quant_method": "magic"}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(ModelLoadError, match="quant_method: not supported: 'magic'"):
        load(config(tmp_path))
