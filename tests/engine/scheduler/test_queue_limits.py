from __future__ import annotations

from contextlib import suppress
from math import log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import QueueFull
from engine.scheduler.queue_limits import QueueLimits
from tests.engine.scheduler.harness import Harness, config


def limits(**options: Any) -> QueueLimits:
    return QueueLimits(config(**options))


@pytest.mark.parametrize(
    ("options", "accepted", "refused"),
    [
        ({"max_num_queued_reqs": 2}, [("a", 9), ("b", 9)], ("c", 1)),
        ({"max_num_queued_tokens": 20}, [("a", 10), ("b", 10)], ("c", 7)),
        ({"max_num_queued_reqs_per_tenant": 1}, [("a", 9), ("b", 9)], ("a", 1)),
        ({"max_num_queued_tokens_per_tenant": 10}, [("a", 6), ("b", 10)], ("a", 5)),
    ],
)
def test_each_limit_refuses_by_its_name(
    options: dict[str, int], accepted: list[tuple[str, int]], refused: tuple[str, int]
) -> None:
    queue = limits(**options)
    for fair_key, num_tokens in accepted:
        queue.enter(fair_key, num_tokens)
    before = (queue.num_reqs, queue.num_tokens)
    with pytest.raises(QueueFull, match=next(iter(options))):
        queue.enter(*refused)
    assert (queue.num_reqs, queue.num_tokens) == before
    queue.leave(*accepted[0])
    queue.enter(*refused)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), max_size=40))
def test_what_entered_and_left_is_forgotten(entries: list[tuple[str, int]]) -> None:
    queue = limits(max_num_queued_tokens_per_tenant=30, max_num_queued_reqs=12)
    entered = []
    for entry in entries:
        try:
            queue.enter(*entry)
        except QueueFull:
            continue
        entered.append(entry)
    assert queue.num_reqs == len(entered)
    assert queue.num_tokens == sum(num_tokens for _, num_tokens in entered)
    for entry in entered:
        queue.leave(*entry)
    assert (queue.num_reqs, queue.num_tokens, queue._tenants) == (0, 0, {})


def test_the_engine_refuses_with_its_own_code() -> None:
    harness = Harness(max_num_queued_reqs=2)
    for name in "abc":
        harness.add(name, 3, max_tokens=2)
    harness.run()
    harness.check_outputs(errors={"c"})
    assert harness.finished["c"].error_code == "queue_full"
    assert "max_num_queued_reqs = 2" in str(harness.finished["c"].error)


def test_one_tenant_does_not_use_up_the_queue_of_another() -> None:
    harness = Harness(max_num_queued_reqs_per_tenant=2, max_num_seqs=1)
    for i in range(5):
        harness.add(f"loud{i}", 3, max_tokens=2, fair_key="loud")
    harness.add("quiet", 3, max_tokens=2, fair_key="quiet")
    harness.run()
    harness.check_outputs(errors={"loud2", "loud3", "loud4"})


def test_a_flood_does_not_get_the_requests_of_others_refused() -> None:
    queue = limits(max_num_queued_reqs=6, max_num_queued_tokens=600)
    for _ in range(6):
        queue.enter("loud", 100)
    with pytest.raises(QueueFull, match="max_num_queued_reqs"):
        queue.enter("loud", 1)
    with pytest.raises(QueueFull, match="max_num_queued_tokens"):
        queue.enter("quiet", 301)
    for _ in range(3):
        queue.enter("quiet", 100)
    with pytest.raises(QueueFull):
        queue.enter("quiet", 1)
    for _ in range(2):
        queue.enter("third", 100)


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=300), st.integers(1, 24))
def test_parts_are_bounded_together(moves: list[tuple[int, bool]], limit: int) -> None:
    queue = limits(max_num_queued_reqs=limit)
    for tenant, leaves in moves:
        if leaves and str(tenant) in queue.by_tenant:
            queue.leave(str(tenant), 1)
            continue
        with suppress(QueueFull):
            queue.enter(str(tenant), 1)
    most = limit * (1 + log(max(1, len(queue.by_tenant))))
    assert queue.num_reqs <= most
    assert len(queue.by_tenant) <= limit


def test_admission_makes_room_and_a_preemption_takes_none() -> None:
    harness = Harness(max_num_queued_reqs=3, num_blocks=8, max_model_len=40)
    for name in "abc":
        harness.add(name, 7, max_tokens=12, ignore_eos=True)
    while harness.core.stats().num_preemptions == 0:
        harness.step()
    for name in "def":
        harness.add(name, 3, max_tokens=2)
    harness.run()
    harness.check_outputs()


def test_an_abort_makes_room() -> None:
    harness = Harness(max_num_queued_reqs=1)
    harness.add("a", 3)
    harness.core.abort(["a"])
    harness.add("b", 3)
    harness.run()
    harness.check_outputs()
