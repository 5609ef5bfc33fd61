"""A device that takes as long for a step as an H200 with a model of 8B parameters in 16 bits."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from engine.bench.overload import ModelledRunner
from engine.scheduler.plan import StepResult

if TYPE_CHECKING:
    from engine.scheduler.plan import StepPlan

# Measured (PERFORMANCE.md): milliseconds of the GEMMs, by the tokens of a step.
_GEMMS = [1, 64, 128, 256, 512, 1024, 2048, 8192], [3.9, 4.0, 4.4, 6.0, 11.0, 21, 41, 166]
_NORMS_MS = 1.5e-3
"""And rotation and gating, a token."""
_KEYS_MS = 3.1e-5
"""To read a token's keys and values in all layers."""
_PREFILL_MS = 0.5e-3
"""Attention of a prompt's token to the few hundred before it."""
_HOST_S, _HOST_PROMPTS_S = 0.0004, 0.008
"""To launch a step; one with prompts."""


class H200(ModelledRunner):
    """Runs beside the host: a step begins when it is launched and the one before it is over."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._free_at = 0.0
        self._ends: deque[float] = deque()

    def forward(self, plan: StepPlan) -> None:
        decodes = [c for c in plan.chunks if c.num_scheduled_tokens == 1]
        num_prompt_tokens = plan.num_tokens - len(decodes)
        ms = float(np.interp(plan.num_tokens, *_GEMMS))
        ms += 0.5 + _NORMS_MS * plan.num_tokens + _PREFILL_MS * num_prompt_tokens
        ms += _KEYS_MS * sum(c.num_computed_tokens for c in decodes)
        self.now += _HOST_PROMPTS_S if num_prompt_tokens else _HOST_S
        self._free_at = max(self.now, self._free_at) + ms / 1000
        self._ends.append(self._free_at)
        tokens = [[7] if chunk.samples else [] for chunk in plan.chunks]
        self._results.append(StepResult(plan.step_id, tokens))

    def collect(self) -> StepResult:
        self.now = max(self.now, self._ends.popleft())
        return super().collect()
