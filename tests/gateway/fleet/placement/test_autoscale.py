"""The number of replicas, over simulated hours."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.placement.autoscale import HEADROOM, Bounds, Load, Meter, Plan, decide
from tenants.shared import EngineRecord

TICK_S = 2.0
HOUR = 3600.0


@dataclass
class Engine:
    """Serves ``rate`` requests/s, each for ``duration_s``, one queue each."""

    name: str
    ready_at: float
    running: deque[float] = field(default_factory=deque)
    """When each ends."""
    waiting: deque[float] = field(default_factory=deque)
    """When each came."""
    num_admitted: int = 0
    queue_time_s: float = 0.0


class Moment(NamedTuple):
    at: float
    num_replicas: int
    load: Load


@dataclass
class Site:
    """A model on engines of ``rows`` requests at once, each of which takes ``duration_s``."""

    bounds: Bounds
    rows: int = 8
    duration_s: float = 4.0
    start_s: float = 20.0
    capacity: int = 8
    """The rows that it reports: more than it has, if its memory is full before."""
    engines: list[Engine] = field(default_factory=list)
    now: float = 0.0
    num_refused: int = 0
    num_started: int = 0
    longest_wait_s: float = 0.0

    def __post_init__(self) -> None:
        self.plan = Plan(self.bounds.min_replicas)
        self.meter = Meter()
        self._resize()
        for engine in self.engines:
            engine.ready_at = 0.0

    @property
    def rate(self) -> float:
        """Requests/s that one engine serves."""
        return self.rows / self.duration_s

    def run(self, arrivals: Callable[[float], int], for_s: float) -> Iterator[Moment]:
        """``arrivals``: how many come in the tick that begins then."""
        end = self.now + for_s
        while self.now < end:
            refused = self._serve(arrivals(self.now))
            self.now += TICK_S
            load = self.meter.measure(self._records(), self.now, is_wanted=refused > 0)
            self.plan = decide(self.bounds, self.plan, load, self.now)
            self._resize()
            yield Moment(self.now, self.plan.num_replicas, load)

    def _serve(self, num_arrivals: int) -> int:
        ready = [engine for engine in self.engines if engine.ready_at <= self.now]
        for number in range(num_arrivals if ready else 0):
            at = self.now + TICK_S * number / num_arrivals
            engine = min(ready, key=lambda one: len(one.running) + len(one.waiting))
            engine.waiting.append(at)
        for engine in ready:
            self._advance(engine)
        return 0 if ready else num_arrivals

    def _advance(self, engine: Engine) -> None:
        end = self.now + TICK_S
        while True:
            while engine.waiting and len(engine.running) < self.rows:
                came = engine.waiting.popleft()
                at = max(came, self.now)
                engine.num_admitted += 1
                engine.queue_time_s += at - came
                self.longest_wait_s = max(self.longest_wait_s, at - came)
                engine.running.append(at + self.duration_s)
            if not engine.running or min(engine.running) > end:
                return
            freed = min(engine.running)
            engine.running.remove(freed)
            if engine.waiting:
                came = engine.waiting.popleft()
                at = max(came, freed)
                engine.num_admitted += 1
                engine.queue_time_s += at - came
                self.longest_wait_s = max(self.longest_wait_s, at - came)
                engine.running.append(at + self.duration_s)

    def _resize(self) -> None:
        while len(self.engines) < self.plan.num_replicas:
            self.num_started += 1
            self.engines.append(Engine(f"e{self.num_started}", self.now + self.start_s))
        while len(self.engines) > self.plan.num_replicas:
            # Drained: its requests move to the others.
            gone = self.engines.pop()
            left = [*gone.waiting, *([self.now] * len(gone.running))]
            for number, came in enumerate(left if self.engines else []):
                self.engines[number % len(self.engines)].waiting.append(came)

    def _records(self) -> list[EngineRecord]:
        return [
            EngineRecord(
                id=engine.name,
                model="m",
                config_hash="",
                text_hash="",
                protocol=1,
                version="",
                capacity=self.capacity,
                epoch=1,
                state="ready" if engine.ready_at <= self.now else "loading",
                num_running=len(engine.running),
                num_waiting=len(engine.waiting),
                num_admitted=engine.num_admitted,
                queue_time_s=engine.queue_time_s,
            )
            for engine in self.engines
        ]


def steadily(per_s: float) -> Callable[[float], int]:
    return lambda now: math.floor((now + TICK_S) * per_s) - math.floor(now * per_s)


def at_random(per_s: float, seed: int) -> Callable[[float], int]:
    """Poisson."""
    rng = random.Random(seed)

    def arrivals(_: float) -> int:
        number, left = 0, TICK_S
        while (left := left - rng.expovariate(per_s)) > 0:
            number += 1
        return number

    return arrivals


def none(_: float) -> int:
    return 0


def num_changes(moments: list[Moment]) -> int:
    pairs = itertools.pairwise(moments)
    return sum(before.num_replicas != after.num_replicas for before, after in pairs)


bounds = st.builds(
    lambda least, more, queue_s, up_s, down_s: Bounds(
        least, max(1, least + more), queue_s, up_s, down_s
    ),
    st.integers(0, 4),
    st.integers(0, 8),
    st.floats(0.1, 10),
    st.floats(1, 60),
    st.floats(1, 600),
)
loads = st.builds(
    Load,
    num_ready=st.integers(0, 9),
    num_running=st.integers(0, 3000),
    num_waiting=st.integers(0, 3000),
    capacity=st.integers(0, 3000),
    arrivals_per_s=st.floats(0, 1000),
    admitted_per_s=st.floats(0, 1000),
    queue_s=st.floats(0, 100),
    is_wanted=st.booleans(),
)


@given(bounds, st.lists(st.tuples(loads, st.floats(0, 100)), max_size=40), st.integers(0, 20))
def test_whatever_the_load_the_bounds_hold(
    bounds: Bounds, course: list[tuple[Load, float]], first: int
) -> None:
    plan, now = Plan(first), 0.0
    for load, after_s in course:
        now += after_s
        before, plan = plan, decide(bounds, plan, load, now)
        assert bounds.min_replicas <= plan.num_replicas <= bounds.max_replicas
        if load.is_wanted:
            assert plan.num_replicas >= 1
        # One decision at most doubles what serves: a spike does not take the whole cluster.
        if plan.num_replicas > max(before.num_replicas, bounds.min_replicas, 1):
            assert plan.num_replicas <= max(load.num_ready + 1, 2 * load.num_ready)


@settings(max_examples=8, deadline=None)
@given(
    share=st.floats(0.05, 5.5),
    least=st.integers(0, 2),
    duration_s=st.floats(1, 20),
    start_s=st.floats(2, 120),
    capacity=st.sampled_from([8, 64]),
)
def test_under_a_constant_load_it_settles(
    share: float, least: int, duration_s: float, start_s: float, capacity: int
) -> None:
    """``share``: of what one replica can serve."""
    bounds = Bounds(least, 8, 2.0, 10.0, 300.0)
    site = Site(bounds, duration_s=duration_s, start_s=start_s, capacity=capacity)
    arrivals = steadily(share * site.rate)
    list(site.run(arrivals, HOUR))
    then = list(site.run(arrivals, 3 * HOUR))
    # After one hour, and after two more, it may try whether fewer will do, step by step until they
    # are too few, and then up again.
    assert num_changes(then) <= 12
    too_few = sum(moment.load.num_ready < math.floor(share) for moment in then)
    assert too_few <= 0.05 * len(then)
    num_replicas = then[-1].num_replicas
    assert num_replicas >= max(least, math.ceil(share - 0.05))
    assert num_replicas <= max(least, 1, math.ceil(share / HEADROOM) + 1)


@pytest.mark.parametrize("share", [0.4, 1.3, 2.6, 4.2])
def test_chance_does_not_make_it_flap(share: float) -> None:
    site = Site(Bounds(1, 8, 2.0, 10.0, 300.0))
    arrivals = at_random(share * site.rate, seed=1)
    list(site.run(arrivals, HOUR))
    site.longest_wait_s = 0.0
    then = list(site.run(arrivals, 3 * HOUR))
    assert num_changes(then) <= 4
    assert site.longest_wait_s < 40


def test_attempts_become_rare() -> None:
    """Engines report 64 rows, and have memory for 8 requests: only trying tells that one is too
    few."""
    site = Site(Bounds(1, 8, 2.0, 10.0, 120.0), capacity=64)
    course = [num_changes(list(site.run(steadily(2.5), 4 * HOUR))) for _ in range(3)]
    assert course[0] > course[1] >= course[2]
    assert course[2] <= 4


def test_it_follows_a_day() -> None:
    """Load comes and goes: replicas do, too, and requests do not wait for long."""
    site = Site(Bounds(1, 8, 2.0, 10.0, 300.0))
    rng = random.Random(7)

    def arrivals(now: float) -> int:
        share = 2.5 - 2.3 * math.cos(2 * math.pi * now / (6 * HOUR))
        return sum(rng.random() < share * site.rate * TICK_S / 40 for _ in range(40))

    moments = list(site.run(arrivals, 12 * HOUR))
    by_hour = [moments[int(hour * HOUR / TICK_S)].num_replicas for hour in (3, 6, 9, 11.9)]
    assert by_hour[0] >= 5
    assert by_hour[1] <= 2
    assert by_hour[2] >= 5
    assert by_hour[3] <= 2
    assert num_changes(moments) <= 40
    assert site.longest_wait_s < 60


def test_a_short_burst_changes_nothing() -> None:
    site = Site(Bounds(1, 8, 2.0, 15.0, 300.0), duration_s=1.0)
    for _ in range(10):
        assert not num_changes(list(site.run(lambda _: 12, TICK_S)))
        assert not num_changes(list(site.run(none, 60.0)))


def test_it_goes_to_zero_and_comes_back() -> None:
    site = Site(Bounds(0, 4, 2.0, 10.0, 60.0), start_s=200.0)
    assert site.plan.num_replicas == 0
    assert {moment.num_replicas for moment in site.run(none, 60.0)} == {0}
    # The first request is refused, and wakes it; loading takes longer than it may be idle.
    wakes = list(site.run(steadily(0.5), 10.0))
    assert wakes[-1].num_replicas == 1
    assert {moment.num_replicas for moment in site.run(none, 190.0)} == {1}
    served = list(site.run(steadily(0.1), 600.0))
    assert {moment.num_replicas for moment in served} == {1}
    assert served[-1].load.num_ready == 1
    idle = list(site.run(none, 200.0))
    assert idle[0].num_replicas == 1
    assert idle[-1].num_replicas == 0


def test_replicas_that_never_come_do_not_stop_others_for_ever() -> None:
    """A replica that finds no place, or dies again and again, counts as one that is on its way;
    but not for ever."""
    bounds = Bounds(1, 8, 2.0, 10.0, 100.0)
    load = Load(2, num_running=16, num_waiting=50, capacity=16, arrivals_per_s=2, admitted_per_s=1)
    assert decide(bounds, Plan(3, busy_since=0.0), load, 99.0).num_replicas == 3
    assert decide(bounds, Plan(3, busy_since=0.0), load, 100.0).num_replicas == 4


def test_requests_that_become_lighter_need_fewer() -> None:
    """What a replica can serve is learnt anew."""
    site = Site(Bounds(1, 8, 2.0, 10.0, 120.0), duration_s=8.0)
    heavy = list(site.run(steadily(4.0), 2 * HOUR))
    assert heavy[-1].num_replicas >= 4
    site.duration_s = 1.0
    light = list(site.run(steadily(4.0), 2 * HOUR))
    assert light[-1].num_replicas <= 2
