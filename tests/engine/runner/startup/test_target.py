from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from engine.attention.base import FP8
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.base import ModelConfig
from engine.runner.startup.target import resolve
from tests.engine.runner.tiny_llama import MAX_MODEL_LEN


def changed(config: EngineConfig, **changes: Any) -> EngineConfig:
    return msgspec.structs.replace(config, **changes)


def test_on_a_cpu_everything_is_float32_unless_asked_otherwise(tiny_config: EngineConfig) -> None:
    target = resolve(changed(tiny_config, device="cpu", dtype="auto"))
    assert target.device == torch.device("cpu")
    assert target.dtype == target.kv_dtype == torch.float32
    assert target.attention_shape.kv_dtype == torch.float32
    target = resolve(changed(tiny_config, device="cpu", dtype="bfloat16"))
    assert target.dtype == target.kv_dtype == torch.bfloat16


def test_an_fp8_cache_leaves_the_models_dtype_alone(tiny_config: EngineConfig) -> None:
    target = resolve(changed(tiny_config, device="cpu", kv_cache_dtype="fp8"))
    assert (target.dtype, target.kv_dtype) == (torch.float32, FP8)
    assert target.attention_shape.is_fp8


def test_the_length_asked_for_bounds_the_positions(tiny_config: EngineConfig) -> None:
    assert resolve(changed(tiny_config, max_model_len=None)).asked_len == MAX_MODEL_LEN
    target = resolve(changed(tiny_config, max_model_len=7))
    assert isinstance(target.facts, ModelConfig)
    assert (target.asked_len, target.facts.max_position_embeddings) == (7, 7)


def test_what_depends_on_the_device_is_filled_in(tiny_config: EngineConfig) -> None:
    target = resolve(changed(tiny_config, device="cpu", max_num_seqs=None))
    assert target.config.max_num_seqs == 256
    assert target.attention_shape.max_num_seqs == 256


def test_a_gpu_that_is_not_there_is_refused(
    tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        resolve(changed(tiny_config, device="cuda"))
    assert resolve(changed(tiny_config, device="auto")).device == torch.device("cpu")
