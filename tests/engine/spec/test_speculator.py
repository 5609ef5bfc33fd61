"""The whole core in virtual time: what speculation makes of a device that takes its time."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType

import pytest

from engine.bench.overload import ModelledRunner
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.messages import GenerateRequest
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler.plan import StepPlan, StepResult
from engine.spec import speculator, streak
from engine.spec.adaptive import AdaptiveLength
from engine.spec.base import Proposer, TextProposer
from engine.spec.config import SpeculativeConfig
from engine.spec.costs import StepCosts
from engine.spec.network import NetworkProposer
from engine.spec.planned_step import PlannedStep
from tests.engine.spec.simulation import BATCHES, H200, LENGTHS, best_fixed, padded

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
        speculative_config=None if proposer is None else speculative,
    )
    costs = runner.step_costs
    if not adaptive:
        runner.step_costs = None
    core = EngineCore(
        config,
        runner,
        max_model_len=100_000,
        overlap=True,
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


@pytest.mark.parametrize(("batch", "num_steps"), [(1, 800), (8, 400), (64, 200)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.7, 0.9])
def test_networks_draft_as_many_as_pay(batch: int, num_steps: int, rate: float) -> None:
    """The table knows neither the host's work nor that of drafting."""

    def runner() -> TimedRunner:
        return TimedRunner(padded(H200), rate, draft_s=0.0001)

    timed = runner()
    adaptive = decode(timed, batch, num_steps, proposer=NetworkProposer(timed))
    plain = decode(runner(), batch, num_steps, proposer=None)
    assert adaptive > 0.98 * plain
    for length in (1, 3, 5):
        timed = runner()
        fixed = decode(
            timed,
            batch,
            num_steps if batch == 1 else num_steps // 4,
            proposer=NetworkProposer(timed),
            adaptive=False,
            num_tokens=length,
        )
        # What luck does to so few drafts is more than what is lost.
        assert adaptive > (0.96 if batch > 1 else 0.93) * fixed, f"{length} drafts are faster"


@pytest.mark.parametrize(("batch", "num_steps"), [(1, 1200), (8, 600), (64, 200)])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.6])
@pytest.mark.parametrize("speed", [5, 20])
def test_devices_that_wait_for_the_host_are_never_slower_with_drafts(
    batch: int, num_steps: int, rate: float, speed: float
) -> None:
    """A step with drafts takes all that the host does; one without them hides it."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    costs = padded(StepCosts(BATCHES, LENGTHS, table))
    timed = TimedRunner(costs, rate, draft_s=0.0001)
    adaptive = decode(timed, batch, num_steps, proposer=NetworkProposer(timed))
    plain = decode(TimedRunner(costs, rate), batch, num_steps, proposer=None)
    assert adaptive > 0.98 * plain


@pytest.mark.parametrize(("batch", "num_steps"), [(1, 1000), (8, 400)])
@pytest.mark.parametrize("rate", [0.5, 0.85])
@pytest.mark.parametrize("speed", [10, 40])
def test_devices_that_wait_for_the_host_give_up_no_gains(
    batch: int, num_steps: int, rate: float, speed: float
) -> None:
    """What was measured at the start is far off, and steps without drafts seem shorter than they
    are where the next one waits for them."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    costs = padded(StepCosts(BATCHES, LENGTHS, table))

    def decoded(*, adaptive: bool) -> float:
        timed = TimedRunner(costs, rate, draft_s=0.0001)
        proposer = NetworkProposer(timed)
        return decode(timed, batch, num_steps, proposer=proposer, adaptive=adaptive, num_tokens=3)

    assert decoded(adaptive=True) > 0.96 * decoded(adaptive=False)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("rate", [0.1, 0.9])
@pytest.mark.parametrize("has_graphs", [True, False])
def test_texts_are_never_slower_with_drafts(share: float, rate: float, has_graphs: bool) -> None:
    costs = padded(H200) if has_graphs else H200
    adaptive = decode(TimedRunner(costs, rate), 16, 300, proposer=Ideas(share))
    plain = decode(TimedRunner(costs, rate), 16, 300, proposer=None)
    assert adaptive > 0.98 * plain
    if rate == 0.9 and (share == 1.0 or (share and not has_graphs)):
        ideal, _ = best_fixed(H200, 16, (rate,))
        assert adaptive > plain + 0.6 * share * (ideal - plain)


@pytest.mark.parametrize(("batch", "num_steps"), [(1, 800), (16, 400)])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("rate", [0.5, 0.9])
@pytest.mark.parametrize("speed", [1, 5])
def test_nobody_waits_long_for_drafts_that_do_not_come(
    batch: int, num_steps: int, share: float, rate: float, speed: float
) -> None:
    """Waiting for a step in flight costs what the host could have done meanwhile."""
    table = [[seconds / speed for seconds in row] for row in H200.taken_s]
    costs = padded(StepCosts(BATCHES, LENGTHS, table))
    adaptive = decode(TimedRunner(costs, rate), batch, num_steps, proposer=Fickle(share))
    plain = decode(TimedRunner(costs, rate), batch, num_steps, proposer=None)
    assert adaptive > 0.98 * plain
    if (batch, share, rate) == (1, 0.3, 0.9):
        assert adaptive > 1.3 * plain, "it was worth it"


def test_times_are_those_of_the_steps_however_they_overlap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums of what steps took are what the clock shows."""
    monkeypatch.setattr(streak, "_NUM_STEPS", 0)
    runner = TimedRunner(H200, 0.6)
    taken: list[float] = []
    config = EngineConfig(
        model="toy",
        max_num_seqs=4,
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3),
    )
    core = EngineCore(
        config,
        runner,
        max_model_len=1000,
        overlap=True,
        proposer=NetworkProposer(runner),
        clock=runner.clock,
    )
    adaptive = core._speculator._adaptive
    observe = adaptive.observe

    def spy(step: object, seconds: float, outcomes: object) -> None:
        taken.append(seconds)
        observe(step, seconds, outcomes)  # type: ignore[arg-type]

    adaptive.observe = spy  # type: ignore[method-assign]
    for index in range(4):
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=str(index), prompt_token_ids=[1, 2, 3], params=params)
        )
    while core.has_unfinished:
        core.step()
        runner.now += OUTSIDE_S
    assert min(taken) > 0
    assert sum(taken) == pytest.approx(runner.now, rel=0.01)
    core.check_integrity()


def start(
    runner: TimedRunner, batch: int, *, overlap: bool, proposer: Proposer | None = None
) -> tuple[EngineCore, list[int]]:
    """A core with requests that never end, and the batches that a length was asked for."""
    config = EngineConfig(
        model="toy",
        max_num_seqs=batch,
        speculative_config=SpeculativeConfig(method="ngram", num_speculative_tokens=3),
    )
    core = EngineCore(
        config,
        runner,
        max_model_len=100_000,
        overlap=overlap,
        proposer=proposer or NetworkProposer(runner),
        clock=runner.clock,
    )
    asked: list[int] = []
    adaptive = core._speculator._adaptive
    uniform_length, may_pay = adaptive.uniform_length, adaptive.may_pay

    def uniform_length_asked(batch: int, most: int) -> int:
        asked.append(batch)
        return uniform_length(batch, most)

    def may_pay_asked(requests: Collection[Request], batch: int) -> bool:
        asked.append(batch)
        return may_pay(requests, batch)

    adaptive.uniform_length = uniform_length_asked  # type: ignore[method-assign]
    adaptive.may_pay = may_pay_asked  # type: ignore[method-assign]
    for index in range(batch):
        params = SamplingParams(max_tokens=60_000 // batch, ignore_eos=True)
        core.add_request(
            GenerateRequest(request_id=str(index), prompt_token_ids=[1, 2, 3], params=params)
        )
    return core, asked


def run(core: EngineCore, runner: TimedRunner, num_steps: int) -> None:
    for _ in range(num_steps):
        core.step()
        runner.now += OUTSIDE_S


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("is_network", [True, False])
def test_where_drafts_do_not_pay_the_engine_seldom_asks(overlap: bool, is_network: bool) -> None:
    runner = TimedRunner(padded(H200), 0.05)
    proposer = NetworkProposer(runner) if is_network else Ideas(1.0)
    core, asked = start(runner, 64, overlap=overlap, proposer=proposer)
    run(core, runner, 100)
    asked.clear()
    before = core.stats()
    run(core, runner, 1200)
    num_probes = (core.stats().spec_decode_num_drafts - before.spec_decode_num_drafts) // 8
    assert 0 < num_probes < 20, "it goes on to try now and then"
    assert len(asked) < 1200 / 8 + 6 * num_probes + 5


def test_of_steps_with_drafts_that_are_alike_a_few_are_looked_at() -> None:
    runner = TimedRunner(padded(H200), 0.8)
    core, _ = start(runner, 8, overlap=True)
    run(core, runner, 200)
    seen: list[PlannedStep] = []
    adaptive = core._speculator._adaptive
    observe = adaptive.observe

    def spy(step: PlannedStep, seconds: float, outcomes: Sequence[tuple[str, int, int]]) -> None:
        seen.append(step)
        observe(step, seconds, outcomes)

    adaptive.observe = spy  # type: ignore[method-assign]
    run(core, runner, 400)
    assert len(seen) < 100
    assert sum(step.num_like for step in seen) == pytest.approx(400, abs=30)
    assert all(step.num_drafts for step in seen if step.num_like > 1)


@pytest.mark.parametrize("rate", [0.05, 0.45])
def test_a_rest_ends_where_drafts_may_pay(rate: float) -> None:
    """Drafts that do not pay for many may pay for one as soon as it is alone."""
    runner = TimedRunner(padded(H200), rate)
    core, asked = start(runner, 64, overlap=True)
    run(core, runner, 200)
    before = core.stats().spec_decode_num_drafts
    core.abort([str(index) for index in range(1, 64)])
    run(core, runner, 20)
    assert asked[-1] == 1, "nothing was known of one alone"
    if rate > 0.4:
        assert core.stats().spec_decode_num_drafts > before
    core.abort(["0"])
    run(core, runner, 3)
    core.check_integrity()


def test_requests_come_and_go_in_a_rest() -> None:
    """Where a network drafts for all or for none; the time that steps take is learned of each
    batch, but of its first step, and only in the last ones of the rest."""
    runner = TimedRunner(padded(H200), 0.05)
    core, asked = start(runner, 64, overlap=True)
    run(core, runner, 400)
    learned: dict[int, int] = {}
    adaptive = core._speculator._adaptive
    assert isinstance(adaptive, AdaptiveLength)
    observe_rest = adaptive.observe_rest

    def spy(
        taken: Mapping[int, Sequence[float]], num_tokens: Mapping[int, int], num_passed: int = 0
    ) -> None:
        for batch, seconds in taken.items():
            learned[batch] = learned.get(batch, 0) + len(seconds)
            step_s = H200.seconds(batch, 0, 0)
            assert seconds == pytest.approx([step_s] * len(seconds), rel=0.05)
        observe_rest(taken, num_tokens, num_passed)

    adaptive.observe_rest = spy  # type: ignore[method-assign]
    while core._speculator._rest.num_steps != 26:
        run(core, runner, 1)
    asked.clear()
    learned.clear()
    gone = iter(range(64))
    for _ in range(6):
        core.abort([str(next(gone))])
        run(core, runner, 4)
    assert len(asked) <= 1, "the rest was over by itself, at most"
    run(core, runner, 100)
    assert [learned.get(batch, 0) for batch in range(63, 58, -1)] == [0, 0, 0, 1, 3]
    core.check_integrity()


def test_nobody_is_asked_either_while_drafts_have_to_pay_for_their_beginning_first() -> None:
    runner = TimedRunner(padded(H200), 0.8)
    core, asked = start(runner, 8, overlap=True)
    run(core, runner, 100)
    adaptive = core._speculator._adaptive
    assert isinstance(adaptive, AdaptiveLength)
    adaptive._hysteresis._cost = 1000.0  # in steps without drafts
    adaptive._experience.probes.saved_s = -1000.0  # so nobody tries either
    adaptive._hysteresis.planned(0.0, has_drafts=False)
    run(core, runner, 30)  # a streak is not cut short
    asked.clear()
    num_drafts = core.stats().spec_decode_num_drafts
    run(core, runner, 200)
    assert core.stats().spec_decode_num_drafts == num_drafts
    assert len(asked) < 200 / 16
    adaptive._hysteresis._cost = 0.0
    run(core, runner, 50)
    assert core.stats().spec_decode_num_drafts - num_drafts > 8 * 10


def test_a_step_at_rest_is_counted_and_no_more() -> None:
    """In calls, as these are what it takes the host: a few more than without drafts."""
    runner = TimedRunner(padded(H200), 0.05)
    core, _ = start(runner, 64, overlap=True)
    run(core, runner, 400)
    called: list[str] = []
    folder = Path(speculator.__file__).parent

    def count(frame: FrameType, event: str, argument: object) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.parent == folder and file.name != "costs.py":
            called.append(frame.f_code.co_name)  # But for what the runner asks.

    while core._speculator._rest.num_steps < 50:
        run(core, runner, 1)
    sys.setprofile(count)
    try:
        run(core, runner, 30)
    finally:
        sys.setprofile(None)
    assert set(called) == {"rests", "planned", "passes", "collected", "learn"}
    assert len(called) == 30 * 5


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


def test_a_rest_has_no_slots_for_drafts_and_drafts_always_have_them() -> None:
    runner = Rooms(padded(H200), 0.05)
    core, _ = start(runner, 64, overlap=True)
    run(core, runner, 900)
    assert runner.num_asked > 64
    assert runner.num_plain > 64 * 700
    assert runner.num_with_slots_to_spare < 0.02 * runner.num_plain, "but for what others left"


def test_how_many_requests_ended_is_learned_with_their_tokens() -> None:
    """Not one by one, as an end comes with each token that a large batch of short answers makes."""
    runner = TimedRunner(padded(H200), 0.05)
    core, _ = start(runner, 64, overlap=True)
    run(core, runner, 300)
    speculator = core._speculator
    assert isinstance(speculator._adaptive, AdaptiveLength)
    newcomers = speculator._adaptive._experience.newcomers
    assert (speculator._num_ended, newcomers._num_ended) == (0, 0.0)
    while speculator._rest.num_steps < 50:
        run(core, runner, 1)
    core.abort([str(index) for index in range(20)])
    run(core, runner, 1)
    assert speculator._num_ended == 20
    while speculator._num_ended:
        run(core, runner, 1)
    assert newcomers._num_ended == pytest.approx(sum(0.98**n for n in range(20)))


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
    core, _ = start(runner, batch, overlap=overlap, proposer=proposer)
    run(core, runner, 40)
    proposer.num_asked = 0
    run(core, runner, num_steps)
    assert proposer.num_asked == pytest.approx(often * batch * num_steps, rel=0.3)
