"""The number of drafts, in simulated time: near the best fixed one, and never slower than none."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from engine.request import Request
from engine.scheduler.plan import Chunk
from engine.spec.controller import PROBE_REQUESTS, Controller
from engine.spec.costs import LOOK, Noted, StepCosts
from tests.engine.scheduler.making import make_request
from tests.engine.spec.simulation import BATCHES, H200, LENGTHS, best_fixed, padded, tokens_a_step

# Steps really take other times than the table says: longer with drafts, shorter without.
TRUE = padded(
    StepCosts(
        BATCHES,
        LENGTHS,
        [
            [seconds * (1.15 if length else 0.93) for seconds in row]
            for length, row in enumerate(H200.taken_s)
        ],
    )
)
TABLE = padded(H200)

Rates = Callable[[float], Sequence[float]]
"""From the seconds gone by to the chance of each draft if those before it are right."""


@dataclass
class Simulated:
    """A batch of requests that decode with a draft network, for ever."""

    batch: int
    rates: Rates
    true: StepCosts = field(default_factory=lambda: TRUE)
    start_s: float = 0.002
    """What the first step with drafts takes longer, after others."""
    seed: int = 0
    now: float = 0.0
    num_tokens: float = 0.0
    """On average, as ``now`` is what steps take on average: luck is for what is learned, not for
    the score."""
    num_probes: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.control = Controller(TABLE, by_request=False)

    def step(self) -> None:
        control, batch = self.control, self.batch
        length, is_probe = control.length(batch), control.is_probe
        num_drafting = min(batch, PROBE_REQUESTS) if is_probe else batch
        had_drafts, drafting = bool(self.lengths and self.lengths[-1]), control.drafts
        is_noted = control.advance(batch, has_newcomers=False)
        seconds = self.true.seconds(batch, length, num_drafting * length)
        seconds += self.start_s * (length > 0 and not had_drafts)
        rates = self.rates(self.now)
        self.now += seconds
        self.num_tokens += batch + num_drafting * (tokens_a_step(rates, length) - 1)
        self.num_probes += is_probe and length > 0
        self.lengths.append(length)
        if is_noted:
            drafted = [(str(i), length, self._num_right(rates, length)) for i in range(batch)]
            outcomes = drafted[:num_drafting] if length else []
            drafts = [(0,) * length] * len(outcomes) + [()] * (batch - len(outcomes))
            chunks = [
                Chunk(i, str(i), 9, 1 + len(ids), samples=True, draft_token_ids=ids)
                for i, ids in enumerate(drafts)
            ]
            is_usual = had_drafts == (length > 0) and len(outcomes) in (0, batch)
            noted = Noted(chunks, set(), 0.0, length > 0, drafting, 0.0, is_usual)
            # Something else has the processor now and then.
            noise = self.rng.uniform(0.95, 1.05) * (4 if self.rng.random() < 0.01 else 1)
            control.observe(noted, noise * seconds, outcomes)

    def _num_right(self, rates: Sequence[float], length: int) -> int:
        for place in range(length):
            if self.rng.random() >= rates[min(place, len(rates) - 1)]:
                return place
        return length

    def speed(self, until: float) -> float:
        """Tokens a second from now on."""
        began, before = self.now, self.num_tokens
        while self.now < until:
            self.step()
        return (self.num_tokens - before) / (self.now - began)

    @property
    def plain(self) -> float:
        return self.batch / self.true.seconds(self.batch, 0, 0)


def constant(*rates: float) -> Rates:
    return lambda now: rates


@pytest.mark.parametrize("batch", [1, 4, 16, 64, 128, 256])
def test_near_the_best_fixed_number_and_never_below_none(batch: int) -> None:
    """Whatever is accepted, after two seconds. What trials and probes lose counts."""
    rng, ratios = random.Random(batch), []
    drawn = [[rng.uniform(0.05, 0.98) for _ in range(rng.randint(1, 5))] for _ in range(12)]
    for seed, rates in enumerate([[0.0], [0.3], [0.95], *drawn]):
        simulated = Simulated(batch, constant(*rates), seed=seed)
        simulated.speed(until=2.0)
        speed = simulated.speed(until=24.0)
        best, length = best_fixed(TRUE, batch, rates)
        assert speed > 0.98 * simulated.plain, rates
        assert speed > 0.94 * best, f"{rates}: {length}, not {simulated.lengths[-5:]}"
        ratios.append(speed / best)
    assert statistics.mean(ratios) > 0.98


@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_change_of_acceptance_is_found_out(batch: int) -> None:
    """Low, high and low again; when the next probe is due is luck."""
    high, found = 0.85, []
    best, _ = best_fixed(TRUE, batch, (high,))
    for seed in range(3):
        simulated = Simulated(batch, lambda now: (high if 10 < now < 40 else 0.05,), seed=seed)
        assert simulated.speed(until=10) > 0.98 * simulated.plain
        simulated.speed(until=24)  # the longest time between two probes
        found.append(simulated.speed(until=40))
        simulated.speed(until=44)
        assert simulated.speed(until=60) > 0.98 * simulated.plain
    assert statistics.median(found) > 0.92 * best


@pytest.mark.parametrize("batch", [1, 64])
def test_where_drafts_never_pay_nearly_all_steps_are_idle(batch: int) -> None:
    """Hardly anything is drafted, timed or decided."""
    simulated = Simulated(batch, constant(0.0))
    simulated.speed(until=20)
    before, num_looked = sum(map(bool, simulated.lengths)), 0
    while simulated.now < 120:
        num_idle = simulated.control.num_idle(batch)
        if num_idle > 0:
            simulated.control.pass_by(batch, num_idle, has_newcomers=False)
            simulated.lengths += [0] * num_idle
            simulated.now += num_idle / simulated.plain * batch
        else:
            simulated.step()
            num_looked += 1
    num_steps = len(simulated.lengths)
    assert num_steps > 15_000
    assert 0 < sum(map(bool, simulated.lengths)) - before < 0.005 * num_steps
    assert num_looked < 0.06 * num_steps


def test_where_nothing_could_pay_nothing_is_probed() -> None:
    hopeless = StepCosts([1], [0, 1, 2], [[1.0], [2.5], [4.0]], is_padded=True)
    simulated = Simulated(1, constant(0.5), hopeless)
    simulated.control = Controller(hopeless, by_request=False)
    simulated.speed(until=5000)
    assert simulated.num_probes == sum(simulated.lengths) == 0


def test_a_table_that_is_far_off_is_found_out() -> None:
    """Everything takes a tenth of what it took at start-up."""
    fast = padded(StepCosts(BATCHES, LENGTHS, [[s / 10 for s in row] for row in H200.taken_s]))
    simulated = Simulated(64, constant(0.9), fast, start_s=0.0002)
    simulated.speed(until=1.0)
    best, _ = best_fixed(fast, 64, (0.9,))
    assert simulated.speed(until=3.0) > 0.97 * best


def test_one_slow_start_is_not_held_against_drafts_for_ever() -> None:
    """The first comparison was far off; it is doubted when the next probes come."""
    simulated = Simulated(16, constant(0.9))
    simulated.control.costs._ratios[False][4].add(4.0)
    simulated.control.costs._ratios[False][-1].add(4.0)
    simulated.speed(until=60.0)
    assert simulated.control.is_on


# ---- drafts from texts --------------------------------------------------------------------------


def texts(costs: StepCosts, rates: dict[Request, float]) -> Controller:
    """A controller that knows how often drafts of these requests are accepted."""
    control = Controller(costs, by_request=True)
    rng = random.Random(0)
    for _ in range(60):
        outcomes = []
        for request, rate in rates.items():
            right = 0
            while right < 4 and rng.random() < rate:
                right += 1
            outcomes.append((request.request_id, 4, right))
        control.acceptance.observe(outcomes, by_request=True)
    return control


COSTS = StepCosts(
    [1, 16, 64], [0, 1, 4], [[10.0, 11.0, 14.0], [10.1, 11.8, 20.0], [10.5, 14.0, 40.0]]
)


def group(count: int) -> list[Request]:
    return [make_request(i) for i in range(count)]


@pytest.mark.parametrize(("rate", "batch", "pays"), [(0.9, 1, True), (0.1, 64, False)])
def test_drafts_pay_where_they_are_right_and_cheap(rate: float, batch: int, pays: bool) -> None:
    requests = group(batch)
    control = texts(COSTS, dict.fromkeys(requests, rate))
    assert any(control.lengths(dict.fromkeys(requests, 4), batch)) == pays


def test_a_request_whose_drafts_are_right_gets_more() -> None:
    requests = group(16)
    control = texts(COSTS, {r: 0.95 if i < 8 else 0.02 for i, r in enumerate(requests)})
    lengths = control.lengths(dict.fromkeys(requests, 4), 16)
    assert min(lengths[:8]) == 4
    assert max(lengths[8:]) == 0


def test_where_steps_are_padded_shorter_drafts_cost_nothing() -> None:
    requests = group(16)
    control = texts(padded(COSTS), {r: 0.9 if i else 0.0 for i, r in enumerate(requests)})
    found = {r: 4 if i < 12 else i % 3 for i, r in enumerate(requests)}
    assert control.lengths(found, 16) == list(found.values())
    assert control.lengths({requests[1]: 4}, 16) == [0], "one does not make up for what all wait"


@pytest.mark.parametrize("batch", [1, 3, 20, 64])
def test_no_uniform_choice_is_clearly_faster(batch: int) -> None:
    requests = group(batch)
    control = texts(COSTS, {r: 0.2 + 0.7 * (i % 5) / 4 for i, r in enumerate(requests)})
    rates = [control.acceptance.of_request(r.request_id) for r in requests]

    def goodput(lengths: Sequence[int]) -> float:
        tokens = batch + sum(
            rate**place for rate, n in zip(rates, lengths, strict=True) for place in range(1, n + 1)
        )
        return tokens / COSTS.seconds(batch, max(lengths), sum(lengths))

    chosen = goodput(control.lengths(dict.fromkeys(requests, 4), batch))
    for other in range(5):
        assert 1.03 * chosen >= goodput([other] * batch)


def test_nothing_is_kept_of_requests_that_are_over() -> None:
    requests = group(2)
    control = texts(COSTS, dict.fromkeys(requests, 0.5))
    for request in requests:
        control.acceptance.drop(request.request_id)
    assert not control.acceptance._requests


# ---- what steps cost ----------------------------------------------------------------------------


def test_costs_between_and_beyond_what_was_measured() -> None:
    assert COSTS.seconds(1, 0, 0) == 10.0
    assert COSTS.seconds(1, 4, 4) == 10.5
    assert COSTS.seconds(16, 1, 16) == 11.8
    assert COSTS.seconds(128, 0, 0) == 28.0
    # Where all steps run alike, it is the number of drafts that counts.
    assert COSTS.seconds(16, 4, 32) == COSTS.seconds(16, 2, 32)
    assert list(COSTS.choices) == [1, 2, 3, 4]
    table = padded(COSTS)
    assert table.seconds(16, 4, 64) == table.seconds(16, 4, 4) == 14.0
    assert table.seconds(16, 2, 32) == 14.0, "there is no graph of two"
    assert list(table.choices) == [1, 4]


def test_steps_of_a_trial_are_timed_and_few_others() -> None:
    control = Controller(TABLE, by_request=False)
    noted = [control.advance(8, has_newcomers=False) for _ in range(32)]
    assert sum(noted) == LOOK + 2 + LOOK
    assert control.in_trial
    assert control.length(8) == 0
    assert all(control.advance(8, has_newcomers=False) for _ in range(LOOK + 2))
    assert not control.in_trial
