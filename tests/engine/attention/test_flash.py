from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest
import torch

from engine.attention.base import AttentionShape
from engine.attention.flash import FlashAttention

GPU = torch.device("cuda")
SHAPE = AttentionShape(torch.bfloat16, 8, 4, 64, 256, max_num_seqs=4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": torch.float32}, "not torch.float32"),
        ({"kv_dtype": torch.float8_e4m3fn}, "KV cache has the model's dtype"),
        ({"head_dim": 264}, "up to 256"),
        ({"head_dim": 60}, "in steps of 8, not 60"),
        ({}, "the package flash-attn is not installed"),
    ],
)
def test_the_reason_is_named(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    shape = dataclasses.replace(SHAPE, **change)
    assert reason in str(FlashAttention.refusal(GPU, shape))


def test_an_older_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert "8.0" in str(FlashAttention.refusal(GPU, SHAPE))
