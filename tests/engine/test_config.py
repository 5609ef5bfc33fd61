from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError


@pytest.mark.parametrize(("device_type", "tokens"), [("cuda", 8192), ("cpu", 2048)])
def test_a_step_takes_more_tokens_on_a_gpu(device_type: str, tokens: int) -> None:
    assert EngineConfig(model="m").for_device(device_type).step_tokens == tokens
    asked = EngineConfig(model="m", max_num_batched_tokens=100)
    assert asked.for_device(device_type).step_tokens == 100


def test_a_step_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least 1, got 0"):
        EngineConfig(model="m", max_num_batched_tokens=0)
