"""What planning costs: ``python -m engine.bench.scheduler``.

Times ``schedule`` + ``update`` per step with a full batch and a long queue, without any model. The
goal is at most 1 ms at 256 running and 10,000 waiting requests. And the ``schedule`` that admits a
burst of requests of many tenants, all in one step, which an idle engine's first tokens wait for.
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, get_args

from engine.cache.manager import CacheManager
from engine.config import EngineConfig, Policy
from engine.garbage import tune_collector
from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepResult
from engine.scheduler.policy import create_policy
from engine.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_MODEL_LEN = 2048
_MAX_PROMPT_TOKENS = 160
_NUM_TENANTS = 50


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one step, in microseconds of CPU time: other load on the machine does not count."""

    policy: str
    bound: str
    """What the batch is full of: ``rows`` or ``blocks``."""
    overlap: bool
    mean_us: float
    p50_us: float
    p99_us: float
    tokens_per_step: float

    def __str__(self) -> str:
        return (
            f"{self.policy:<10}  {self.bound:<6}  {'yes' if self.overlap else 'no':<7}"
            f"  {self.mean_us:8.0f}  {self.p50_us:8.0f}  {self.p99_us:8.0f}"
            f"  {self.tokens_per_step:11.0f}"
        )


@dataclass(frozen=True, slots=True)
class Burst:
    """Of the step that admits a whole burst, in microseconds of CPU time."""

    policy: str
    p50_us: float
    p99_us: float
    us_per_request: float

    def __str__(self) -> str:
        return (
            f"{self.policy:<10}  {self.p50_us:8.0f}  {self.p99_us:8.0f}"
            f"  {self.us_per_request:10.1f}"
        )


class Load:
    """A scheduler with a full batch, a queue that never gets shorter, and no model."""

    def __init__(
        self,
        policy: Policy,
        bound: str,
        num_running: int,
        num_waiting: int,
        *,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        # So many slots does a request have at a time, on average.
        num_slots = num_running * (_MAX_MODEL_LEN if bound == "rows" else 340)
        config = EngineConfig(
            model="none",
            max_num_seqs=num_running if bound == "rows" else 2 * num_running,
            max_num_batched_tokens=max_num_batched_tokens,
            policy=policy,
        )
        cache = CacheManager(num_slots // config.block_size, config.block_size)
        self.scheduler = Scheduler(
            config,
            cache,
            create_policy(
                config,
                lambda r: cache.num_matching_tokens(r.block_table, r.token_ids),
                cache.pool.num_blocks,
            ),
        )
        self._num_made = 0
        for _ in range(num_running + num_waiting):
            self.add()

    def add(self) -> None:
        """A request unlike all others: 100 to 160 tokens in, 200 to 600 out."""
        number = self._num_made
        self._num_made += 1
        message = GenerateRequest(
            request_id=str(number),
            prompt_token_ids=[(number * i) % 32_000 for i in range(100 + number % 61)],
            params=SamplingParams(max_tokens=200 + (7 * number) % 401),
            fair_key=f"tenant {number % _NUM_TENANTS}",
            priority=number % 3,
        )
        request = Request(
            message,
            arrival=number,
            arrival_s=number / 1000,
            max_total_tokens=len(message.prompt_token_ids) + (message.params.max_tokens or 0),
            eos_token_ids=frozenset({0}),
        )
        self.scheduler.register(request)
        self.scheduler.add(request)

    def time_step(self, results: list[StepResult], *, overlap: bool) -> float:
        """CPU seconds for planning a step and taking in one; ``results`` are those in flight."""
        started = time.thread_time()
        step = self.scheduler.schedule()
        spent = time.thread_time() - started
        assert step is not None
        token_ids = [[1] if chunk.samples else [] for chunk in step.plan.chunks]
        results.append(StepResult(step.plan.step_id, token_ids))
        if overlap and len(results) == 1:
            return spent
        started = time.thread_time()
        new_tokens = self.scheduler.update(results.pop(0))
        spent += time.thread_time() - started
        for request, _ in new_tokens:
            if request.finished:
                self.add()
        return spent


def measure(
    policy: Policy, bound: str, *, overlap: bool, num_running: int, num_waiting: int, num_steps: int
) -> Timing:
    load = Load(policy, bound, num_running, num_waiting)
    results: list[StepResult] = []
    for _ in range(num_steps // 5):  # Until the batch is full and mixed.
        load.time_step(results, overlap=overlap)
    thresholds = gc.get_threshold()
    tune_collector()  # As the engine's process does.
    before = load.scheduler.stats.scheduled_tokens
    times = sorted(load.time_step(results, overlap=overlap) for _ in range(num_steps))
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    return Timing(
        policy,
        bound,
        overlap,
        mean_us=1e6 * sum(times) / num_steps,
        p50_us=1e6 * times[num_steps // 2],
        p99_us=1e6 * times[int(num_steps * 0.99)],
        tokens_per_step=(load.scheduler.stats.scheduled_tokens - before) / num_steps,
    )


def measure_burst(policy: Policy, *, num_requests: int, num_bursts: int) -> Burst:
    load = Load(
        policy, "rows", num_requests, 0, max_num_batched_tokens=num_requests * _MAX_PROMPT_TOKENS
    )
    scheduler, times = load.scheduler, []
    thresholds = gc.get_threshold()
    tune_collector()
    for _ in range(num_bursts):
        started = time.thread_time()
        step = scheduler.schedule()
        times.append(time.thread_time() - started)
        assert step is not None
        assert len(step.plan.admissions) == num_requests
        for request in list(scheduler.running.values()):
            scheduler.finish(request, "abort")
        scheduler.update(StepResult(step.plan.step_id, [[1] for _ in step.plan.chunks]))
        for _ in range(num_requests):
            load.add()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    times.sort()
    middle = 1e6 * times[num_bursts // 2]
    return Burst(
        policy,
        p50_us=middle,
        p99_us=1e6 * times[int(num_bursts * 0.99)],
        us_per_request=middle / num_requests,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m engine.bench.scheduler",
        description="Times schedule + update per step, and bursts.",
    )
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--burst", type=int, default=250, help="requests admitted in one step")
    parser.add_argument("--bursts", type=int, default=100)
    options = parser.parse_args(argv)
    print(f"{options.running} running, {options.waiting} waiting, {options.steps} steps")
    print("policy      bound   overlap   mean us    p50 us    p99 us  tokens/step")
    for policy, bound, overlap in product(get_args(Policy), ("rows", "blocks"), (False, True)):
        print(
            measure(
                policy,
                bound,
                overlap=overlap,
                num_running=options.running,
                num_waiting=options.waiting,
                num_steps=options.steps,
            )
        )
    print(f"{options.bursts} bursts of {options.burst}")
    print("policy        p50 us    p99 us  us/request")
    for policy in get_args(Policy):
        print(measure_burst(policy, num_requests=options.burst, num_bursts=options.bursts))


if __name__ == "__main__":
    main()
