"""How many operations of torch a step with many prompts takes, without a draft network and with one
that rests: the host of a small model is busy with nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.core import EngineCore
from engine.demo import MODEL_DIR
from engine.demo.heads import HEADS_DIR
from engine.llm import LLM, SamplingParams, TokensPrompt
from engine.runner.block_copies import BlockCopies
from engine.runner.drafts import features
from engine.scheduler.plan import StepPlan
from kernels import cuda

NUM_PROMPTS = 32


class Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return operation(*args, **(kwargs or {}))


def num_operations(**speculative: Any) -> int:
    """Of a step with prompts that each take over a half-filled block."""
    config: dict[str, Any] = {"speculative_config": speculative} if speculative else {}
    llm = LLM(MODEL_DIR, device="cpu", num_threads=1, kv_cache_memory_bytes=64 << 20, **config)
    prompts = [
        TokensPrompt(prompt_token_ids=[*range(100, 124), *[200 + i] * (10 + i % 5)])
        for i in range(NUM_PROMPTS)
    ]
    params = SamplingParams(max_tokens=2, temperature=0.0)
    llm.generate(prompts[:1], params)
    assert isinstance(llm._core, EngineCore)
    runner = llm._core._runner
    forward = runner.forward
    counted: list[int] = []

    def counting(plan: StepPlan) -> None:
        with Counter() as counter:
            forward(plan)
        if plan.admissions:
            assert len(plan.block_copies) == NUM_PROMPTS
            counted.append(counter.count)

    runner.forward = counting  # type: ignore[method-assign]
    llm.generate(prompts, params)
    (number,) = counted
    return number


def test_a_head_at_rest_adds_hardly_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where features are made at once, and all copies are one launch."""
    launches: list[int] = []

    def launch(places: torch.Tensor, copies: torch.Tensor, *, block_size: int) -> None:
        launches.append(len(copies))

    monkeypatch.setattr(features, "keeps_aux", lambda network, device: False)
    monkeypatch.setattr(BlockCopies, "serves", staticmethod(lambda stacks: True))
    monkeypatch.setattr(cuda, "load", lambda: None)
    monkeypatch.setattr(cuda.native, "copy_leading_slots", launch, raising=False)
    plain = num_operations()
    resting = num_operations(
        method="eagle3",
        model=str(HEADS_DIR / "eagle3"),
        num_speculative_tokens=3,
        rejection_sample_method="synthetic",
        synthetic_acceptance_length=1.0,
    )
    assert launches == [NUM_PROMPTS] * 2
    assert resting <= plain + 8
