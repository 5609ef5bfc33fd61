from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler.fair_share import Account, FairSharePolicy
from tests.engine.scheduler.harness import Harness, config
from tests.engine.scheduler.making import claims, drain, held, make_request, names

if TYPE_CHECKING:
    from engine.request import Request


class Matches:
    """A prefix cache of numbers."""

    def __init__(self) -> None:
        self.of: dict[str, int] = {}
        self.num_asked = 0

    def __call__(self, request: Request) -> int:
        self.num_asked += 1
        return self.of.get(request.request_id, 0)


def make_policy(matches: Matches | None = None, **options: Any) -> FairSharePolicy:
    options.setdefault("fair_share_quantum", 0.0)
    return FairSharePolicy(config(policy="fair_share", **options), matches or Matches(), 64)


def counter(policy: FairSharePolicy, tenant: str, priority: int = 0) -> float:
    return policy._classes[priority].accounts[tenant].counter


class TestOrder:
    def test_priority_classes_come_before_fairness(self) -> None:
        policy = make_policy(priority_aging_s=1e9)
        low = make_request(0, fair_key="idle", priority=1)
        high = make_request(1, fair_key="busy", priority=0)
        policy.enqueue(low)
        policy.enqueue(high)
        policy.charge_output(high, 1000)
        assert drain(policy) == ["r1", "r0"]

    def test_who_waited_long_competes_in_the_class_above(self) -> None:
        policy = make_policy(priority_aging_s=10.0)
        old = make_request(0, fair_key="a", priority=1, arrival_s=0.0)
        policy.enqueue(old)
        policy.enqueue(make_request(1, fair_key="b", priority=0, arrival_s=11.0))
        policy.enqueue(make_request(2, fair_key="b", priority=0, arrival_s=12.0))
        assert policy.head() is not None
        assert old.priority == 0
        policy.charge_output(make_request(3, fair_key="b"), 1)
        assert drain(policy) == ["r0", "r1", "r2"]

    def test_no_age_is_a_way_past_other_tenants(self) -> None:
        """Whoever asks for a later class and waits is served by its tenant's account all the
        same."""
        policy = make_policy(priority_aging_s=10.0)
        runs = make_request(0, fair_key="flood", priority=0, arrival_s=0.0)
        policy.enqueue(runs)
        policy.admit(runs)
        for arrival in range(1, 5):
            policy.enqueue(make_request(arrival, fair_key="flood", priority=1, arrival_s=-100.0))
        policy.enqueue(make_request(9, fair_key="new", arrival_s=100.0))
        assert policy.head() is not None
        policy.charge_output(runs, 1)
        assert drain(policy)[0] == "r9"


@given(st.permutations(range(40)), st.lists(st.integers(0, 39), max_size=60))
def test_candidates_are_the_oldest_whoever_comes_and_goes(
    arrivals: list[int], choices: list[int]
) -> None:
    account, requests = Account(0.0), [make_request(arrival) for arrival in range(40)]
    waiting = set(arrivals[:25])
    for arrival in arrivals[:25]:
        account.push(requests[arrival])
    for choice in choices:
        found = [request.arrival for request in account.candidates()]
        assert found == sorted(waiting)[: len(found)]
        assert bool(found) == bool(waiting)
        if choice in waiting:
            waiting.remove(choice)
            account.remove(requests[choice])
        else:
            waiting.add(choice)
            account.push(requests[choice])


def test_one_search_serves_several_admissions(monkeypatch: pytest.MonkeyPatch) -> None:
    account, num_searches = Account(0.0), 0
    search = account.waiting.first

    def counting(count: int) -> list[Request]:
        nonlocal num_searches
        num_searches += 1
        return search(count)

    monkeypatch.setattr(account.waiting, "first", counting)
    requests = [make_request(arrival) for arrival in range(40)]
    for request in requests:
        account.push(request)
    for number, request in enumerate(requests[:30]):
        assert account.candidates() == requests[number : number + 4]
        account.remove(request)
        account.push(make_request(100 + number))  # younger than all that were looked up
    assert num_searches == 3


def test_the_spread_is_that_of_who_waits() -> None:
    policy = make_policy()
    assert policy.spread() == 0
    poor, rich, gone = (make_request(i, fair_key=key) for i, key in enumerate("abc"))
    for request in (poor, rich, gone):
        policy.enqueue(request)
    policy.charge_output(rich, 5)
    policy.charge_output(gone, 500)
    assert policy.spread() == 1000
    policy.dequeue(gone)
    assert policy.spread() == 10
    for request in (poor, rich):
        policy.dequeue(request)
    assert policy.spread() == 0


class TestCharges:
    def test_each_kind_of_token_has_its_price(self) -> None:
        policy = make_policy()
        request = make_request(0, fair_key="a", weight=2.0)
        policy.enqueue(request)
        policy.charge_prompt(request, 100, 0)
        assert counter(policy, "a") == pytest.approx(50.0)
        policy.charge_prompt(request, 0, 100)
        assert counter(policy, "a") == pytest.approx(55.0)
        policy.charge_output(request, 10)
        assert counter(policy, "a") == pytest.approx(65.0)

    def test_the_prices_are_settings(self) -> None:
        policy = make_policy(
            fair_share_input_cost=3.0, fair_share_output_cost=5.0, fair_share_cached_cost=0.5
        )
        request = make_request(0, fair_key="a")
        policy.enqueue(request)
        policy.charge_prompt(request, 100, 10)
        assert counter(policy, "a") == pytest.approx(305.0)
        policy.charge_output(request, 7)
        assert counter(policy, "a") == pytest.approx(340.0)

    def test_the_engine_charges_what_it_computes_and_not_what_it_recomputes(self) -> None:
        harness = Harness(policy="fair_share", num_blocks=8, max_model_len=40, max_num_seqs=3)
        for name in "abc":
            harness.add(name, 7, max_tokens=12, ignore_eos=True, fair_key=name)
        harness.run()
        assert harness.core.stats().num_preemptions > 0
        for name in "abc":
            assert counter(harness.scheduler.policy, name) == pytest.approx(7 + 2 * 12)

    def test_cached_tokens_are_cheaper(self) -> None:
        harness = Harness(policy="fair_share")
        for name in "ab":
            harness.add(name, list(range(10, 22)), max_tokens=1, fair_key=name)
            harness.run()
        policy = harness.scheduler.policy
        # b pays for 1 computed and 11 cached tokens and one generated, on top of the lift to a.
        assert counter(policy, "a") == pytest.approx(12 + 2)
        assert counter(policy, "b") == pytest.approx(14 + 1 + 1.1 + 2)

    def test_an_aborted_request_keeps_what_it_used(self) -> None:
        harness = Harness(policy="fair_share")
        harness.add("a", 7, max_tokens=12, ignore_eos=True, fair_key="a")
        harness.step(3)
        harness.core.abort(["a"])
        harness.run()
        assert counter(harness.scheduler.policy, "a") == pytest.approx(7 + 2 * 3)


class TestLift:
    def test_who_joins_a_queue_starts_at_its_least_counter(self) -> None:
        policy = make_policy()
        busy = make_request(0, fair_key="busy")
        policy.enqueue(busy)
        policy.charge_output(busy, 500)
        policy.enqueue(make_request(1, fair_key="new"))
        assert counter(policy, "new") == 1000

    def test_who_joins_an_empty_queue_starts_at_the_last_that_left(self) -> None:
        policy = make_policy()
        busy = make_request(0, fair_key="busy")
        policy.enqueue(busy)
        policy.dequeue(busy)
        policy.charge_output(busy, 500)
        policy.enqueue(make_request(1, fair_key="new"))
        assert counter(policy, "new") == 1000

    def test_who_comes_back_has_saved_nothing_up(self) -> None:
        policy = make_policy()
        idle, busy = make_request(0, fair_key="idle"), make_request(1, fair_key="busy")
        for request in (idle, busy):
            policy.enqueue(request)
        policy.dequeue(idle)
        policy.charge_output(idle, 1)
        policy.charge_output(busy, 500)
        policy.enqueue(make_request(2, fair_key="idle"))
        assert counter(policy, "idle") == counter(policy, "busy") == 1000

    def test_debts_outlive_the_forgetting_of_tenants(self) -> None:
        policy = make_policy()
        first, last = make_request(0, fair_key="debtor"), make_request(1, fair_key="last")
        for request in (first, last):
            policy.enqueue(request)
            policy.dequeue(request)
        policy.charge_output(first, 500)
        for arrival in range(2, 3_000):
            request = make_request(arrival, fair_key=f"t{arrival}")
            policy.enqueue(request)
            policy.dequeue(request)
        assert len(policy._classes[0].accounts) < 2_500
        policy.enqueue(make_request(3_000, fair_key="debtor"))
        assert counter(policy, "debtor") == 1000

    def test_a_debt_is_not_forgiven(self) -> None:
        policy = make_policy()
        one, two = make_request(0, fair_key="a"), make_request(1, fair_key="b")
        policy.enqueue(one)
        policy.enqueue(two)
        policy.dequeue(one)
        policy.charge_output(one, 500)
        policy.enqueue(make_request(2, fair_key="a"))
        assert counter(policy, "a") == 1000
        assert drain(policy) == ["r1", "r2"]

    def test_coming_back_from_a_preemption_is_not_joining(self) -> None:
        policy = make_policy()
        one, two = make_request(0, fair_key="a"), make_request(1, fair_key="b")
        policy.enqueue(one)
        policy.enqueue(two)
        policy.admit(one)
        policy.charge_output(two, 500)
        one.is_new = False
        policy.enqueue(one)
        policy.leave(one)
        assert counter(policy, "a") == 0
        assert policy.spread() == 1000

    def test_coming_back_from_a_park_is_joining(self) -> None:
        """Who stops reading has saved nothing up when it reads again."""
        harness = Harness(policy="fair_share", max_num_seqs=1)
        harness.add("a", 3, max_tokens=30, ignore_eos=True, fair_key="a")
        harness.step()
        harness.core.park(["a"])
        for name in ("runs", "waits"):
            harness.add(name, 9, max_tokens=30, ignore_eos=True, fair_key="b")
        harness.step(9)
        harness.core.unpark(["a"])
        policy = harness.scheduler.policy
        assert counter(policy, "a") == counter(policy, "b") > 9

    def test_who_joins_is_not_above_those_who_run(self) -> None:
        """Not even if a tenant that received more was the last to leave."""
        policy = make_policy()
        runs, gone = make_request(0, fair_key="runs"), make_request(1, fair_key="gone")
        for request in (runs, gone):
            policy.enqueue(request)
            policy.admit(request)
        policy.charge_output(runs, 100)
        policy.charge_output(gone, 500)
        policy.leave(gone)
        policy.enqueue(make_request(2, fair_key="new"))
        assert counter(policy, "new") == counter(policy, "runs") == 200

    def test_who_still_runs_one_of_two_counts_among_those_who_run(self) -> None:
        policy = make_policy()
        requests = [make_request(i, fair_key=key) for i, key in enumerate(("a", "a", "rich"))]
        for request in requests:
            policy.enqueue(request)
            policy.admit(request)
        policy.charge_output(requests[2], 100)
        policy.leave(requests[0])
        policy.enqueue(make_request(3, fair_key="b"))
        assert counter(policy, "b") == counter(policy, "a") == 0


class TestVictims:
    def test_the_tenant_furthest_above_its_share_loses_its_least_work(self) -> None:
        policy = make_policy()
        running = [
            make_request(i, fair_key=key, running=True, num_computed_tokens=computed)
            for i, (key, computed) in enumerate([("a", 5), ("b", 50), ("b", 20), ("a", 90)])
        ]
        policy.charge_output(running[1], 100)
        assert names(policy.ranked(running)) == ["r3", "r0", "r1", "r2"]

    def test_a_lower_class_gives_way_before_a_poorer_tenant(self) -> None:
        policy = make_policy()
        high = held(0, "a", 8, priority=0)
        low = held(1, "b", 1, priority=1)
        policy.charge_output(high, 100)
        assert names(policy.ranked([low, high])) == ["r0", "r1"]
        assert claims(policy, [low, high]) == []
        policy.enqueue(make_request(2, fair_key="c", priority=0))
        assert claims(policy, [low, high])[0] == ("r2", ["r1"])

    def test_who_holds_most_gives_way_first(self) -> None:
        """Even if a newcomer was charged for its prompt just now."""
        policy = make_policy()
        running = [
            make_request(i, fair_key=key, running=True, num_computed_tokens=9, num_blocks=blocks)
            for i, (key, blocks) in enumerate([("a", 20), ("b", 2), ("a", 9)])
        ]
        policy.charge_prompt(running[1], 500, 0)
        assert names(policy.ranked(running)) == ["r1", "r0", "r2"]

    def test_the_oldest_that_got_no_further_since_it_gave_way_is_the_last_to_do_so_again(
        self,
    ) -> None:
        policy = make_policy()
        running = [held(0, "a", 20), held(1, "a", 20), held(2, "b", 2), held(3, "a", 9)]
        for request in running[1:]:
            request.num_once_computed = request.num_computed_tokens
        assert names(policy.ranked(running)) == ["r1", "r2", "r0", "r3"]
        running[1].num_computed_tokens += 1
        assert names(policy.ranked(running)) == ["r2", "r1", "r0", "r3"]

    def test_of_equals_the_last_to_arrive_gives_way_first(self) -> None:
        running = [make_request(i, fair_key="a", running=True) for i in (2, 0, 1)]
        assert names(make_policy().ranked(running)) == ["r0", "r1", "r2"]


class TestPrefixes:
    def test_the_longest_match_goes_first_while_deficit_is_left(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=100.0)
        for i, key in enumerate("ab"):
            policy.enqueue(make_request(i, fair_key=key))
        matches.of = {"r1": 64}
        assert policy.head().request_id == "r1"  # type: ignore[union-attr]
        policy.charge_output(make_request(1, fair_key="b"), 50)
        assert policy.head().request_id == "r1", "b is 100 above a"  # type: ignore[union-attr]
        policy.charge_output(make_request(1, fair_key="b"), 1)
        assert policy.head().request_id == "r0", "b is 102 above a"  # type: ignore[union-attr]

    def test_without_a_quantum_the_cache_is_not_asked(self) -> None:
        matches = Matches()
        policy = make_policy(matches)
        for i, key in enumerate("ab"):
            policy.enqueue(make_request(i, fair_key=key))
        matches.of = {"r1": 64}
        assert drain(policy) == ["r0", "r1"]
        assert matches.num_asked == 0

    def test_who_joins_is_compared_at_once(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=100.0)
        policy.enqueue(make_request(0, fair_key="a"))
        assert names([head for head in [policy.head()] if head]) == ["r0"]
        matches.of = {"r1": 64}
        policy.enqueue(make_request(1, fair_key="a"))
        assert drain(policy) == ["r1", "r0"]

    def test_who_is_alone_is_not_compared(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=100.0)
        policy.enqueue(make_request(0, fair_key="a"))
        assert drain(policy) == ["r0"]
        assert matches.num_asked == 0

    def test_a_tenant_is_compared_once_however_much_it_asks_for(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=100.0)
        for i, key in enumerate("aaaaab"):
            policy.enqueue(make_request(i, fair_key=key))
        matches.of = {"r5": 64}
        assert drain(policy)[0] == "r5"

    def test_of_equal_matches_the_least_served_oldest_goes_first(self) -> None:
        policy = make_policy(fair_share_quantum=100.0)
        for i, key in enumerate("aab"):
            policy.enqueue(make_request(i, fair_key=key))
        assert drain(policy) == ["r0", "r1", "r2"]

    def test_a_request_is_not_overtaken_for_ever(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=1e9)
        policy.enqueue(make_request(0, fair_key="a"))
        for arrival in range(1, 100):
            request = make_request(arrival, fair_key="a")
            matches.of[request.request_id] = 64
            policy.enqueue(request)
        assert drain(policy).index("r0") <= 8

    def test_overtakes_are_counted_anew_for_the_next_in_line(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=1e9)
        for arrival in range(3):
            policy.enqueue(make_request(arrival, fair_key="a"))
        matches.of = {"r2": 64}
        order = []
        for _ in range(18):
            request = policy.head()
            assert request is not None
            order.append(request.request_id)
            policy.dequeue(request)
            if request.request_id == "r2":  # It is always preempted, and comes back.
                request.is_new = False
                policy.enqueue(request)
        assert order == [*["r2"] * 8, "r0", *["r2"] * 8, "r1"]

    def test_few_requests_are_compared_however_many_wait(self) -> None:
        matches = Matches()
        policy = make_policy(matches, fair_share_quantum=1e9)
        for i in range(2_000):
            policy.enqueue(make_request(i, fair_key=str(i % 50)))
        matches.num_asked = 0
        policy.head()
        assert matches.num_asked <= 16


class TestMemory:
    @pytest.mark.parametrize("runs", [False, True])
    def test_idle_tenants_without_debt_are_forgotten(self, runs: bool) -> None:
        policy = make_policy()
        for i in range(2_500):
            request = make_request(i, fair_key=f"tenant {i}")
            policy.enqueue(request)
            if runs:
                policy.admit(request)
                policy.leave(request)
            else:
                policy.dequeue(request)
        assert len(policy._classes[0].accounts) <= 1024
        assert not any(policy._live.values())

    def test_idle_classes_are_forgotten(self) -> None:
        policy = make_policy()
        for i in range(1_000):
            request = make_request(i, priority=i)
            policy.enqueue(request)
            policy.dequeue(request)
        assert len(policy._classes) < 100

    def test_the_debts_of_a_few_idle_classes_are_remembered(self) -> None:
        policy = make_policy()
        debtor = make_request(0, fair_key="a", priority=7)
        policy.enqueue(debtor)
        policy.dequeue(debtor)
        policy.charge_output(debtor, 100)
        for priority in range(5):
            policy.enqueue(make_request(1 + priority, priority=priority))
        assert counter(policy, "a", priority=7) == 200

    def test_a_class_that_somebody_waits_in_is_remembered(self) -> None:
        policy = make_policy(priority_aging_s=1e9)
        waiting = [make_request(i, fair_key=key, priority=5) for i, key in enumerate("ab")]
        for request in waiting:
            policy.enqueue(request)
        policy.charge_output(waiting[0], 100)
        for i in range(2, 200):
            request = make_request(i, priority=10 + i)
            policy.enqueue(request)
            policy.dequeue(request)
        assert policy.spread() == 200
        assert drain(policy) == ["r1", "r0"]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["enqueue", "dequeue", "abort", "charge"]), st.integers(0, 4)),
    max_size=120,
)


@given(OPERATIONS)
def test_the_head_always_belongs_to_a_least_counter(operations: list[tuple[str, int]]) -> None:
    policy = make_policy()
    waiting: list[Request] = []
    for arrival, (operation, number) in enumerate(operations):
        if operation == "enqueue":
            request = make_request(arrival, fair_key=str(number))
            policy.enqueue(request)
            waiting.append(request)
        elif operation == "charge":
            policy.charge_output(make_request(arrival, fair_key=str(number)), number * 7 + 1)
        elif waiting:
            head = policy.head() if operation == "dequeue" else waiting[number % len(waiting)]
            assert head is not None
            request = head
            policy.dequeue(request)
            waiting.remove(request)
        assert len(policy) == len(waiting)
        assert policy.is_contended == (len({r.fair_key for r in waiting}) > 1)
        head = policy.head()
        if not waiting:
            assert head is None
        else:
            assert head is not None
            counters = {r.fair_key: counter(policy, r.fair_key) for r in waiting}
            assert counters[head.fair_key] == min(counters.values())
            assert head.arrival == min(r.arrival for r in waiting if r.fair_key == head.fair_key)
            assert policy.spread() == max(counters.values()) - min(counters.values())
