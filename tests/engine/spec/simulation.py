"""An engine in simulated time: the real core and controller over a device of given speed."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from engine.bench.overload import ModelledRunner
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from engine.spec.base import Proposer, TextProposer
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer

BATCHES = (1, 8, 32, 64, 128, 256)
LENGTHS = (0, 1, 2, 3, 4, 5)
# An 8B model on an H200, milliseconds: as measured up to a batch of 64 for 0, 3, 4 and 5 drafts of
# an EAGLE-3 head, and as its products grow for the rest. Above 128 there are no graphs.
H200_MS = (
    (4.31, 4.62, 5.40, 6.31, 8.80, 13.5),
    (4.75, 5.60, 6.80, 8.80, 14.0, 26.0),
    (4.97, 6.40, 8.00, 11.0, 18.5, 36.0),
    (5.19, 7.20, 9.18, 13.3, 24.0, 46.0),
    (5.57, 8.09, 10.9, 16.8, 30.0, 57.0),
    (5.76, 9.00, 12.1, 18.9, 35.0, 68.0),
)
H200 = StepCosts(BATCHES, LENGTHS, [[ms / 1000 for ms in row] for row in H200_MS])


def padded(costs: StepCosts) -> StepCosts:
    """Where steps run as graphs."""
    return replace(costs, is_padded=True)


def tokens_a_step(rates: Sequence[float], length: int) -> float:
    tokens = chance = 1.0
    for place in range(length):
        chance *= rates[min(place, len(rates) - 1)]
        tokens += chance
    return tokens


def best_fixed(true: StepCosts, batch: int, rates: Sequence[float]) -> tuple[float, int]:
    """Tokens a second on average of the best length, and that length."""

    def speed(length: int) -> float:
        return batch * tokens_a_step(rates, length) / true.seconds(batch, length, batch * length)

    return max((speed(length), length) for length in range(true.lengths[-1] + 1))


HOST_S, OUTSIDE_S = 0.0003, 0.0004
"""What the core does in a step beside the device, and what others do between two steps."""


class TimedRunner(ModelledRunner):
    """Runs steps on a device of its own, and drafts on it; drafts are right by chance."""

    step_costs: StepCosts | None  # type: ignore[assignment]

    def __init__(self, costs: StepCosts, rate: float, draft_s: float = 0.0) -> None:
        super().__init__(4096)
        self.step_costs = costs
        self._rate = rate
        self._draft_s = draft_s
        self._rng = random.Random(0)
        self._idle_at = 0.0
        self._done_at: deque[float] = deque()

    def clock(self) -> float:
        return self.now

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        assert not self._done_at, "drafts continue what nobody has seen yet"
        self.now += self._draft_s * num_tokens
        return [[1] * num_tokens for _ in asked]

    def forward(self, plan: StepPlan) -> None:
        self.now += HOST_S
        chunks = plan.chunks
        lengths = [chunk.num_draft_tokens for chunk in chunks]
        assert self.step_costs is not None
        seconds = self.step_costs.seconds(len(chunks), max(lengths), sum(lengths))
        self._idle_at = max(self.now, self._idle_at) + seconds
        tokens = [[1] * self._num_sampled(c.num_draft_tokens) if c.samples else [] for c in chunks]
        self._done_at.append(self._idle_at)
        self._results.append(StepResult(plan.step_id, tokens))

    def _num_sampled(self, num_drafts: int) -> int:
        count = 1
        while count <= num_drafts and self._rng.random() < self._rate:
            count += 1
        return count

    def collect(self) -> StepResult:
        self.now = max(self.now, self._done_at.popleft())
        return super().collect()


class Ideas(TextProposer):
    """Has an idea for some requests."""

    def __init__(self, share: float) -> None:
        self._share = share

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        has_idea = request.arrival % 8 < 8 * self._share
        return [1] * max_tokens if has_idea else []

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


class Fickle(TextProposer):
    """Foresees drafts for everybody, and has some now and then."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._rng = random.Random(1)

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        return [1] * max_tokens if self._rng.random() < self._share else []

    def foresees(self, request: Request) -> bool:
        return True

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


def decode(
    runner: TimedRunner,
    batch: int,
    num_steps: int,
    *,
    proposer: Proposer | None,
    adaptive: bool = True,
    num_tokens: int = 5,
) -> float:
    """Tokens a second of requests that never end, after some time to learn."""
    speculative = SpeculativeConfig(
        method="ngram", num_speculative_tokens=num_tokens, adaptive=adaptive
    )
    config = EngineConfig(
        model="toy",
        max_num_seqs=batch,
        block_size=16,
        async_scheduling=True,
        speculative_config=None if proposer is None else speculative,
    )
    costs = runner.step_costs
    if not adaptive:
        runner.step_costs = None
    core = EngineCore(
        config,
        runner,
        max_model_len=100_000,
        proposer=proposer,
        clock=runner.clock,
    )
    runner.step_costs = costs
    for index in range(batch):
        params = SamplingParams(max_tokens=60_000 // batch, ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=str(index), prompt_token_ids=[1, 2, 3], params=params)
        )
    for _ in range(num_steps // 4):
        core.step()
        runner.now += OUTSIDE_S
    began, count = runner.now, 0
    for _ in range(num_steps):
        count += sum(len(output.new_token_ids) for output in core.step())
        runner.now += OUTSIDE_S
    return count / (runner.now - began)


def start(
    runner: TimedRunner, batch: int, *, overlap: bool, proposer: Proposer | None = None
) -> EngineCore:
    """A core with requests that never end."""
    core = EngineCore(
        EngineConfig(
            model="toy",
            max_num_seqs=batch,
            async_scheduling=overlap,
            speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3),
        ),
        runner,
        max_model_len=100_000,
        proposer=proposer or NetworkProposer(runner),
        clock=runner.clock,
    )
    for index in range(batch):
        params = SamplingParams(max_tokens=60_000 // batch, ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=str(index), prompt_token_ids=[1, 2, 3], params=params)
        )
    return core


def run(core: EngineCore, runner: TimedRunner, num_steps: int) -> None:
    for _ in range(num_steps):
        core.step()
        runner.now += OUTSIDE_S
