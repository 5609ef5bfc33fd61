"""The whole core in simulated time: what speculation makes of a device that takes its time."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from engine.spec import speculator
from engine.spec.base import TextProposer
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer
from tests.engine.spec.simulation import (
    BATCHES,
    H200,
    LENGTHS,
    OUTSIDE_S,
    Fickle,
    Ideas,
    TimedRunner,
    best_fixed,
    decode,
    padded,
    run,
    start,
)
from tests.pairs import each_value

THREE = SpeculativeConfig(method="ngram", num_speculative_tokens=3)


def faster(speed: float) -> StepCosts:
    """A device that is so many times as fast, so that the host's work counts."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    return padded(StepCosts(BATCHES, LENGTHS, table))


# ---- requests that never end --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "rate", "speed"),
    each_value([(1, 1000), (8, 600), (64, 400)], [0.1, 0.5, 0.7, 0.9], [1, 5, 20, 40]),
)
def test_networks_draft_as_many_as_pay(size: tuple[int, int], rate: float, speed: float) -> None:
    """The table knows neither the host's work nor that of drafting."""
    batch, num_steps = size

    def decoded(*, drafts: bool = True, adaptive: bool = True) -> float:
        timed = TimedRunner(faster(speed), rate, draft_s=0.0001)
        proposer = NetworkProposer(timed) if drafts else None
        return decode(timed, batch, num_steps, proposer=proposer, adaptive=adaptive, num_tokens=3)

    found = decoded()
    assert found > 0.97 * decoded(drafts=False)
    # What luck does to so few drafts is more than what is lost.
    assert found > 0.93 * decoded(adaptive=False)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("rate", [0.1, 0.9])
@pytest.mark.parametrize("has_graphs", [True, False])
def test_texts_are_never_slower_with_drafts(share: float, rate: float, has_graphs: bool) -> None:
    costs = padded(H200) if has_graphs else H200
    found = decode(TimedRunner(costs, rate), 16, 300, proposer=Ideas(share))
    plain = decode(TimedRunner(costs, rate), 16, 300, proposer=None)
    assert found > 0.98 * plain
    if rate == 0.9 and (share == 1.0 or (share and not has_graphs)):
        ideal, _ = best_fixed(H200, 16, (rate,))
        assert found > plain + 0.6 * share * (ideal - plain)


@pytest.mark.parametrize(
    ("size", "share", "rate", "speed"),
    each_value([(1, 800), (16, 400)], [0.0, 0.05, 0.3], [0.5, 0.9], [1, 5]),
)
def test_nobody_waits_long_for_drafts_that_do_not_come(
    size: tuple[int, int], share: float, rate: float, speed: float
) -> None:
    """Waiting for a step in flight costs what the host could have done meanwhile."""
    found = decode(TimedRunner(faster(speed), rate), *size, proposer=Fickle(share))
    assert found > 0.98 * decode(TimedRunner(faster(speed), rate), *size, proposer=None)


def test_waits_that_are_often_worth_it_go_on() -> None:
    found = decode(TimedRunner(padded(H200), 0.9), 1, 800, proposer=Fickle(0.3))
    assert found > 1.2 * decode(TimedRunner(padded(H200), 0.9), 1, 800, proposer=None)


class InTurns(TextProposer):
    """Copies in some phases; in the others finds something all the same, or nothing."""

    def __init__(self, runner: TimedRunner, *, finds: bool) -> None:
        self._runner = runner
        self._finds = finds

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        return [1] * max_tokens if self._runner._rate > 0.5 or self._finds else []

    def drop(self, request: Request) -> None:
        """Nothing is kept."""


@pytest.mark.parametrize(
    ("finds", "speed", "phase"), each_value([True, False], [1, 20], [50, 200, 1000])
)
def test_texts_that_copy_now_and_then_are_no_slower(finds: bool, speed: float, phase: int) -> None:
    """phase: the tokens until drafts are right, or no longer right."""

    def taken(rates: tuple[float, float], *, drafts: bool) -> float:
        """Seconds for a number of tokens."""
        runner = TimedRunner(faster(speed), rates[0])
        proposer = InTurns(runner, finds=finds) if drafts else Ideas(0.0)
        core = start(runner, 1, overlap=True, proposer=proposer)
        num_tokens = 0
        while num_tokens < 4000:
            runner._rate = rates[num_tokens // phase % 2]
            num_tokens += sum(len(output.new_token_ids) for output in core.step())
            runner.now += 0.0001
        return runner.now

    plain = taken((0.0, 0.0), drafts=False)
    assert taken((0.05, 0.05), drafts=True) < 1.02 * plain
    assert taken((0.9, 0.05), drafts=True) < (1.02 if finds else 0.78) * plain


# ---- idle steps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("is_network", [True, False])
def test_where_drafts_do_not_pay_the_engine_seldom_asks(overlap: bool, is_network: bool) -> None:
    runner = TimedRunner(padded(H200), 0.05)
    proposer = NetworkProposer(runner) if is_network else Ideas(1.0)
    core = start(runner, 8, overlap=overlap, proposer=proposer)
    run(core, runner, 1000)
    before, num_idle = core.stats().spec_decode_num_drafts, 0
    for _ in range(3000):
        run(core, runner, 1)
        num_idle += core._speculator._num_idle > 0
    assert 0 < core.stats().spec_decode_num_drafts - before < 0.01 * 8 * 3000
    assert num_idle > 0.9 * 3000


def test_an_idle_step_is_counted_and_no_more() -> None:
    """In calls, as these are what it takes the host: a few more than without drafts."""
    runner = TimedRunner(padded(H200), 0.05)
    core = start(runner, 64, overlap=True)
    while core._speculator._num_idle < 50:
        run(core, runner, 1)
    called: list[str] = []
    folder = Path(speculator.__file__).parent

    def count(frame: FrameType, event: str, argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.parent == folder and file.name != "costs.py":
            called.append(frame.f_code.co_name)  # Those in costs.py are the simulated device's.

    sys.setprofile(count)
    try:
        run(core, runner, 30)
    finally:
        sys.setprofile(None)
    assert set(called) == {"begin", "planned", "collected", "learn"}
    assert len(called) == 30 * 4


def test_drafts_that_do_not_pay_for_many_may_pay_for_one() -> None:
    runner = TimedRunner(padded(H200), 0.45)
    core = start(runner, 64, overlap=True)
    run(core, runner, 400)
    before = core.stats().spec_decode_num_drafts
    core.abort([str(index) for index in range(1, 64)])
    run(core, runner, 100)
    assert core.stats().spec_decode_num_drafts - before > 40
    core.abort(["0"])
    run(core, runner, 3)
    core.check_integrity()


class Rooms(TimedRunner):
    """Knows how many slots each row has."""

    def __init__(self, costs: StepCosts, rate: float) -> None:
        super().__init__(costs, rate)
        self.num_lookahead_tokens = 3
        self.room: dict[int, int] = {}
        self.num_plain = self.num_with_slots_to_spare = 0
        """Requests in steps that keep no features, and how many of them had a block too many."""
        self.num_asked = 0

    def forward(self, plan: StepPlan) -> None:
        for admission in plan.admissions:
            self.room[admission.row] = 16 * len(admission.block_ids[0])
        for _, row, block_ids in plan.new_blocks:
            self.room[row] += 16 * len(block_ids)
        if not plan.keeps_features:
            for chunk in plan.chunks:
                end = chunk.num_computed_tokens + chunk.num_scheduled_tokens
                self.num_plain += 1
                self.num_with_slots_to_spare += self.room[chunk.row] - end >= 16
        super().forward(plan)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        for row, known in asked:
            self.num_asked += 1
            assert self.room[row] >= known + 2, "the last of three drafts is not fed back"
        return super().draft(asked, num_tokens, wait=wait)


def test_idle_steps_have_no_slots_for_drafts_and_drafts_always_have_them() -> None:
    runner = Rooms(padded(H200), 0.05)
    core = start(runner, 64, overlap=True)
    run(core, runner, 900)
    assert runner.num_asked > 64
    assert runner.num_plain > 64 * 700
    assert runner.num_with_slots_to_spare < 0.02 * runner.num_plain, "but for what others left"


class Slow(Ideas):
    """Thinks for a while, and has no idea."""

    def __init__(self, runner: TimedRunner, seconds: float) -> None:
        super().__init__(0.0)
        self._runner = runner
        self._seconds = seconds
        self.num_asked = 0

    def continue_text(self, request: Request, max_tokens: int) -> list[int]:
        self.num_asked += 1
        self._runner.now += self._seconds
        return super().continue_text(request, max_tokens)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(("seconds", "often"), [(1e-6, 1.0), (4e-5, 0.2)])
def test_who_has_no_idea_is_asked_the_less_the_longer_that_takes(
    overlap: bool, seconds: float, often: float
) -> None:
    batch, num_steps = 16, 300
    runner = TimedRunner(padded(H200), 0.9)
    proposer = Slow(runner, seconds)
    core = start(runner, batch, overlap=overlap, proposer=proposer)
    run(core, runner, 40)
    proposer.num_asked = 0
    run(core, runner, num_steps)
    assert proposer.num_asked == pytest.approx(often * batch * num_steps, rel=0.3)


# ---- requests that come and go ------------------------------------------------------------------


class CatchingUp(TimedRunner):
    """A network has to see a prompt before it drafts."""

    def __init__(self, costs: StepCosts, rate: float, prefill_s: float) -> None:
        super().__init__(costs, rate, draft_s=0.0001)
        self._prefill_s = prefill_s
        self._seen: defaultdict[int, bool] = defaultdict(bool)

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        if not all(self._seen[row] for row, _ in asked):
            self.now += 0.0012
        self._seen.update((row, True) for row, _ in asked)
        return super().draft(asked, num_tokens, wait=wait)

    def forward(self, plan: StepPlan) -> None:
        if plan.admissions:
            self.now += self._prefill_s
        self._seen.update((admission.row, False) for admission in plan.admissions)
        super().forward(plan)


def serve(
    runner: TimedRunner,
    batch: int,
    config: SpeculativeConfig | None,
    *,
    mean_tokens: int,
    together: bool = False,
) -> float:
    """Tokens a second where a request comes whenever one goes, without the first third of them.
    together: as many come when all are gone."""
    core = EngineCore(
        EngineConfig(
            model="toy",
            max_num_seqs=batch,
            enable_prefix_caching=False,
            async_scheduling=True,
            speculative_config=config,
        ),
        runner,
        max_model_len=100_000,
        proposer=None if config is None else NetworkProposer(runner),
        clock=runner.clock,
    )
    rng, num_come, num_gone, num_tokens = random.Random(3), 0, 0, 0
    began: tuple[float, int] | None = None
    num_in_all = max(30 * batch, 200)
    while num_gone < num_in_all:
        num_running = num_come - num_gone
        for _ in range(0 if together and num_running else batch - num_running):
            length = max(2, int(rng.expovariate(1 / mean_tokens)))
            params = SamplingParams(max_tokens=length, ignore_eos=True)
            core.add_request(
                GenerateRequest(request_id=str(num_come), prompt_token_ids=[2] * 30, params=params)
            )
            num_come += 1
        for output in core.step():
            num_tokens += len(output.new_token_ids)
            num_gone += output.finish_reason is not None
        runner.now += OUTSIDE_S
        if began is None and num_gone >= num_in_all // 3:
            began = runner.now, num_tokens
    assert began is not None
    return (num_tokens - began[1]) / (runner.now - began[0])


@pytest.mark.parametrize(
    ("batch", "rate", "speed", "mean_tokens"),
    [(8, 0.5, 20, 24), (32, 0.5, 20, 24), (32, 0.8, 1, 24), (32, 0.5, 1, 24), (32, 0.5, 20, 100)],
)
def test_short_answers_are_never_slower_with_drafts(
    batch: int, rate: float, speed: float, mean_tokens: int
) -> None:
    """Always three drafts, some of these lose up to a fifth."""

    def served(config: SpeculativeConfig | None) -> float:
        runner = CatchingUp(faster(speed), rate, 0.001)
        return serve(runner, batch, config, mean_tokens=mean_tokens)

    assert served(THREE) > 0.98 * served(None)


def test_drafts_that_pay_in_spite_of_newcomers_are_made() -> None:
    def served(config: SpeculativeConfig | None) -> float:
        return serve(CatchingUp(faster(20), 0.8, 0.001), 8, config, mean_tokens=100)

    assert served(THREE) > 1.3 * served(None)


@pytest.mark.parametrize("batch", [1, 8])
def test_prompts_that_have_nothing_to_hide_behind_are_not_held_against_drafts(batch: int) -> None:
    """As where one request follows another: their prompts take as long without drafts."""

    def served(config: SpeculativeConfig | None) -> float:
        runner = CatchingUp(faster(20), 0.8, 0.02)
        return serve(runner, batch, config, mean_tokens=24, together=True)

    assert served(THREE) > 1.15 * served(None)


# Microseconds of the demo model's steps on an H200, without drafts and with up to three.
STEPS_US = (
    (169, 208, 228, 270, 290, 347, 540, 781, 1275),
    (357, 472, 507, 578, 627, 720, 1012, 2142, 7458),
    (390, 518, 555, 631, 685, 785, 1094, 2378, 8530),
    (420, 560, 600, 680, 739, 845, 1169, 2596, 9519),
)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TAKEN = StepCosts(SIZES, range(4), [[1e-6 * us for us in row] for row in STEPS_US], True)
# At start-up nothing but the device is measured.
MEASURED = StepCosts(SIZES, range(4), [[0.6 * s for s in row] for row in TAKEN.taken_s], True)


class SlowHost(TimedRunner):
    """A plain step takes the host as long as it takes in all; one with drafts half of that, and the
    device the rest."""

    def __init__(self, right: float) -> None:
        super().__init__(MEASURED, right)
        self._follows: defaultdict[int, bool] = defaultdict(bool)
        """Whether the network has seen all of a row."""
        self.num_drafted = 0

    def spend(self, seconds: float) -> None:
        self.now += self._rng.uniform(0.93, 1.07) * seconds

    def draft(
        self, asked: Sequence[tuple[int, int]], num_tokens: int, *, wait: bool
    ) -> list[list[int]]:
        num_behind = sum(not self._follows[row] for row, _ in asked)
        self.spend(0.00005 + bool(num_behind) * 0.001 + num_behind * 0.00004)
        self._follows.update((row, True) for row, _ in asked)
        self.num_drafted += 1
        return [[1] * num_tokens for _ in asked]

    def forward(self, plan: StepPlan) -> None:
        self.spend(len(plan.admissions) * 0.00011)
        behind = [admission.row for admission in plan.admissions]
        if not plan.keeps_features:
            behind += [chunk.row for chunk in plan.chunks]
        self._follows.update((row, False) for row in behind)
        lengths = [chunk.num_draft_tokens for chunk in plan.chunks]
        seconds = TAKEN.seconds(len(lengths), max(lengths), sum(lengths))
        self.spend(0.5 * seconds if any(lengths) else 0.95 * seconds)
        self._idle_at = max(self.now, self._idle_at) + 0.4 * seconds
        self._done_at.append(self._idle_at)
        tokens = [[1] * self._num_sampled(length) for length in lengths]
        self._results.append(StepResult(plan.step_id, tokens))


@pytest.mark.parametrize(
    ("batch", "right"),
    [
        (64, 0.87),
        (64, 0.3),
        pytest.param(256, 0.87, marks=pytest.mark.nightly),
        pytest.param(256, 0.0, marks=pytest.mark.nightly),
    ],
)
def test_a_burst_is_never_slower_with_drafts(batch: int, right: float) -> None:
    """Requests come all at once; drafts pay only once few of them are left."""
    runner = SlowHost(right)
    found = serve(runner, batch, THREE, mean_tokens=24, together=True)
    assert found > 0.98 * serve(SlowHost(right), batch, None, mean_tokens=24, together=True)
    if right > 0.5:
        assert runner.num_drafted > 100, "they pay at the end of a burst"
