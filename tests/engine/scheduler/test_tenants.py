from __future__ import annotations

import itertools

from engine.scheduler.queue_limits import Queued
from engine.scheduler.tenants import OTHERS, TenantTotals
from tests.engine.scheduler.harness import Harness
from tests.engine.scheduler.making import make_request

COUNTS = (
    *("cached_tokens", "computed_tokens", "generation_tokens", "num_admitted"),
    *("preemptions_caused", "preemptions_suffered", "queue_time_sum_s"),
)


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
        tenant = totals.of(f"tenant {i}")
        for number, name in enumerate(COUNTS, 1):
            setattr(tenant, name, number)
        tenant.drafts.observe(3, 2)
    stats = totals.stats([], {})
    assert len(stats) == 257
    assert stats[-1].fair_key == OTHERS
    for number, name in enumerate(COUNTS, 1):
        assert sum(getattr(each, name) for each in stats) == 1_000 * number, name
    assert sum(each.num_drafts for each in stats) == 1_000
    assert sum(each.num_draft_tokens for each in stats) == 3_000
    assert sum(each.num_accepted_tokens for each in stats) == 2_000
    assert stats[-1].num_accepted_tokens_per_pos == [744, 744, 0]


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


def test_a_tenant_is_reported_while_its_first_request_waits() -> None:
    harness = Harness(max_num_seqs=1)
    harness.add("runs", 3, max_tokens=2, fair_key="one")
    harness.add("waits", 7, max_tokens=2, fair_key="other")
    harness.step()
    stats = {tenant.fair_key: tenant for tenant in harness.core.stats().tenants}
    assert (stats["other"].num_queued, stats["other"].queued_tokens) == (1, 7)


def test_what_tenants_have_adds_up_to_what_all_have() -> None:
    ticks = itertools.count()
    harness = Harness(num_blocks=10, clock=lambda: float(next(ticks)), draft_hits=0.6)
    for index in range(6):
        prompt = [7] * 9 if index % 2 else 9
        harness.add(f"r{index}", prompt, max_tokens=9, ignore_eos=True, fair_key="ab"[index // 3])
        harness.step(2)
    harness.run()
    stats = harness.core.stats()
    tenants = stats.tenants
    assert [tenant.num_admitted for tenant in tenants] == [3, 3, 0]
    assert sum(tenant.cached_tokens for tenant in tenants) == stats.prefix_cache_hits > 0
    assert sum(tenant.generation_tokens for tenant in tenants) == stats.generation_tokens == 54
    assert sum(tenant.queue_time_sum_s for tenant in tenants) == stats.queue_time_sum_s > 0
    prompts = sum(tenant.cached_tokens + tenant.computed_tokens for tenant in tenants)
    assert prompts == stats.prompt_tokens == 54
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        in_all = getattr(stats, f"spec_decode_{name}")
        assert sum(getattr(tenant, name) for tenant in tenants) == in_all > 0
    for what in ("caused", "suffered"):
        parts = [getattr(tenant, f"preemptions_{what}") for tenant in tenants]
        assert sum(parts) == stats.num_preemptions > 0
