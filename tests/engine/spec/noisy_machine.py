"""A host and a device that answer requests in virtual time, where others use the host, too.

What a clock shows is noisy: every piece of work takes more or less time, some takes far longer, and
for a while all takes longer. The score is not: it goes by what the same work takes on average.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.bench.overload import ModelledRunner
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer
from tests.engine.spec.simulation import BATCHES


@dataclass(frozen=True)
class Machine:
    """Milliseconds."""

    step: Callable[[int, int], float]
    """Of the device, by requests and drafts of each."""
    draft: Callable[[int], float]
    """Of the device, for one draft of each request."""
    plan: float
    """Of the host, in a step; and for each request."""
    plan_request: float
    prompts: float
    """Of the host, in a step with prompts; and for each of these."""
    prompt: float
    catch_up: float
    """Of the host, before drafts for requests that had none yet; and for each of these."""
    catch_up_request: float
    overlap: bool
    launch_drafts: float = 0.0
    """Of the host, in a step with drafts."""
    first: float = 0.0
    """Of the host, whenever something runs for the first time with about so many requests."""
    cold: float = 0.0
    """Of the host, before drafts when none were made for a fifth of a second."""
    num_unlucky: int = 0
    """So many of the first drafts of a request in a step are wrong: the first texts are hard."""
    spread: float = 0.15
    slow: float = 0.8
    """How much slower everything may be for a while."""
    slow_ms: float = 50.0
    spike_chance: float = 0.005

    def table(self, num_drafts: int) -> StepCosts:
        """What an engine measures when it starts."""
        lengths = range(num_drafts + 1)
        seconds = [
            [(self.step(batch, n) + n * self.draft(batch)) / 1000 for batch in BATCHES]
            for n in lengths
        ]
        return StepCosts(BATCHES, lengths, seconds, is_padded=self.overlap)


class NoisyRunner(ModelledRunner):
    step_costs: StepCosts | None  # type: ignore[assignment]

    def __init__(self, machine: Machine, costs: StepCosts | None, rate: float, seed: int) -> None:
        super().__init__(4096)
        self.step_costs = costs
        self.mean_s = 0.0
        """What the clock would show without noise."""
        self._machine = machine
        self._rate = rate
        self._luck, self._noise = random.Random(seed), random.Random(seed + 1)
        self._slowdown = 1.0
        self._slow_until = 0.0
        self._idle_at = self._mean_idle_at = 0.0
        self._done_at: deque[tuple[float, float]] = deque()
        self._caught_up: set[int] = set()
        self._done_before: set[tuple[int, int]] = set()
        self._num_unlucky = machine.num_unlucky
        self._drafted_s = 0.0

    def clock(self) -> float:
        return self.now

    def _noisy(self, seconds: float) -> float:
        noise, machine = self._noise, self._machine
        if self.now >= self._slow_until:
            is_slow = noise.random() < 0.5
            self._slowdown = 1.0 + is_slow * machine.slow * noise.random()
            self._slow_until = self.now + noise.expovariate(1000 / machine.slow_ms)
        seconds *= self._slowdown * noise.lognormvariate(0, machine.spread)
        return 5 * seconds if noise.random() < machine.spike_chance else seconds

    def host(self, ms: float) -> None:
        self.now += self._noisy(ms / 1000)
        self.mean_s += ms / 1000

    def _device(self, ms: float) -> None:
        self._idle_at = max(self.now, self._idle_at) + self._noisy(ms / 1000)
        self._mean_idle_at = max(self.mean_s, self._mean_idle_at) + ms / 1000

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        rows = {row for row, _ in asked}
        if behind := rows - self._caught_up:
            self.host(self._machine.catch_up + len(behind) * self._machine.catch_up_request)
            self._caught_up |= rows
        if self.now - self._drafted_s > 0.2:
            self.host(self._machine.cold)
        self._drafted_s = self.now
        self.host(self._machine.launch_drafts)
        self._begin(len(asked), -num_tokens)
        self._device(num_tokens * self._machine.draft(len(asked)))
        return [[1] * num_tokens for _ in asked]

    def forward(self, plan: StepPlan) -> None:
        machine, chunks = self._machine, plan.chunks
        self.host(machine.plan + len(chunks) * machine.plan_request)
        if plan.admissions:
            self.host(machine.prompts + len(plan.admissions) * machine.prompt)
            self._caught_up -= {admission.row for admission in plan.admissions}
        longest = max(chunk.num_draft_tokens for chunk in chunks)
        self._begin(len(chunks), longest)
        self._device(machine.step(len(chunks), longest))
        self._done_at.append((self._idle_at, self._mean_idle_at))
        tokens = [[1] * self._num_sampled(c.num_draft_tokens) if c.samples else [] for c in chunks]
        self._results.append(StepResult(plan.step_id, tokens))

    def _begin(self, batch: int, what: int) -> None:
        kind = batch.bit_length(), what
        if kind not in self._done_before:
            self._done_before.add(kind)
            self.host(self._machine.first)

    def _num_sampled(self, num_drafts: int) -> int:
        if num_drafts and self._num_unlucky:
            self._num_unlucky -= 1
            return 1
        count = 1
        while count <= num_drafts and self._luck.random() < self._rate:
            count += 1
        return count

    def collect(self) -> StepResult:
        done_at, mean_done_at = self._done_at.popleft()
        self.now, self.mean_s = max(self.now, done_at), max(self.mean_s, mean_done_at)
        return super().collect()


class Engine:
    """Answers what comes in turns, as a benchmark or a few users do."""

    def __init__(
        self, machine: Machine, batch: int, rate: float, num_drafts: int, *, adaptive: bool
    ) -> None:
        """num_drafts: 0 for plain decoding."""
        self._batch = batch
        costs = machine.table(num_drafts) if adaptive else None
        self.runner = NoisyRunner(machine, costs, rate, seed=2 * num_drafts + adaptive)
        speculative = SpeculativeConfig(method="ngram", num_speculative_tokens=max(1, num_drafts))
        self.core = EngineCore(
            EngineConfig(
                model="toy",
                max_num_seqs=batch,
                enable_prefix_caching=False,
                async_scheduling=machine.overlap,
                speculative_config=speculative if num_drafts else None,
            ),
            self.runner,
            max_model_len=100_000,
            proposer=NetworkProposer(self.runner) if num_drafts else None,
            clock=self.runner.clock,
        )
        self._num_come = 0

    def serve(self, lengths: Sequence[int]) -> None:
        """Answers of these lengths; as many at a time as there is room for."""
        for first in range(0, len(lengths), self._batch):
            for length in lengths[first : first + self._batch]:
                self._num_come += 1
                self.core.add_request(
                    GenerateRequest(
                        request_id=str(self._num_come),
                        prompt_token_ids=[2] * 30,
                        params=SamplingParams(max_tokens=length, ignore_eos=True),
                    )
                )
            while self.core.has_unfinished:
                self.core.step()


def speed_ups(
    machine: Machine, batch: int, rate: float, num_drafts: int, mean_tokens: int
) -> tuple[float, float]:
    """How many times as fast as plain decoding always so many drafts are, and adaptive ones."""
    engines = [
        Engine(machine, batch, rate, 0, adaptive=False),
        Engine(machine, batch, rate, num_drafts, adaptive=False),
        Engine(machine, batch, rate, num_drafts, adaptive=True),
    ]
    rng, began = random.Random(batch), [0.0] * 3
    for turn in range(8):
        answers = [max(2, int(rng.expovariate(1 / mean_tokens))) for _ in range(max(24, 3 * batch))]
        for index, engine in enumerate(engines):
            if turn == 2:  # Those before it warm up.
                began[index] = engine.runner.mean_s
            engine.serve(answers)
    plain, fixed, adaptive = (
        engine.runner.mean_s - start for engine, start in zip(engines, began, strict=True)
    )
    return plain / fixed, plain / adaptive
