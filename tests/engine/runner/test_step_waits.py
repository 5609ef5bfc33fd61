"""A wait ends hardly after its step, and sleeps through most of a step whose length is known: on a
simulated clock, with sleeps that last longer than they were asked to."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.runner.step_waits import AWAKE_S, LONG_S, NAP_S, StepWaits
from engine.scheduler.plan import Chunk, StepPlan

OVERSLEPT_S = 0.0003


@dataclass
class Host:
    """And its device, which computes one step after the other."""

    now: float = 100.0
    slept_s: float = 0.0
    spun_s: float = 0.0
    idle_at: float = 0.0
    """When the device has done all that was launched."""
    waits: StepWaits = field(init=False)

    def __post_init__(self) -> None:
        self.waits = StepWaits(clock=lambda: self.now, sleep=self.sleep)

    def sleep(self, seconds: float) -> None:
        assert 0 < seconds <= NAP_S
        self.now += seconds + OVERSLEPT_S
        self.slept_s += seconds + OVERSLEPT_S

    def launch(self, plan: StepPlan, takes_s: float) -> Step:
        self.idle_at = max(self.idle_at, self.now) + takes_s
        return Step(self, plan, self.now, self.idle_at)


@dataclass
class Step:
    """Is its end, too."""

    host: Host
    plan: StepPlan
    launched_at: float
    ends_at: float

    def query(self) -> bool:
        return self.host.now >= self.ends_at

    def synchronize(self) -> None:
        spun_s = max(0.0, self.ends_at - self.host.now)
        self.host.now += spun_s
        self.host.spun_s += spun_s

    def wait(self) -> float:
        """How late the host knows."""
        due_at = max(self.host.now, self.ends_at)
        self.host.waits.wait(self, self.plan, self.launched_at)
        assert self.query()
        return self.host.now - due_at


def decode(num_seqs: int) -> StepPlan:
    return StepPlan(0, chunks=[_chunk(row, 1) for row in range(num_seqs)])


def prompt(num_tokens: int) -> StepPlan:
    return StepPlan(0, chunks=[_chunk(0, num_tokens)])


def _chunk(row: int, num_tokens: int) -> Chunk:
    return Chunk(
        row=row,
        request_id=f"r{row}",
        num_computed_tokens=0,
        num_scheduled_tokens=num_tokens,
        samples=True,
    )


def run(host: Host, plan: StepPlan, takes_s: float) -> float:
    return host.launch(plan, takes_s).wait()


def test_a_step_like_the_one_before_is_slept_through_but_for_its_end() -> None:
    host = Host()
    run(host, decode(64), 0.006)
    assert host.slept_s == 0
    assert host.spun_s == pytest.approx(0.006)
    host.spun_s = 0.0
    assert run(host, decode(64), 0.006) == 0
    assert AWAKE_S - OVERSLEPT_S <= host.spun_s <= AWAKE_S
    assert host.slept_s + host.spun_s == pytest.approx(0.006)


def test_short_steps_are_not_slept_through() -> None:
    host = Host()
    for takes_s in [0.0002, LONG_S - 1e-6] * 20:
        assert run(host, decode(8), takes_s) == 0
    assert host.slept_s == 0


def test_the_first_step_of_a_kind_is_not_slept_through() -> None:
    host = Host()
    run(host, decode(64), 0.006)
    for plan in (decode(16), decode(80), prompt(64), prompt(80)):
        run(host, plan, 0.02)
        assert host.slept_s == 0
    run(host, decode(66), 0.006)  # hardly more than 64
    assert host.slept_s > 0


def test_a_step_begins_when_the_one_before_ends() -> None:
    host = Host()
    run(host, decode(64), 0.006)
    first, second = host.launch(decode(64), 0.006), host.launch(decode(64), 0.006)
    host.spun_s = 0.0
    assert first.wait() == second.wait() == 0
    assert 2 * (AWAKE_S - OVERSLEPT_S) <= host.spun_s <= 2 * AWAKE_S


def test_a_shorter_step_is_noticed_within_a_nap_and_expected_from_then_on() -> None:
    host = Host()
    run(host, decode(16), 0.012)
    assert 0 < run(host, decode(16), 0.005) <= NAP_S + OVERSLEPT_S
    late = [run(host, decode(16), 0.005) for _ in range(5)]
    assert max(late) <= OVERSLEPT_S


def test_longer_steps_are_believed_step_by_step() -> None:
    host = Host()
    for takes_s in (0.005, 0.015, 0.005):  # the second one had to wait for something
        assert run(host, decode(16), takes_s) <= OVERSLEPT_S + NAP_S
    for _ in range(40):
        assert run(host, decode(16), 0.012) == 0
    host.spun_s = 0.0
    run(host, decode(16), 0.012)
    assert host.spun_s < AWAKE_S + 0.0002


def test_a_step_that_has_ended_is_not_waited_for() -> None:
    host = Host()
    step = host.launch(decode(4), 0.004)
    host.now += 0.010
    assert step.wait() == 0
    run(host, decode(4), 0.004)  # and nothing was learned of it
    assert host.slept_s == 0


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([1, 64, 256]), st.floats(0.0001, 0.03), st.floats(0, 0.01)),
        max_size=60,
    )
)
def test_whatever_comes_a_wait_ends_within_a_nap_of_its_step(
    steps: list[tuple[int, float, float]],
) -> None:
    host = Host()
    for num_seqs, takes_s, busy_s in steps:
        step = host.launch(decode(num_seqs), takes_s)
        host.now += busy_s
        assert step.wait() <= NAP_S + OVERSLEPT_S + 1e-9
