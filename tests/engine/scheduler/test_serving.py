"""Clients that ask again whenever they are answered, on a device as fast as an H200 with a model of
8B parameters: what ``max_num_prefill_tokens`` does to streams, first tokens and throughput."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from engine.bench.overload import ModelledRunner
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from tests.engine.scheduler.harness import config

LIMIT = 1024
LATENCY_S = 0.004
"""From the end of an answer to the arrival of the client's next request."""
# Measured (PERFORMANCE.md): milliseconds of the matrix products, by the tokens of a step.
PRODUCTS = [1, 64, 128, 256, 512, 1024, 2048, 8192], [3.9, 4.0, 4.4, 6.0, 11.0, 21, 41, 166]
NORMS_MS = 1.5e-3
"""And rotation and gating, a token."""
KEYS_MS = 3.1e-5
"""To read a token's keys and values in all layers."""
PREFILL_MS = 0.5e-3
"""Attention of a prompt's token to the few hundred before it."""
HOST_S, HOST_PROMPTS_S = 0.0004, 0.008
"""To launch a step; one with prompts."""


class Device(ModelledRunner):
    """Runs beside the host: a step begins when it is launched and the one before it is over."""

    def __init__(self) -> None:
        super().__init__(56_000)
        self._free_at = 0.0
        self._ends: deque[float] = deque()

    def forward(self, plan: StepPlan) -> None:
        decodes = [c for c in plan.chunks if c.num_scheduled_tokens == 1]
        num_prompt_tokens = plan.num_tokens - len(decodes)
        ms = float(np.interp(plan.num_tokens, *PRODUCTS))
        ms += 0.5 + NORMS_MS * plan.num_tokens + PREFILL_MS * num_prompt_tokens
        ms += KEYS_MS * sum(c.num_computed_tokens for c in decodes)
        self.now += HOST_PROMPTS_S if num_prompt_tokens else HOST_S
        self._free_at = max(self.now, self._free_at) + ms / 1000
        self._ends.append(self._free_at)
        tokens = [[7] if chunk.samples else [] for chunk in plan.chunks]
        self._results.append(StepResult(plan.step_id, tokens))

    def collect(self) -> StepResult:
        self.now = max(self.now, self._ends.popleft())
        return super().collect()


@dataclass
class Served:
    num_clients: int
    seconds: float = 0.0
    num_tokens: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def later_ttft_s(self) -> float:
        """The median of all but the first requests, which come at once."""
        return median(self.ttfts_s[self.num_clients :])


def serve(num_clients: int, num_requests: int, limit: int | None) -> Served:
    """512 tokens in, 256 out; ``limit`` is ``max_num_prefill_tokens``."""
    device = Device()
    core = EngineCore(
        config(
            max_num_seqs=512,
            max_num_batched_tokens=8192,
            max_num_prefill_tokens=limit,
            async_scheduling=True,
        ),
        device,
        max_model_len=4096,
        clock=lambda: device.now,
    )
    served = Served(num_clients)
    sent: dict[str, float] = {}
    times: dict[str, list[float]] = {}
    arrivals = deque([(LATENCY_S, str(number)) for number in range(num_clients)])
    while arrivals or core.has_unfinished:
        if not core.has_unfinished:
            device.now = max(device.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= device.now:
            arrived_s, name = arrivals.popleft()
            sent[name], times[name] = arrived_s, []
            prompt = [(int(name) * 31 + i * i) % 997 for i in range(512)]
            params = SamplingParams(max_tokens=256, ignore_eos=True)
            core.add_request(
                GenerateRequest(request_id=name, prompt_token_ids=prompt, params=params)
            )
        for output in core.step():
            times[output.request_id].append(device.now)
            served.num_tokens += len(output.new_token_ids)
            if output.finish_reason is not None and len(sent) + len(arrivals) < num_requests:
                arrivals.append((device.now + LATENCY_S, str(len(sent) + len(arrivals))))
    served.seconds = device.now
    for name, tokens in times.items():
        served.ttfts_s.append(tokens[0] - sent[name])
        served.gaps_s += [b - a for a, b in pairwise(tokens)]
    return served


def test_64_streams_flow_evenly_and_lose_nothing() -> None:
    limited, unlimited = (serve(64, 192, which) for which in (LIMIT, None))
    assert max(unlimited.gaps_s) > 0.15
    assert max(limited.gaps_s) < 0.016
    assert limited.later_ttft_s < 0.5 * unlimited.later_ttft_s
    assert limited.tokens_per_s > unlimited.tokens_per_s


@pytest.mark.nightly
def test_256_streams_flow_evenly_and_lose_little() -> None:
    limited, unlimited = (serve(256, 512, which) for which in (LIMIT, None))
    assert max(unlimited.gaps_s) > 0.15
    assert max(limited.gaps_s) < 0.035
    assert limited.later_ttft_s < unlimited.later_ttft_s
    assert limited.tokens_per_s > 0.98 * unlimited.tokens_per_s
