"""Clients that ask again whenever they are answered, on a device as fast as an H200 with a model of
8B parameters: what ``target_gap_ms`` does to streams, first tokens and throughput."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import pytest

from engine.bench.h200 import H200
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from tests.engine.scheduler.harness import config

GAP_MS = 50.0
LATENCY_S = 0.004
"""From the end of an answer to the arrival of the client's next request."""


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


def serve(num_clients: int, num_requests: int, gap_ms: float | None) -> Served:
    """512 tokens in, 256 out; ``gap_ms`` is ``target_gap_ms``."""
    device = H200(56_000)
    core = EngineCore(
        config(
            max_num_seqs=512,
            max_num_batched_tokens=8192,
            target_gap_ms=gap_ms,
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


def test_64_streams_have_the_gaps_asked_for_and_lose_nothing() -> None:
    limited, unlimited = (serve(64, 192, which) for which in (GAP_MS, None))
    assert max(unlimited.gaps_s) > 0.15
    assert max(limited.gaps_s) < 1.04 * GAP_MS / 1000
    assert limited.later_ttft_s < 0.5 * unlimited.later_ttft_s
    assert limited.tokens_per_s > unlimited.tokens_per_s


@pytest.mark.nightly
def test_256_streams_have_the_gaps_asked_for_and_lose_little() -> None:
    limited, unlimited = (serve(256, 512, which) for which in (GAP_MS, None))
    assert max(unlimited.gaps_s) > 0.15
    assert max(limited.gaps_s) < 1.04 * GAP_MS / 1000
    assert limited.later_ttft_s < unlimited.later_ttft_s
    assert limited.tokens_per_s > 0.98 * unlimited.tokens_per_s
