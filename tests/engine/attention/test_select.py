from __future__ import annotations

import pytest
import torch

from engine.attention import select
from engine.attention.torch_ref import TorchAttention
from engine.errors import ConfigError

CPU = torch.device("cpu")


def test_a_cpu_runs_torch() -> None:
    assert select.select_backend(CPU, torch.float32, 16).name == "torch"


def test_a_block_size_the_backend_cannot_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchAttention, "block_size_multiple", 256)
    with pytest.raises(ConfigError, match="block_size must be a multiple of 256"):
        select.select_backend(CPU, torch.float32, 16)
