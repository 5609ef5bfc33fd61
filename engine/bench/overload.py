"""``python -m engine.bench.overload``: measures how much work an overload causes to be done twice.

Runs the real core, scheduler and cache with about three times the work that the engine can serve,
on a simulated device with modelled times. The goal is less than 5 % recomputed tokens. It also runs
without the forecast and the watermark, to show how many preemptions these prevent.
"""

from __future__ import annotations

import argparse
import random
from collections import deque
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, get_args

from engine.cache.groups import FullAttention
from engine.config import EngineConfig, Policy
from engine.core import EngineCore
from engine.messages import GenerateRequest, Stats
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult, TokenMask
from engine.vision import Vision

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_S = 0.010
TOKEN_S = 0.0002
SWAP_S_PER_BLOCK = 0.0001
"""Modelled seconds for a step, for each of its tokens, and for each block that is copied."""

_MAX_MODEL_LEN = 1024
_BLOCK_SIZE = 16


class ModelledRunner:
    """A runner that samples the same token forever. ``now`` advances by a fixed time for each
    step, token and copy."""

    vocab_size = 1000

    def __init__(
        self,
        num_blocks: int,
        *,
        num_swap_blocks: int = 0,
        swap_s_per_block: float = 0.0,
        vision: Vision | None = None,
    ) -> None:
        """vision: of a model that sees, which encodes an image token in the time of a token."""
        self.num_blocks = num_blocks
        self.num_swap_blocks = num_swap_blocks
        self.swap_s_per_block = swap_s_per_block
        self.num_lookahead_tokens = 0
        self.pooling = None
        self.vision = vision
        self.layer_groups = (FullAttention(),)
        self.step_costs = None
        self.now = 0.0
        self._results: deque[StepResult] = deque()

    def forward(self, plan: StepPlan) -> None:
        num_copies = len(plan.swap_outs) + len(plan.swap_ins)
        num_tokens = plan.num_tokens
        if self.vision is not None:
            pixels = sum(one.height * one.width for one in plan.encodings)
            num_tokens += pixels // self.vision.side**2
        self.now += STEP_S + TOKEN_S * num_tokens + self.swap_s_per_block * num_copies
        tokens = [[7] if chunk.samples else [] for chunk in plan.chunks]
        self._results.append(StepResult(plan.step_id, tokens))

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        raise AssertionError("no draft network was asked for")

    def sample(self, mask: TokenMask | None) -> ModelledRunner:
        assert mask is None
        return self

    def collect(self) -> StepResult:
        return self._results.popleft()


def trace(seed: int, num_requests: int) -> list[tuple[float, GenerateRequest]]:
    """Requests of all sizes from six tenants, and the times of their arrival: a Poisson process
    that is too fast for the engine."""
    rng = random.Random(seed)
    time_s, arrivals = 0.0, []
    for number in range(num_requests):
        time_s += rng.expovariate(40)
        tenant = f"tenant {rng.randrange(6)}"
        num_prompt_tokens = 1 + int(min(400, rng.lognormvariate(4, 1)))
        request = GenerateRequest(
            request_id=str(number),
            prompt_token_ids=[(number * 31 + i * i) % 997 for i in range(num_prompt_tokens)],
            params=SamplingParams(max_tokens=1 + int(min(400, rng.lognormvariate(4.5, 0.8)))),
            fair_key=tenant,
            priority=rng.choice([0, 0, 1]),
        )
        arrivals.append((time_s, request))
    return arrivals


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a trace."""

    seconds: float
    """Modelled seconds until the last request ended."""
    stats: Stats

    @property
    def recomputed_share(self) -> float:
        return self.stats.recomputed_tokens / self.stats.scheduled_tokens


def run(
    policy: Policy,
    *,
    swap: bool = False,
    careful: bool = True,
    caching: bool = True,
    seed: int = 1,
    num_requests: int = 400,
) -> Report:
    """``careful``: with forecast and watermark, as by default."""
    runner = ModelledRunner(
        256, num_swap_blocks=512 if swap else 0, swap_s_per_block=SWAP_S_PER_BLOCK
    )
    config = EngineConfig(
        model="modelled",
        block_size=_BLOCK_SIZE,
        max_num_seqs=64,
        max_num_batched_tokens=512,
        policy=policy,
        async_scheduling=True,
        enable_prefix_caching=caching,
        forecast_admission=careful,
        watermark=0.01 if careful else 0.0,
    )
    core = EngineCore(config, runner, max_model_len=_MAX_MODEL_LEN, clock=lambda: runner.now)
    arrivals = deque(trace(seed, num_requests))
    while arrivals or core.has_unfinished:
        if not core.has_unfinished:
            runner.now = max(runner.now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= runner.now:
            core.add_request(arrivals.popleft()[1])
        for output in core.step():
            assert output.error is None, output.error
    core.check_integrity()
    return Report(runner.now, core.stats())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m engine.bench.overload", description="Runs an overload on a modelled device."
    )
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    print(f"{options.requests} requests, seed {options.seed}")
    print("policy      careful  swap  preempted  recomputed  swapped out       s")
    for policy, careful, swap in product(get_args(Policy), (True, False), (False, True)):
        report = run(
            policy,
            swap=swap,
            careful=careful,
            seed=options.seed,
            num_requests=options.requests,
        )
        stats = report.stats
        print(
            f"{policy:<10}  {'yes' if careful else 'no':<7}  {'yes' if swap else 'no':<4}"
            f"  {stats.num_preemptions:9}  {report.recomputed_share:10.1%}"
            f"  {stats.swapped_out_blocks:11}  {report.seconds:6.1f}"
        )


if __name__ == "__main__":
    main()
