"""Preemption by copying out: the whole life of a request that goes to host memory and back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.request import RequestState
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.simulation import Arrival, Simulation

OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["in-step", "overlap"])


def crowd(*, overlap: bool = False, **options: Any) -> Harness:
    """Two requests that need five blocks each, and eight blocks: one has to give way."""
    ticks = itertools.count()
    options = {"num_blocks": 8, "num_swap_blocks": 8, "watermark": 0.0} | options
    harness = Harness(
        async_scheduling=overlap, clock=lambda: float(next(ticks)), max_num_seqs=2, **options
    )
    for name in ("first", "second"):
        harness.add(name, 8, max_tokens=12, ignore_eos=True)
    return harness


def until(harness: Harness, state: RequestState, name: str = "second") -> Any:
    """Step until the request is in this state; the request."""
    for _ in range(100):
        request = harness.core._requests[name]
        if request.state is state:
            return request
        harness.step()
    raise AssertionError(f"{name} never got {state}")


@OVERLAP
@pytest.mark.parametrize("caching", [False, True], ids=["no-cache", "prefix-cache"])
def test_nothing_is_computed_twice(overlap: bool, caching: bool) -> None:
    harness = crowd(overlap=overlap, enable_prefix_caching=caching)
    until(harness, RequestState.SWAPPED)
    stats = harness.core.stats()
    assert (stats.num_swapped, stats.num_running, stats.num_waiting) == (1, 1, 1)
    assert stats.swapped_out_blocks == 8 - stats.num_free_swap_blocks > 0
    harness.run()
    harness.check_outputs()
    stats = harness.core.stats()
    assert stats.num_preemptions >= 1
    assert stats.swapped_in_blocks > 0
    assert stats.recomputed_tokens == 0
    assert stats.num_free_swap_blocks == 8


@OVERLAP
def test_the_blocks_stay_until_they_are_copied(overlap: bool) -> None:
    harness = crowd(overlap=overlap)
    request = until(harness, RequestState.SWAPPED)
    plan = harness.runner.plans[-1]
    if overlap:
        (held,) = request.block_table.layer_groups
        assert [block for block, _ in plan.swap_outs] == held.block_ids
    harness.step(2)
    assert request.block_table.layer_groups == []
    taken = {
        b
        for p in harness.runner.plans[plan.step_id + 1 :]
        for _, _, new in p.new_blocks
        for b in new
    }
    assert taken <= {block for block, _ in plan.swap_outs}


@OVERLAP
@pytest.mark.parametrize("num_steps", range(4))
@pytest.mark.parametrize("end", ["abort", "park", "park and unpark", "park and abort"])
def test_any_end_while_swapped(overlap: bool, num_steps: int, end: str) -> None:
    """Right after it was swapped out, while its copy is in flight, or later."""
    harness = crowd(overlap=overlap)
    request = until(harness, RequestState.SWAPPED)
    harness.step(num_steps)
    if request.state is not RequestState.SWAPPED:
        pytest.skip("it is back already")
    if end == "abort":
        harness.core.abort(["second"])
    else:
        harness.core.park(["second"])
        assert harness.core._requests["second"].state is RequestState.PARKED
    assert request.block_table.swapped is None, "a parked or ended request holds nothing"
    harness.core.check_integrity()
    if end == "park and unpark":
        harness.step()
        harness.core.unpark(["second"])
    elif end == "park and abort":
        harness.step(num_steps)
        harness.core.abort(["second"])
    harness.core.unpark(["second"])
    harness.run()
    harness.check_outputs()
    assert harness.core.stats().num_free_swap_blocks == 8
    if end == "park and unpark":
        assert harness.core.stats().recomputed_tokens > 0, "its progress was given up"


def test_a_stop_token_in_flight_ends_it_outside() -> None:
    """The last token arrives after the request was swapped out: nothing is left to come back."""
    harness = crowd(overlap=True)
    # The step that swaps it out is planned before its last token is seen.
    last = until(harness, RequestState.SWAPPED).token_ids[-1]
    num_steps = harness.core.stats().num_steps
    harness = crowd(overlap=True)
    request = harness.core._requests["second"]
    assert last not in harness.expected("second")[: harness.expected("second").index(last)]
    request.stop_token_ids = frozenset({last})
    harness.step(num_steps)
    assert harness.core.stats().swapped_out_blocks > 0
    assert harness.finished["second"].finish_reason == "stop"
    assert harness.tokens["second"][-1] == last
    assert harness.core.stats().num_free_swap_blocks == 8
    harness.core.check_integrity()
    harness.run()


def test_without_room_outside_it_is_computed_again() -> None:
    harness = crowd(num_swap_blocks=1)
    until(harness, RequestState.PREEMPTED)
    harness.run()
    harness.check_outputs()
    assert harness.core.stats().swapped_out_blocks == 0
    assert harness.core.stats().recomputed_tokens > 0


@pytest.mark.parametrize("is_enough", [False, True])
def test_the_last_of_the_room_outside_is_taken(is_enough: bool) -> None:
    harness = crowd()
    until(harness, RequestState.SWAPPED)
    num_needed = harness.core.stats().swapped_out_blocks
    harness = crowd(num_swap_blocks=num_needed - (not is_enough))
    until(harness, RequestState.SWAPPED if is_enough else RequestState.PREEMPTED)
    harness.run()
    harness.check_outputs()


@pytest.mark.parametrize("shared", [False, True])
def test_what_others_hold_as_well_costs_nothing_to_compute_again(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(num_blocks=12, num_swap_blocks=12, max_num_seqs=2, watermark=0.0)
    asked = []

    def prefers_swap(num_tokens: int, num_blocks: int) -> bool:
        asked.append((num_tokens, num_blocks))
        return False

    monkeypatch.setattr(harness.scheduler._costs, "prefers_swap", prefers_swap)
    for name in ("first", "second"):
        prompt = [7] * 8 + [8 + len(name)] * 8 if shared else 16
        harness.add(name, prompt, max_tokens=20, ignore_eos=True)
    request = until(harness, RequestState.PREEMPTED)
    num_tokens, num_blocks = asked[0]
    assert num_blocks == -(-request.num_once_computed // 4)
    assert num_tokens == (num_blocks * 4 - 8 if shared else request.num_once_computed)


def test_where_copying_is_dear_it_is_computed_again() -> None:
    harness = crowd(swap_s_per_block=1e9)
    until(harness, RequestState.PREEMPTED)
    harness.run()
    assert harness.core.stats().swapped_out_blocks == 0


def test_a_step_may_do_nothing_but_copy() -> None:
    harness = crowd(num_blocks=6, max_model_len=24)
    harness.run()
    harness.check_outputs()
    assert any(plan.swap_outs and not plan.chunks for plan in harness.runner.plans)


@pytest.mark.parametrize("num_prompt_tokens", [1, 9], ids=["one block", "three blocks"])
def test_a_displaced_request_is_swapped_too(num_prompt_tokens: int) -> None:
    ticks = itertools.count()
    harness = Harness(
        policy="priority",
        max_num_seqs=1,
        num_swap_blocks=16,
        priority_aging_s=1e9,
        clock=lambda: float(next(ticks)),
    )
    harness.add("low", num_prompt_tokens, max_tokens=9, ignore_eos=True, priority=5)
    harness.step(3)
    harness.add("high", 9, max_tokens=3, ignore_eos=True, priority=0)
    until(harness, RequestState.SWAPPED, "low")
    until(harness, RequestState.RUNNING, "high")
    harness.run()
    harness.check_outputs()
    assert harness.core.stats().recomputed_tokens == 0


@pytest.mark.parametrize("swap_s_per_block", [0.0002, 0.02], ids=["cheap copies", "dear copies"])
def test_the_choice_follows_the_measured_costs(swap_s_per_block: float) -> None:
    """A token takes 0.2 ms on the simulated device, so a block of 16 takes 3.2 ms."""
    arrivals = [Arrival(0.001 * i, "t", 100 + i, 200) for i in range(16)]
    options: dict[str, Any] = {"forecast_admission": False, "enable_prefix_caching": False}
    simulation = Simulation(
        arrivals,
        num_blocks=80,
        num_swap_blocks=200,
        swap_s_per_block=swap_s_per_block,
        **options,
    ).run()
    stats = simulation.core.stats()
    assert stats.num_preemptions > 0
    swapped, recomputed = stats.swapped_out_blocks > 0, stats.recomputed_tokens > 0
    assert (swapped, recomputed) == ((True, False) if swap_s_per_block < 0.001 else (False, True))
