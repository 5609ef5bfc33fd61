"""Requests that come all at once to a small model, in simulated time: the host takes longer than
the device, drafts pay only once few requests are left, and everything is slow at first."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer
from tests.engine.spec.test_speculator import TimedRunner

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Microseconds of the demo model's steps on an H200, without drafts and with up to three.
STEPS_US = (
    (169, 208, 228, 270, 290, 347, 540, 781, 1275),
    (357, 472, 507, 578, 627, 720, 1012, 2142, 7458),
    (390, 518, 555, 631, 685, 785, 1094, 2378, 8530),
    (420, 560, 600, 680, 739, 845, 1169, 2596, 9519),
)
TAKEN = StepCosts(BATCHES, range(4), [[1e-6 * us for us in row] for row in STEPS_US], True)
# At start-up nothing but the device is measured.
MEASURED = StepCosts(BATCHES, range(4), [[0.6 * s for s in row] for row in TAKEN.taken_s], True)
PROMPT_S, CATCH_UP_S, CATCH_UP_EACH_S = 0.00011, 0.001, 0.00004
NUM_ROUNDS, NUM_SLOW = 8, 2


class SlowHost(TimedRunner):
    """A plain step takes the host as long as it takes in all; one with drafts half of that, and the
    device the rest."""

    slowness = 2.0

    def __init__(self, right: float) -> None:
        super().__init__(MEASURED, right)
        self._follows: defaultdict[int, bool] = defaultdict(bool)
        """Whether the network has seen all of a row."""
        self.num_drafted = 0

    def spend(self, seconds: float) -> None:
        self.now += self.slowness * self._rng.uniform(0.93, 1.07) * seconds

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        num_behind = sum(not self._follows[row] for row, _ in asked)
        self.spend(0.00005 + bool(num_behind) * CATCH_UP_S + num_behind * CATCH_UP_EACH_S)
        self._follows.update((row, True) for row, _ in asked)
        self.num_drafted += 1
        return [[1] * num_tokens for _ in asked]

    def forward(self, plan: StepPlan) -> None:
        self.spend(len(plan.admissions) * PROMPT_S)
        behind = [admission.row for admission in plan.admissions]
        if not plan.keeps_features:
            behind += [chunk.row for chunk in plan.chunks]
        self._follows.update((row, False) for row in behind)
        lengths = [chunk.num_draft_tokens for chunk in plan.chunks]
        seconds = TAKEN.seconds(len(lengths), max(lengths), sum(lengths))
        self.spend(0.5 * seconds if any(lengths) else 0.95 * seconds)
        self._idle_at = max(self.now, self._idle_at) + 0.4 * self.slowness * seconds
        self._done_at.append(self._idle_at)
        tokens = [[1] * self._num_sampled(length) for length in lengths]
        self._results.append(StepResult(plan.step_id, tokens))


def serve(batch: int, right: float, config: SpeculativeConfig | None) -> tuple[float, int]:
    """Tokens a second once nothing is slow any more, and how often drafts were made by then."""
    runner = SlowHost(right)
    core = EngineCore(
        EngineConfig(
            model="toy",
            max_num_seqs=batch,
            enable_prefix_caching=False,
            speculative_config=config,
        ),
        runner,
        max_model_len=1000,
        overlap=True,
        proposer=None if config is None else NetworkProposer(runner),
        clock=runner.clock,
    )
    rng, num_tokens, began_s, num_before = random.Random(5), 0, 0.0, 0
    for number in range(NUM_ROUNDS):
        if number == NUM_SLOW:
            runner.slowness, began_s, num_tokens, num_before = (
                1.0,
                runner.now,
                0,
                runner.num_drafted,
            )
        for index in range(batch):
            short, long = 2 + int(rng.expovariate(1 / 14)), rng.randrange(60, 128)
            length = long if rng.random() < 0.13 else min(128, short)
            params = SamplingParams(max_tokens=length, ignore_eos=True)
            core.add_request(
                GenerateRequest(
                    request_id=f"{number}-{index}", prompt_token_ids=[2] * 30, params=params
                )
            )
        while core.has_unfinished:
            num_tokens += sum(len(output.new_token_ids) for output in core.step())
    return num_tokens / (runner.now - began_s), runner.num_drafted - num_before


@pytest.mark.parametrize(("batch", "right"), [(256, 0.87), (256, 0.0), (64, 0.87), (64, 0.3)])
def test_a_burst_is_never_slower_with_drafts(batch: int, right: float) -> None:
    drafts = SpeculativeConfig(method="ngram", num_speculative_tokens=3)
    plain, _ = serve(batch, right, None)
    found, num_drafted = serve(batch, right, drafts)
    assert found > 0.98 * plain
    if right > 0.5:
        assert num_drafted > 10 * (NUM_ROUNDS - NUM_SLOW), "they pay at the end of a round"
    else:
        assert num_drafted < 10
