from __future__ import annotations

import pytest

from engine.scheduler.priority import PriorityPolicy
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.making import drain, make_request, names
from tests.engine.scheduler.simulation import Arrival, Simulation, steady

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])


def test_lower_numbers_first_then_arrival() -> None:
    policy = PriorityPolicy(aging_s=1e9)
    for arrival, priority in enumerate([1, 0, -1, 0]):
        policy.enqueue(make_request(arrival, priority=priority))
    assert drain(policy) == ["r2", "r1", "r3", "r0"]


def test_waiting_makes_up_for_a_lower_priority() -> None:
    policy = PriorityPolicy(aging_s=10.0)
    policy.enqueue(make_request(0, priority=1, arrival_s=0.0))
    policy.enqueue(make_request(1, priority=0, arrival_s=9.0))
    policy.enqueue(make_request(2, priority=0, arrival_s=11.0))
    assert drain(policy) == ["r1", "r0", "r2"]


def test_the_least_important_gives_way_first() -> None:
    policy = PriorityPolicy(aging_s=1e9)
    running = [make_request(i, running=True, priority=p) for i, p in enumerate([0, 2, 1, 2])]
    assert names(policy.ranked(running)) == ["r0", "r2", "r1", "r3"]


@OVERLAP
class TestDisplacement:
    def test_a_higher_priority_takes_the_row_of_a_lower_one(self, overlap: bool) -> None:
        harness = Harness(policy="priority", max_num_seqs=2, async_scheduling=overlap)
        harness.add("low", 3, max_tokens=30, priority=2, ignore_eos=True)
        harness.add("mid", 3, max_tokens=30, priority=1, ignore_eos=True)
        harness.step(3)
        harness.add("high", 3, max_tokens=4, priority=0, ignore_eos=True)
        harness.step(3)
        assert set(harness.scheduler.running) == {"mid", "high"}
        assert harness.core.stats().num_preemptions == 1
        harness.run()
        harness.check_outputs()

    def test_one_token_of_a_step_is_enough_to_take_a_row(self, overlap: bool) -> None:
        harness = Harness(
            policy="priority", max_num_seqs=2, max_num_batched_tokens=3, async_scheduling=overlap
        )
        for name in ("one", "two"):
            harness.add(name, 1, max_tokens=30, priority=1, ignore_eos=True)
        harness.step(3)
        harness.add("high", 3, max_tokens=4, priority=0, ignore_eos=True)
        harness.step(3)
        assert set(harness.scheduler.running) == {"one", "high"}
        harness.run()
        harness.check_outputs()

    def test_a_higher_priority_takes_the_blocks_of_lower_ones(self, overlap: bool) -> None:
        harness = Harness(
            policy="priority", num_blocks=12, max_model_len=48, async_scheduling=overlap
        )
        for name in ("low1", "low2"):
            harness.add(name, 20, max_tokens=3, priority=1, ignore_eos=True)
        harness.step()
        harness.add("high", 30, max_tokens=2, priority=0, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        assert next(iter(harness.finished)) == "high"

    def test_nobody_is_displaced_in_vain(self, overlap: bool) -> None:
        harness = Harness(
            policy="priority", num_blocks=12, max_model_len=48, async_scheduling=overlap
        )
        harness.add("top", 24, max_tokens=5, priority=-1, ignore_eos=True)
        harness.add("low", 8, max_tokens=5, priority=1, ignore_eos=True)
        harness.step()
        harness.add("high", 40, max_tokens=2, priority=0, ignore_eos=True)
        harness.step(3)
        assert set(harness.scheduler.running) == {"top", "low"}, "low alone has too few blocks"
        harness.run()
        harness.check_outputs()

    def test_equals_do_not_displace_each_other(self, overlap: bool) -> None:
        harness = Harness(policy="priority", max_num_seqs=1, async_scheduling=overlap)
        harness.add("a", 3, max_tokens=9, ignore_eos=True)
        harness.step()
        harness.add("b", 3, max_tokens=9, ignore_eos=True)
        harness.run()
        assert list(harness.finished) == ["a", "b"]
        assert harness.core.stats().num_preemptions == 0

    def test_the_displaced_one_keeps_its_place(self, overlap: bool) -> None:
        harness = Harness(policy="priority", max_num_seqs=1, async_scheduling=overlap)
        harness.add("first", 3, max_tokens=9, priority=1, ignore_eos=True)
        harness.add("second", 3, max_tokens=9, priority=1, ignore_eos=True)
        harness.step(2)
        harness.add("high", 3, max_tokens=2, priority=0, ignore_eos=True)
        harness.run()
        harness.check_outputs()
        assert list(harness.finished) == ["high", "first", "second"]

    def test_an_aborted_claimant_displaces_nobody(self, overlap: bool) -> None:
        harness = Harness(policy="priority", max_num_seqs=1, async_scheduling=overlap)
        harness.add("low", 3, max_tokens=9, priority=1, ignore_eos=True)
        harness.step()
        harness.add("high", 3, max_tokens=2, priority=0, ignore_eos=True)
        harness.step()
        before = harness.core.stats().num_preemptions
        harness.core.abort(["high"])
        harness.run()
        assert harness.core.stats().num_preemptions == before


def test_nothing_waits_for_ever_behind_a_flood() -> None:
    flood = steady("flood", 60, 40, priority=0)
    simulation = Simulation(
        [*flood, Arrival(1.0, "low", priority=1)], policy="priority", priority_aging_s=3.0
    ).run(40)
    (ttft,) = simulation.ttfts("low")
    # The flood outgrows the engine, so the queue is ever longer; aging gives it a level in 3 s,
    # after which it stands before all that came later than that.
    assert 0 < ttft < 15
    (outcome,) = (o for o in simulation.outcomes.values() if o.arrival.tenant == "low")
    assert outcome.finished_s is not None, "admitted by age, it must not be displaced for ever"


@pytest.mark.nightly
def test_without_aging_it_would() -> None:
    flood = steady("flood", 60, 40, priority=0)
    simulation = Simulation(
        [*flood, Arrival(1.0, "low", priority=1)], policy="priority", priority_aging_s=1e9
    ).run(40)
    assert simulation.ttfts("low") == []
