"""The idle class: lines of batches get only what nobody else wants."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import IDLE_PRIORITY
from engine.scheduler.costs import StepTimes
from engine.scheduler.idle import IdleShare
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.making import make_request
from tests.engine.scheduler.simulation import Arrival, Simulation, steady

POLICIES = ("fcfs", "priority", "fair_share")


def lines(count: int, tenant: str = "batch", **options: Any) -> list[Arrival]:
    return [Arrival(0.0, tenant, priority=IDLE_PRIORITY, **options) for _ in range(count)]


@pytest.mark.parametrize("policy", POLICIES)
def test_who_comes_later_is_served_as_if_there_were_no_lines(policy: str) -> None:
    """Rows and blocks are full of lines, more wait, and have waited for ever."""
    live = steady("live", 2.0, 20.0, max_tokens=16)
    options: dict[str, Any] = {"policy": policy, "max_num_seqs": 4, "num_blocks": 24}
    calm = Simulation(live, **options).run().ttfts("live")
    beside = Simulation([*lines(400, max_tokens=64), *live], priority_aging_s=0.001, **options).run(
        20.0
    )
    felt = beside.ttfts("live")
    assert len(felt) == len(calm)
    # A step of lines may be under way, and another one gives its row back.
    assert max(felt) <= max(calm) + 3 * max(
        later - sooner
        for (sooner, _), (later, _) in zip(beside.trace, beside.trace[1:], strict=False)
    )
    assert beside.service("batch") > beside.service("live"), "the rest is theirs"


def test_lines_of_two_tenants_are_served_alike() -> None:
    arrivals = [*lines(300, "a", num_prompt_tokens=64), *lines(200, "b", max_tokens=64)]
    run = Simulation(arrivals, policy="fair_share", fair_share_quantum=64.0).run(5.0)
    assert run.widest_gap("a", "b") < 0.2 * run.service("a")


def test_lines_take_nobodys_place_in_the_queue() -> None:
    harness = Harness(max_num_queued_reqs=2, max_num_seqs=1)
    for number in range(9):
        harness.add(f"line {number}", 8, max_tokens=4, fair_key="a", priority=IDLE_PRIORITY)
    for name in ("one", "two", "three"):
        harness.add(name, 8, max_tokens=4, fair_key="a")
    harness.run()
    harness.check_outputs(errors={"three"})


@pytest.mark.parametrize("policy", POLICIES)
def test_a_line_that_comes_from_another_engine_waits_behind_all(policy: str) -> None:
    harness = Harness(policy=policy, max_num_seqs=1)
    harness.add("line", 8, max_tokens=20, fair_key="a", priority=IDLE_PRIORITY)
    harness.step(3)
    harness.move("line")
    for name in ("one", "two"):
        harness.add(name, 8, max_tokens=4, fair_key="b")
    harness.run()
    harness.check_outputs()
    assert list(harness.finished) == ["one", "two", "line"]


def share(*, token_s: float, step_s: float) -> IdleShare:
    """Where steps take so long, and each token adds so much."""
    costs = StepTimes(0.0)
    for num_tokens in (1, 100, 200):
        costs.observe(num_tokens, step_s + token_s * num_tokens)
    return IdleShare(costs)


def test_what_lines_get_hardly_lengthens_a_step() -> None:
    live = [make_request(number, running=True, num_generated=1) for number in range(10)]
    idle = [
        make_request(
            100 + number, running=True, num_computed_tokens=10, num_generated=1,
            priority=IDLE_PRIORITY,
        )
        for number in range(50)
    ]  # fmt: skip
    cheap = share(token_s=1e-5, step_s=4e-3)
    assert cheap.begin_step([*live, *idle], 0) == live
    order, num_active = cheap.divide([*idle, *live])
    assert (order, num_active) == ([*live, *idle], 10 + 8), "2 % of 4.1 ms"
    costly = share(token_s=1e-3, step_s=1e-3)
    given = 0
    for _ in range(100):
        costly.begin_step([*live, *idle], 0)
        order, num_active = costly.divide([*idle, *live])
        for request in order[10:num_active]:
            costly.spend(request, 1, 0)
        given += num_active - 10
    assert 18 <= given <= 24, "2 % of 100 steps of 11 tokens' time, however little that is in one"


def test_a_prompt_of_a_line_comes_with_anothers_or_alone() -> None:
    live = make_request(0, running=True, num_computed_tokens=10, num_generated=1)
    prompt = make_request(1, num_prompt_tokens=300, priority=IDLE_PRIORITY)
    beside = share(token_s=1e-5, step_s=4e-3)
    beside.begin_step([live], 0)
    assert beside.limit(prompt, 100) == 0
    assert beside.limit(live, 100) == 100
    beside.spend(live, 30, 0)
    assert beside.limit(prompt, 100) == 8
    beside.begin_step([], 1)
    assert beside.limit(prompt, 100) == 0, "somebody waits"
    beside.begin_step([prompt], 0)
    assert beside.limit(prompt, 100) == 100
    assert beside.limit(prompt, 10_000) == 512
    prompt.is_whole = True
    assert beside.limit(prompt, 10_000) == 10_000, "it is computed in one step or never"
