"""Whole generations with adapters on a GPU, within CUDA graphs and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.llm import LLM, LoRARequest
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
