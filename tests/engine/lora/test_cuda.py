"""Adapters on a GPU: the grouped product, and whole generations beside CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.llm import LLM, LoRARequest
from engine.lora.product import (
    LowRankAddition,
    LowRankPart,
    StepAdapters,
    groups_of,
    runs_of,
)
from tests.engine.lora.test_generation import (
    GREEDY,
    OPTIONS,
    PROMPTS,
    adapters,
    check_all_at_once,
    merged,
    model_dir,
)

pytestmark = pytest.mark.gpu
__all__ = ["adapters", "merged", "model_dir"]  # its fixtures serve here, too

RANKS = (8, 64, 16)


@pytest.mark.parametrize("num_tokens", [1, 7, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_equals_one_product_for_each_adapter(num_tokens: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    device, in_features = torch.device("cuda"), 200
    parts = []
    for start, stop in ((0, 130), (130, 150)):
        part = LowRankPart(slice(start, stop), in_features, 4, 64, dtype=dtype, device=device)
        for slot, rank in enumerate(RANKS):
            if slot != 1 or start == 0:
                down = torch.randn(rank, in_features) / in_features**0.5
                part.fill(slot, down.to(dtype), (torch.randn(stop - start, rank) / 8).to(dtype))
        parts.append(part)
    step = StepAdapters()
    add = LowRankAddition(parts, step)
    slots = np.random.default_rng(0).integers(-1, len(RANKS), num_tokens)
    x = torch.randn(num_tokens, in_features, dtype=dtype, device=device)
    out = torch.randn(num_tokens, 150, dtype=dtype, device=device)
    step.tokens = runs_of(slots, device)
    expected = add(out.clone(), x)
    step.tokens = groups_of(slots, 4, device)
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    torch.testing.assert_close(add(out.clone(), x), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("max_loras", [1, 3])
@pytest.mark.parametrize("enforce_eager", [False, True])
def test_equals_the_merged_weights_on_the_cpu(
    model_dir: Path,
    adapters: list[LoRARequest],
    merged: dict[str, Any],
    max_loras: int,
    enforce_eager: bool,
) -> None:
    options = {**OPTIONS, "device": "cuda", "dtype": "float32", "block_size": 16}
    llm = LLM(
        model_dir,
        enable_lora=True,
        max_loras=max_loras,
        max_lora_rank=64,
        enforce_eager=enforce_eager,
        **options,
    )
    check_all_at_once(llm, adapters, merged)
    assert [r.outputs[0].token_ids for r in llm.generate(PROMPTS, GREEDY)] == [
        r.outputs[0].token_ids for r in merged[""]
    ]
