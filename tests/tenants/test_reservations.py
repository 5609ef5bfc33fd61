"""Reserve, extend, settle: one contract for both stores, on a clock moved by hand. ``test_slots``
has what is about slots and the queue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants.errors import ObjectNotFound
from tenants.limits import Balance, Limits, MonthLeft, Price, QuotaAnswer, ScopePolicy, Window
from tenants.store import Store
from tenants.types import ApiKey, Principal
from tests.ledger import usage_totals
from tests.memory_store.store import MemoryStore
from tests.tenants.reserving import LEASE, MINUTE_US, Clock, ask, limited, put, settle
from tests.tenants.samples import make_key

pytestmark = pytest.mark.asyncio


class TestPolicies:
    async def test_put_replaces_and_list_shows(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "key", requests_per_minute=5)
        everything = {
            "requests_per_minute": 1,
            "tokens_per_minute": 2**31 - 1,
            "max_concurrent": 3,
            "max_queued": 0,
            "monthly_tokens": 10**15,
            "monthly_cost_micro": 0,
            "priority": -32767,
            "weight": 0.25,
        }
        await put(timed, who, "tenant", **everything)
        await put(timed, who, "key", weight=2.0)
        assert await timed.list_limits(who.tenant.id) == [
            ScopePolicy(
                scope_kind="tenant",
                scope_id=who.tenant.id,
                limits=Limits(**everything),  # type: ignore[arg-type]
            ),
            ScopePolicy(scope_kind="key", scope_id=who.key.id, limits=Limits(weight=2.0)),
        ]

    async def test_scopes_of_others_are_not_found(self, timed: Store) -> None:
        _, one = await make_key(timed, "one")
        _, two = await make_key(timed, "two")
        for kind, scope_id in [
            ("tenant", two.tenant.id),
            ("project", two.key.project_id),
            ("key", two.key.id),
            ("key", one.key.project_id),
            ("tenant", uuid4()),
        ]:
            with pytest.raises(ObjectNotFound, match=str(scope_id)):
                await timed.put_limits(one.tenant.id, kind, scope_id, Limits())  # type: ignore[arg-type]
        assert await timed.list_limits(one.tenant.id) == []
        assert await timed.list_limits(two.tenant.id) == []


class TestRates:
    async def test_all_that_fits_and_nothing_more(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, requests_per_minute=3)
        answers = [await timed.reserve(ask(key)) for _ in range(4)]
        assert [answer.state for answer in answers] == ["running"] * 3 + ["refused"]
        assert answers[3] == QuotaAnswer(
            state="refused",
            refused_by="requests",
            scope_kind="tenant",
            wait_us=MINUTE_US // 3,
            requests=Window(limit=3, remaining=0, reset_us=MINUTE_US),
        )
        clock.advance(microseconds=MINUTE_US // 3 - 1)
        assert (await timed.reserve(ask(key))).wait_us == 1
        clock.advance(microseconds=1)
        assert (await timed.reserve(ask(key))).state == "running"
        assert (await timed.reserve(ask(key))).state == "refused"

    async def test_headers_tell_the_truth(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, requests_per_minute=60, tokens_per_minute=600)
        answer = await timed.reserve(ask(key, prompt=100, completion=50))
        assert answer.requests == Window(limit=60, remaining=59, reset_us=1_000_000)
        assert answer.tokens == Window(limit=600, remaining=450, reset_us=15_000_000)
        clock.advance(seconds=5)
        refused = await timed.reserve(ask(key, prompt=500, completion=1))
        assert refused.refused_by == "tokens"
        assert refused.wait_us == 100_000  # one token at ten in a second
        assert refused.tokens == Window(limit=600, remaining=500, reset_us=10_000_000)
        # The promise holds: exactly what remains is admitted.
        assert (await timed.reserve(ask(key, prompt=499, completion=1))).state == "running"

    async def test_headers_tell_of_the_scope_with_the_least_left(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "tenant", requests_per_minute=5, tokens_per_minute=500)
        await put(timed, who, "project", requests_per_minute=9, tokens_per_minute=90)
        await put(timed, who, "key", requests_per_minute=7, tokens_per_minute=700)
        answer = await timed.reserve(ask(who.key))
        assert answer.requests is not None
        assert answer.tokens is not None
        assert (answer.requests.limit, answer.tokens.limit) == (5, 90)

    async def test_all_scopes_or_none(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "tenant", requests_per_minute=100)
        await put(timed, who, "project", tokens_per_minute=1000)
        await put(timed, who, "key", requests_per_minute=1)
        assert (await timed.reserve(ask(who.key))).state == "running"
        refused = await timed.reserve(ask(who.key))
        assert (refused.refused_by, refused.scope_kind) == ("requests", "key")
        await put(timed, who, "key", requests_per_minute=None)
        answer = await timed.reserve(ask(who.key))
        assert answer.requests is not None
        assert answer.tokens is not None
        # Only the two that were admitted have taken from the other scopes.
        assert (answer.requests.remaining, answer.tokens.remaining) == (98, 940)

    async def test_longest_wait_is_told(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "tenant", requests_per_minute=1)
        await put(timed, who, "key", tokens_per_minute=30)
        await timed.reserve(ask(who.key, 10, 5))
        refused = await timed.reserve(ask(who.key, 10, 20))
        assert (refused.refused_by, refused.wait_us) == ("requests", MINUTE_US)

    async def test_prompt_above_the_limit_never_fits(self, timed: Store) -> None:
        key = await limited(timed, tokens_per_minute=100)
        assert (await timed.reserve(ask(key, prompt=99, completion=50))).completion_tokens == 1
        other = await limited(timed, "other", tokens_per_minute=100)
        refused = await timed.reserve(ask(other, prompt=100, completion=1))
        assert (refused.state, refused.refused_by, refused.wait_us) == ("refused", "tokens", None)

    async def test_unused_tokens_come_back(self, timed: Store) -> None:
        key = await limited(timed, tokens_per_minute=100)
        first = ask(key, prompt=10, completion=90)
        assert (await timed.reserve(first)).state == "running"
        assert (await timed.reserve(ask(key, 1, 1))).state == "refused"
        assert await settle(timed, first, completion=5)
        assert (await timed.reserve(ask(key, 10, 75))).state == "running"
        assert (await timed.reserve(ask(key, 1, 1))).state == "refused"

    async def test_extending_goes_into_debt_that_the_next_one_waits_for(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, tokens_per_minute=60)
        first = ask(key, prompt=10, completion=50)
        await timed.reserve(first)
        extended = await timed.extend(
            key.tenant_id, first.request_id, tokens=30, generated=50, lease=LEASE
        )
        assert extended == 30
        assert (await timed.reserve(ask(key, 1, 1))).wait_us == 32_000_000
        await settle(timed, first, completion=80)
        clock.advance(seconds=32)
        assert (await timed.reserve(ask(key, 1, 1))).state == "running"

    async def test_a_clock_that_goes_back_gives_nothing_twice(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, requests_per_minute=60)
        for _ in range(60):
            await timed.reserve(ask(key))
        clock.advance(seconds=10)
        assert (await timed.reserve(ask(key))).state == "running"
        for seconds in (-8, 8):
            clock.advance(seconds=seconds)
            answer = await timed.reserve(ask(key))
            assert answer.requests is not None
            assert answer.requests.remaining == (8 if seconds < 0 else 7)

    async def test_a_limit_that_was_away_begins_anew(self, timed: Store) -> None:
        _, who = await make_key(timed)
        rates = {"requests_per_minute": 2, "tokens_per_minute": 60}
        await put(timed, who, "tenant", **rates)
        for _ in range(2):
            await timed.reserve(ask(who.key))
        await put(timed, who, "tenant")
        await timed.reserve(ask(who.key))
        await put(timed, who, "tenant", **rates)
        answer = await timed.reserve(ask(who.key))
        assert answer.requests is not None
        assert answer.tokens is not None
        assert (answer.requests.remaining, answer.tokens.remaining) == (1, 30)

    async def test_change_of_limits_counts_from_the_change(
        self, timed: Store, clock: Clock
    ) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "tenant", requests_per_minute=60)
        for _ in range(60):
            await timed.reserve(ask(who.key))
        clock.advance(seconds=10)
        await put(timed, who, "tenant", requests_per_minute=600)
        (balance,) = await timed.balances([who.tenant.id])
        assert (balance.month_tokens, balance.month_cost_micro) == (60 * 30, 0), "as before"
        answer = await timed.reserve(ask(who.key))
        assert answer.requests is not None
        assert answer.requests.remaining == 600 - 50 - 1


class TestMonths:
    async def test_slice_ends_with_the_month_s_tokens(self, timed: Store) -> None:
        key = await limited(timed, monthly_tokens=100)
        first = ask(key, prompt=40, completion=50)
        assert (await timed.reserve(first)).completion_tokens == 50
        more = {"generated": 50, "lease": LEASE}
        for granted in (10, 0):
            assert granted == await timed.extend(
                key.tenant_id,
                first.request_id,
                tokens=256,
                **more,  # type: ignore[arg-type]
            )
        refused = await timed.reserve(ask(key, 1, 1))
        assert (refused.refused_by, refused.wait_us) == ("monthly_tokens", None)
        await settle(timed, first, completion=55)
        assert (await timed.reserve(ask(key, 1, 256))).completion_tokens == 4

    async def test_next_month_begins_anew(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, monthly_tokens=100)
        clock.now = datetime(2031, 1, 31, 23, 59, 59, 999999, tzinfo=UTC)
        first = ask(key, prompt=60, completion=40)
        await timed.reserve(first)
        clock.advance(microseconds=1)
        second = ask(key, prompt=60, completion=40)
        assert (await timed.reserve(second)).state == "running"
        # What January held is not given back to February.
        await settle(timed, first, completion=0)
        assert (await timed.reserve(ask(key, 1, 1))).state == "refused"

    async def test_what_is_extended_next_month_is_of_next_months_budget(
        self, timed: Store, clock: Clock
    ) -> None:
        price = Price(prompt=1_000_000, completion=1_000_000)
        for limits in ({"monthly_tokens": 50}, {"monthly_cost_micro": 50}):
            clock.now = datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC)
            key = await limited(timed, str(uuid4()), **limits)
            first = ask(key, prompt=20, completion=30, price=price)
            assert (await timed.reserve(first)).completion_tokens == 30
            clock.advance(seconds=2)
            granted = await timed.extend(
                key.tenant_id, first.request_id, tokens=256, generated=30, lease=LEASE
            )
            assert granted == 50

    async def test_money_is_exact(self, timed: Store) -> None:
        price = Price(prompt=150_000, completion=600_000)  # 0.15 and 0.6 micro-units a token
        key = await limited(timed, monthly_cost_micro=100)
        first = ask(key, prompt=100, completion=256, price=price)
        answer = await timed.reserve(first)
        assert answer.completion_tokens == 141  # (100 - 15) / 0.6 is 141.67
        assert price.cost(100, 0, 141) == 100 < price.cost(100, 0, 142)
        refused = await timed.reserve(ask(key, prompt=1, completion=1, price=price))
        assert (refused.refused_by, refused.wait_us) == ("monthly_cost", None)
        await settle(timed, first, completion=50, cost_micro=price.cost(100, 0, 50))
        second = await timed.reserve(ask(key, prompt=100, completion=256, price=price))
        assert second.completion_tokens == 66  # (55 - 15) / 0.6

    async def test_an_extension_is_paid_for(self, timed: Store) -> None:
        price = Price(completion=2_000_000)
        key = await limited(timed, monthly_cost_micro=100)
        first = ask(key, prompt=10, completion=20, price=price)
        assert (await timed.reserve(first)).completion_tokens == 20
        for tokens, granted in [(10, 10), (256, 20), (1, 0)]:
            assert granted == await timed.extend(
                key.tenant_id, first.request_id, tokens=tokens, generated=20, lease=LEASE
            )
        await settle(timed, first, completion=35, cost_micro=70)
        assert (await timed.reserve(ask(key, price=price))).completion_tokens == 15

    @pytest.mark.parametrize("is_in_use", [True, False])
    @pytest.mark.parametrize(("completion", "left"), [(5, 60), (50, 30)])
    async def test_what_was_used_beyond_a_reservation_of_last_month_counts_in_this_one(
        self, timed: Store, clock: Clock, completion: int, left: int, is_in_use: bool
    ) -> None:
        """What was used less is not given back to it. ``is_in_use``: by another request before."""
        price = Price(prompt=1_000_000, completion=1_000_000)
        for limits in ({"monthly_tokens": 100}, {"monthly_cost_micro": 100}):
            clock.now = datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC)
            key = await limited(timed, str(uuid4()), **limits)
            first = ask(key, prompt=10, completion=20, price=price)
            await timed.reserve(first)
            clock.advance(seconds=2)
            if is_in_use:
                await timed.reserve(ask(key, prompt=10, completion=20, price=price))
            await settle(timed, first, completion, cost_micro=10 + completion)
            answer = await timed.reserve(ask(key, prompt=10, completion=256, price=price))
            assert answer.completion_tokens == (left if is_in_use else left + 30)

    async def test_what_this_month_granted_and_was_not_used_stays_charged_to_it(
        self, timed: Store, clock: Clock
    ) -> None:
        """For a request that began last month: how much of it was this month's is not kept."""
        clock.now = datetime(2031, 1, 31, 23, 59, 59, tzinfo=UTC)
        key = await limited(timed, monthly_tokens=1_000)
        first = ask(key, prompt=10, completion=20)
        await timed.reserve(first)
        clock.advance(seconds=2)
        await timed.extend(key.tenant_id, first.request_id, tokens=256, generated=10, lease=LEASE)
        await settle(timed, first, completion=40)
        (left,) = await timed.month_left(key.tenant_id, [key.tenant_id])
        assert left.tokens == 1_000 - 256

    async def test_free_models_need_no_money(self, timed: Store) -> None:
        key = await limited(timed, monthly_cost_micro=0)
        assert (await timed.reserve(ask(key))).state == "running"
        paid = ask(key, price=Price(completion=1))
        assert (await timed.reserve(paid)).refused_by == "monthly_cost"

    async def test_a_prompt_is_paid_for_though_completions_are_free(self, timed: Store) -> None:
        price = Price(prompt=1_000_000)
        key = await limited(timed, monthly_cost_micro=10)
        assert (await timed.reserve(ask(key, 11, price=price))).refused_by == "monthly_cost"
        first = ask(key, 10, price=price)
        assert (await timed.reserve(first)).completion_tokens == 20
        assert (await timed.reserve(ask(key, 1, price=price))).refused_by == "monthly_cost"
        extended = await timed.extend(
            key.tenant_id, first.request_id, tokens=256, generated=20, lease=LEASE
        )
        assert extended == 256

    @pytest.mark.parametrize("prompt", [100, 101])
    async def test_a_prompt_that_leaves_nothing_of_the_month_s_tokens_is_refused(
        self, timed: Store, prompt: int
    ) -> None:
        key = await limited(timed, monthly_tokens=100, monthly_cost_micro=10**9)
        refused = await timed.reserve(ask(key, prompt, 1, price=Price(prompt=1, completion=1)))
        assert (refused.state, refused.refused_by) == ("refused", "monthly_tokens")
        assert (await timed.reserve(ask(key, 99, 20))).completion_tokens == 1


class TestOnce:
    async def test_asking_again_takes_nothing_twice(self, timed: Store) -> None:
        key = await limited(timed, requests_per_minute=5, tokens_per_minute=100, max_concurrent=9)
        request = ask(key, 10, 30)
        assert await timed.reserve(request) == await timed.reserve(request)
        answer = await timed.reserve(ask(key, 1, 1))
        assert answer.requests is not None
        assert answer.tokens is not None
        assert (answer.requests.remaining, answer.tokens.remaining) == (3, 58)

    async def test_settling_without_reservation_charges_all_the_same(self, timed: Store) -> None:
        key = await limited(timed, requests_per_minute=5, tokens_per_minute=100, monthly_tokens=70)
        lost = ask(key, 10)
        assert await settle(timed, lost, 40)
        assert await settle(timed, lost, 40) is False
        answer = await timed.reserve(ask(key, 1, 100))
        assert answer.completion_tokens == 19
        assert answer.requests is not None
        assert answer.tokens is not None
        assert (answer.requests.remaining, answer.tokens.remaining) == (3, 30)

    async def test_settling_without_reservation_charges_at_the_time_it_is_settled(
        self, timed: Store, clock: Clock
    ) -> None:
        """Not when the limit was looked at last, of which all has come back by now."""
        key = await limited(timed, requests_per_minute=5, tokens_per_minute=100)
        await timed.reserve(ask(key))
        clock.advance(minutes=30)
        assert await settle(timed, ask(key, 10), 40)
        answer = await timed.reserve(ask(key, 1, 1))
        assert answer.requests is not None
        assert answer.tokens is not None
        assert (answer.requests.remaining, answer.tokens.remaining) == (3, 48)

    async def test_release_gives_all_back_but_the_request(self, timed: Store) -> None:
        key = await limited(
            timed, requests_per_minute=5, tokens_per_minute=100, monthly_tokens=90, max_concurrent=1
        )
        request = ask(key, 10, 80)
        await timed.reserve(request)
        assert await timed.release(uuid4(), request.request_id) is False
        assert await timed.release(key.tenant_id, request.request_id)
        assert await timed.release(key.tenant_id, request.request_id) is False
        assert (
            await timed.extend(
                key.tenant_id, request.request_id, tokens=1, generated=0, lease=LEASE
            )
            is None
        )
        answer = await timed.reserve(ask(key, 10, 80))
        assert answer.state == "running"
        assert answer.requests is not None
        assert answer.requests.remaining == 3
        assert (await usage_totals(timed, key.tenant_id)).requests == 0

    async def test_key_of_another_tenant_reserves_nothing(self, timed: Store) -> None:
        one = await limited(timed, "one", max_concurrent=1)
        two = await limited(timed, "two", max_concurrent=1)
        with pytest.raises(ObjectNotFound, match="key"):
            await timed.reserve(ask(one, tenant_id=two.tenant_id))
        assert (await timed.reserve(ask(two))).state == "running"


SCOPES = ("tenant", "project", "key")
limit_values = st.fixed_dictionaries(
    {},
    optional={
        "requests_per_minute": st.integers(1, 6),
        "tokens_per_minute": st.integers(1, 120),
        "max_concurrent": st.integers(1, 3),
        "max_queued": st.integers(0, 2),
        "monthly_tokens": st.integers(0, 300),
        "monthly_cost_micro": st.integers(0, 300),
    },
)
steps = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, 7), st.integers(0, 60), st.integers(1, 60)),
    st.tuples(st.just("settle"), st.integers(0, 7), st.integers(0, 90), st.just(0)),
    st.tuples(st.just("extend"), st.integers(0, 7), st.integers(1, 50), st.integers(0, 50)),
    st.tuples(st.just("release"), st.integers(0, 7), st.just(0), st.just(0)),
    st.tuples(st.just("renew"), st.integers(0, 7), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("reap"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 40_000_000), st.just(0), st.just(0)),
    st.tuples(st.just("month"), st.just(0), st.just(0), st.just(0)),
    st.tuples(st.just("set back"), st.sampled_from((30, 3600, 10**6)), st.just(0), st.just(0)),
    st.tuples(st.just("follow"), st.just(0), st.just(0), st.just(0)),
)
policies = st.dictionaries(st.sampled_from(SCOPES), limit_values, min_size=1)
changes = st.tuples(st.sampled_from(SCOPES), limit_values)


@pytest.mark.pg
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(policies, st.lists(steps, max_size=30), changes, st.lists(steps, max_size=10))
async def test_twins_give_the_same_answers(
    pg_dsn: str,
    first: dict[str, dict[str, int]],
    before: list[tuple[str, int, int, int]],
    change: tuple[str, dict[str, int]],
    after: list[tuple[str, int, int, int]],
) -> None:
    """The arithmetic in SQL and the one in Python, step by step, over all that can happen."""
    clock = Clock()
    twins: list[tuple[Store, ApiKey]] = []
    postgres = await Store.connect(pg_dsn, now=clock, max_size=1)
    for twin in (postgres, MemoryStore(now=clock)):
        _, who = await make_key(twin, str(uuid4()))
        for kind, limits in first.items():
            await put(twin, who, kind, **limits)
        twins.append((twin, who.key))
    names = [uuid4() for _ in range(8)]
    owner = uuid4()
    price = Price(prompt=500_000, completion=1_500_000)

    async def play(store: Store, key: ApiKey, step: tuple[str, int, int, int]) -> object:
        action, number, a, b = step
        if action == "reserve":
            request = ask(key, a, b, request_id=names[number], price=price, owner=owner)
            return await store.reserve(request)
        if action == "settle":
            request = ask(key, a % 30, request_id=names[number])
            return await settle(store, request, a, cost_micro=price.cost(a % 30, 0, a))
        if action == "extend":
            return await store.extend(
                key.tenant_id, names[number], tokens=a, generated=b, lease=LEASE
            )
        if action == "release":
            return await store.release(key.tenant_id, names[number])
        if action == "renew":
            return await store.renew(owner, {names[number]: a}, LEASE)
        if action == "follow":
            await store.follow_clock(LEASE)
            return None
        return await store.reap()

    async def compare(steps: list[tuple[str, int, int, int]]) -> None:
        for step in steps:
            if step[0] == "wait":
                clock.advance(microseconds=step[1])
            elif step[0] == "month":
                clock.advance(days=20)
            elif step[0] == "set back":
                clock.advance(seconds=-step[1])
            else:
                answers = [await play(store, key, step) for store, key in twins]
                assert answers[0] == answers[1], step

    try:
        await compare(before)
        for store, key in twins:
            who = Principal(tenant=await store.update_tenant(key.tenant_id), key=key)
            await put(store, who, change[0], **change[1])
        await compare(after)
        await finish(clock, [store for store, _ in twins])
        totals = [await usage_totals(store, key.tenant_id) for store, key in twins]
        assert totals[0] == totals[1]
    finally:
        await finish(clock, [postgres])  # the next example has the same database
        await postgres.close()
    await _check_idle(pg_dsn, twins[0][1].tenant_id)


async def finish(clock: Clock, stores: list[Store]) -> None:
    """Let all leases run out and clear them away."""
    clock.advance(days=100)
    for store in stores:
        while await store.reap():
            pass


async def _check_idle(dsn: str, tenant_id: UUID) -> None:
    """When nothing runs, nothing is held."""
    connection = await asyncpg.connect(dsn)
    rows = await connection.fetch(
        "SELECT num_running, num_queued FROM limit_state WHERE tenant_id = $1", tenant_id
    )
    live = await connection.fetchval(
        "SELECT count(*) FROM reservation WHERE tenant_id = $1", tenant_id
    )
    await connection.close()
    assert live == 0
    assert all(tuple(row) == (0, 0) for row in rows)


class TestMonthLeft:
    async def test_of_scopes_in_which_nothing_runs(self, timed: Store, clock: Clock) -> None:
        clock.now = datetime(2031, 12, 31, 23, 59, 59, tzinfo=UTC)
        _, who = await make_key(timed)
        _, other = await make_key(timed, "other")
        await put(timed, who, "tenant", monthly_tokens=100)
        await put(timed, who, "key", monthly_cost_micro=7)
        await put(timed, other, "key", monthly_tokens=1)
        scope_ids = [who.key.id, who.key.project_id, who.tenant.id, other.key.id]
        await settle(timed, ask(who.key, 10), completion=20, cost_micro=9)
        expected = [
            MonthLeft(scope_kind="key", tokens=None, cost_micro=-2, lasts_us=1_000_000),
            MonthLeft(scope_kind="tenant", tokens=70, cost_micro=None, lasts_us=1_000_000),
        ]
        assert list(await timed.month_left(who.tenant.id, scope_ids)) == expected
        await put(timed, who, "key", monthly_cost_micro=20)
        request = ask(who.key, 10, 20)
        assert (await timed.reserve(request)).state == "running"
        assert list(await timed.month_left(who.tenant.id, scope_ids)) == []
        await timed.release(who.tenant.id, request.request_id)
        clock.advance(seconds=1)
        (key, tenant) = await timed.month_left(who.tenant.id, scope_ids)
        assert (key.cost_micro, tenant.tokens) == (20, 100)
        assert timedelta(microseconds=key.lasts_us) == timedelta(days=31)


class TestBalances:
    async def test_of_any_tenants_scopes(self, timed: Store, clock: Clock) -> None:
        _, who = await make_key(timed)
        _, other = await make_key(timed, "other")
        price = Price(prompt=10**6, completion=10**6)
        limits = {"requests_per_minute": 6, "tokens_per_minute": 600, "monthly_tokens": 1000}
        await put(timed, who, "tenant", **limits, monthly_cost_micro=10**6)
        await put(timed, other, "key", max_concurrent=2)
        assert (await timed.reserve(ask(who.key, 10, 20, price=price))).state == "running"
        clock.advance(seconds=1)
        scope_ids = [who.key.id, who.tenant.id, other.key.id]
        found = {balance.scope_id: balance for balance in await timed.balances(scope_ids)}
        assert found.keys() == {who.tenant.id, other.key.id}
        assert found[who.tenant.id] == Balance(
            scope_id=who.tenant.id,
            at=clock.now,
            requests_used=MINUTE_US - 6_000_000,
            tokens_used=30 * MINUTE_US - 600_000_000,
            num_running=1,
            month_tokens=30,
            month_cost_micro=30,
        )
        assert found[other.key.id].num_running == 0
        clock.advance(days=31)
        (balance,) = await timed.balances([who.tenant.id])
        assert (balance.month_tokens, balance.month_cost_micro) == (0, 0)
        assert balance.requests_used == balance.tokens_used == 0
