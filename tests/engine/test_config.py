from __future__ import annotations

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError


@pytest.mark.parametrize(("device_type", "tokens"), [("cuda", 8448), ("cpu", 2048)])
def test_a_step_takes_more_tokens_on_a_gpu(device_type: str, tokens: int) -> None:
    assert EngineConfig(model="m").for_device(device_type).step_tokens == tokens
    asked = EngineConfig(model="m", max_num_batched_tokens=100)
    assert asked.for_device(device_type).step_tokens == 100


@pytest.mark.parametrize(
    ("device_type", "gib", "num_seqs"),
    [("cuda", 140, 512), ("cuda", 64, 512), ("cuda", 63, 256), ("cpu", 0, 256), ("cpu", 500, 256)],
)
def test_more_requests_run_where_there_is_memory(device_type: str, gib: int, num_seqs: int) -> None:
    config = EngineConfig(model="m").for_device(device_type, gib * 2**30)
    assert config.max_num_seqs == config.num_seqs == num_seqs
    asked = EngineConfig(model="m", max_num_seqs=3)
    assert asked.for_device(device_type, gib * 2**30).num_seqs == asked.num_seqs == 3


@pytest.mark.parametrize(
    ("asked", "device_type", "overlaps"),
    [(None, "cuda", True), (None, "cpu", False), (False, "cuda", False), (True, "cpu", True)],
)
def test_steps_overlap_on_a_gpu_unless_the_config_says_otherwise(
    asked: bool | None, device_type: str, overlaps: bool
) -> None:
    config = EngineConfig(model="m", async_scheduling=asked)
    assert config.for_device(device_type).async_scheduling is overlaps


def test_no_request_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs must be at least 1, got 0"):
        EngineConfig(model="m", max_num_seqs=0)


def test_a_step_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens must be at least 1, got 0"):
        EngineConfig(model="m", max_num_batched_tokens=0)
