from __future__ import annotations

import pytest
import torch

from engine.attention import select
from engine.attention.torch_ref import TorchAttention
from engine.errors import ConfigError
from kernels import cpu

CPU = torch.device("cpu")


def test_float32_on_a_cpu_runs_our_kernel_where_it_can_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "available", lambda: True)
    assert select.select_backend(CPU, torch.float32, 16, 64).name == "cpu"
    monkeypatch.setattr(cpu, "available", lambda: False)
    assert select.select_backend(CPU, torch.float32, 16, 64).name == "torch"


def test_what_the_kernel_cannot_do_runs_on_torch() -> None:
    assert select.select_backend(CPU, torch.bfloat16, 16, 64).name == "torch"
    assert select.select_backend(CPU, torch.float32, 16, 512).name == "torch"


def test_a_block_size_the_backend_cannot_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchAttention, "block_size_multiple", 256)
    with pytest.raises(ConfigError, match="block_size must be a multiple of 256"):
        select.select_backend(CPU, torch.bfloat16, 16, 64)
