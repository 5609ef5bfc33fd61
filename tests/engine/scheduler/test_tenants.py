from __future__ import annotations

from engine.scheduler.queue_limits import Queued
from engine.scheduler.tenants import OTHERS, TenantTotals
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.making import make_request


def test_gauges_and_totals() -> None:
    totals = TenantTotals()
    totals.of("a").generation_tokens += 5
    totals.of("b").cached_tokens += 3
    running = [make_request(0, fair_key="a"), make_request(1, fair_key="a")]
    stats = {tenant.fair_key: tenant for tenant in totals.stats(running, {"b": Queued(4, 70)})}
    assert (stats["a"].num_running, stats["a"].num_queued, stats["a"].generation_tokens) == (
        2,
        0,
        5,
    )
    assert (stats["b"].num_running, stats["b"].num_queued, stats["b"].cached_tokens) == (0, 4, 3)
    assert (stats["a"].queued_tokens, stats["b"].queued_tokens) == (0, 70)
    assert stats[OTHERS].generation_tokens == 0


def test_their_number_is_bounded_and_nothing_is_lost() -> None:
    totals = TenantTotals()
    for i in range(1_000):
        totals.of(f"tenant {i}").generation_tokens += 1
    stats = totals.stats([], {})
    assert len(stats) == 257
    assert sum(tenant.generation_tokens for tenant in stats) == 1_000
    assert stats[-1].fair_key == OTHERS


def test_a_preemption_names_who_caused_it_and_who_suffers() -> None:
    harness = Harness(policy="priority", max_num_seqs=1)
    harness.add("low", 3, max_tokens=9, priority=1, fair_key="patient", ignore_eos=True)
    harness.step(2)
    harness.add("high", 3, max_tokens=2, priority=0, fair_key="urgent", ignore_eos=True)
    harness.run()
    stats = {tenant.fair_key: tenant for tenant in harness.core.stats().tenants}
    assert stats["urgent"].preemptions_caused == stats["patient"].preemptions_suffered == 1
    assert stats["urgent"].preemptions_suffered == stats["patient"].preemptions_caused == 0
    assert stats["patient"].computed_tokens == 3, "computing again is nobody's service"
