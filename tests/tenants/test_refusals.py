from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants import keys
from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.limits import Limits, Price, QuotaAnswer, QuotaRequest, ScopePolicy, Window
from tenants.quota import Hold, Quota
from tenants.refusals import MAX_KNOWN, MAX_S, Refusals
from tenants.store import Store
from tenants.types import Principal
from tests.tenants.quotas import WatchedStore, make, take
from tests.tenants.reserving import Clock, ask, put, settle
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio

REFUSED = QuotaAnswer(
    state="refused",
    refused_by="requests",
    scope_kind="tenant",
    wait_us=600_000,
    requests=Window(limit=60, remaining=0, reset_us=59_600_000),
    tokens=Window(limit=600, remaining=90, reset_us=51_000_000),
)


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def limited() -> Principal:
    return await make(WatchedStore(), requests_per_minute=60, tokens_per_minute=600)


class TestRefusals:
    async def test_hold_until_a_request_fits(self) -> None:
        who, time = await limited(), Time()
        refusals = Refusals(time)
        assert refusals.find(who) is None
        refusals.note(who, REFUSED, asked_at=99.9)
        assert refusals.find(who) == REFUSED
        time.now = 100.49
        assert refusals.find(who) is not None
        time.now = 100.5
        assert refusals.find(who) is None
        assert len(refusals) == 0

    async def test_say_what_is_left_by_now(self) -> None:
        who, time = await limited(), Time()
        refusals = Refusals(time)
        refusals.note(who, REFUSED, asked_at=100.0)
        time.now = 100.25
        assert refusals.find(who) == msgspec.structs.replace(
            REFUSED,
            wait_us=350_000,
            requests=Window(limit=60, remaining=0, reset_us=59_350_000),
            tokens=Window(limit=600, remaining=92, reset_us=50_750_000),
        )

    async def test_are_not_known_for_long(self) -> None:
        who, time = await limited(), Time()
        refusals = Refusals(time)
        refusals.note(who, msgspec.structs.replace(REFUSED, wait_us=10**8), asked_at=100.0)
        time.now += MAX_S
        assert refusals.find(who) is None

    @pytest.mark.parametrize(
        "changes",
        [
            {"refused_by": "tokens"},  # a shorter one may fit, or one that ends gives some back
            {"refused_by": "concurrent"},
            {"refused_by": "monthly_tokens", "wait_us": None},
            {"wait_us": None},
            {"scope_kind": "project"},  # whose limits are not known here yet
        ],
    )
    async def test_others_are_not_remembered(self, changes: dict[str, object]) -> None:
        who, refusals = await limited(), Refusals(Time())
        refusals.note(who, msgspec.structs.replace(REFUSED, **changes), asked_at=100.0)
        assert refusals.find(who) is None

    async def test_end_with_the_limits_they_are_of(self) -> None:
        who, refusals = await limited(), Refusals(Time())
        refusals.note(who, REFUSED, asked_at=100.0)
        (policy,) = who.policies
        other = ScopePolicy(
            scope_kind="tenant", scope_id=policy.scope_id, limits=Limits(requests_per_minute=61)
        )
        assert refusals.find(msgspec.structs.replace(who, policies=(other,))) is None

    async def test_are_of_one_scope(self) -> None:
        refusals = Refusals(Time())
        refusals.note(await limited(), REFUSED, asked_at=100.0)
        assert refusals.find(await limited()) is None
        assert len(refusals) == 1

    async def test_have_a_bound(self) -> None:
        who, refusals = await limited(), Refusals(Time())
        (policy,) = who.policies
        refusals.note(who, REFUSED, asked_at=100.0)
        for _ in range(MAX_KNOWN):
            other = ScopePolicy(scope_kind="tenant", scope_id=uuid4(), limits=policy.limits)
            refusals.note(msgspec.structs.replace(who, policies=(other,)), REFUSED, asked_at=100.0)
        assert len(refusals) == MAX_KNOWN
        assert refusals.find(who) is None, "the oldest has gone"


class TestQuota:
    async def test_a_flood_asks_the_store_once(self) -> None:
        store, time = WatchedStore(), Time()
        who = await make(store, requests_per_minute=60)
        quota = Quota(store, clock=time)
        for _ in range(60):
            quota.check(who)
            await take(quota, who)
        with pytest.raises(QuotaExceeded) as first:
            await take(quota, who)
        for _ in range(100):
            with pytest.raises(QuotaExceeded) as later:
                quota.check(who)
            assert (later.value.answer, str(later.value)) == (first.value.answer, str(first.value))
        assert store.num_reserves == 61
        time.now += 1
        store.time.advance(seconds=1)
        quota.check(who)
        await take(quota, who)

    async def test_of_one_key_says_nothing_of_the_tenants_others(self) -> None:
        store = WatchedStore()
        who = await make(store, "key", requests_per_minute=1)
        _, other = await make_key(store, str(uuid4()))
        quota = Quota(store, clock=Time())
        await take(quota, who)
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        with pytest.raises(QuotaExceeded):
            quota.check(who)
        quota.check(other)

    async def test_of_a_tenant_does_not_tell_a_key_of_the_limits_of_another(self) -> None:
        store = WatchedStore()
        who = await make(store, requests_per_minute=1)
        minted = keys.mint(PEPPER)
        await store.create_key(
            who.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="other",
            scopes=["chat"],
        )
        await put(store, who, "key", tokens_per_minute=1_000)
        records = [await store.find_key(name) for name in (who.key.public_id, minted.public_id)]
        who, other = (record.principal for record in records if record is not None)
        quota = Quota(store, clock=Time())
        await take(quota, who)
        with pytest.raises(QuotaExceeded) as own:
            await take(quota, who)
        assert own.value.answer.tokens is not None
        quota.check(other)
        with pytest.raises(QuotaExceeded) as others:
            await take(quota, other)
        with pytest.raises(QuotaExceeded) as from_memory:
            quota.check(other)
        for refused in (others, from_memory):
            assert refused.value.answer.scope_kind == "tenant"
            assert refused.value.answer.tokens is None

    @settings(max_examples=100, deadline=None)
    @given(
        st.integers(1, 200),
        st.lists(st.tuples(st.sampled_from("ars"), st.integers(0, 2_000_000)), max_size=60),
    )
    async def test_what_is_refused_from_memory_the_store_would_refuse(
        self, limit: int, steps: list[tuple[str, int]]
    ) -> None:
        """Whatever else asks, releases or settles meanwhile, in this process or another."""
        store, time = WatchedStore(), Time()
        who = await make(store, requests_per_minute=limit)
        quota = Quota(store, clock=time)
        held: list[Hold] = []
        for _ in range(limit - 1):
            await store.reserve(ask(who.key))
        for action, wait_us in steps:
            store.time.advance(microseconds=wait_us)
            time.now += wait_us / 1e6
            if action == "r" and held:
                await quota.release(held.pop())
            elif action == "s":
                await store.reserve(ask(who.key))
            elif (known := quota._refusals.find(who)) is None:
                with contextlib.suppress(QuotaExceeded):
                    held.append(await take(quota, who))
            else:
                answer = await store.reserve(ask(who.key, prompt=0, completion=1))
                assert answer.wait_us is not None
                assert known.wait_us is not None
                assert abs(answer.wait_us - known.wait_us) <= 2  # of seconds as floats
                assert answer.requests is not None
                assert known.requests is not None
                assert answer.requests.remaining == known.requests.remaining == 0
                assert abs(answer.requests.reset_us - known.requests.reset_us) <= 2


class TestMonths:
    async def test_a_budget_that_is_used_up_asks_the_store_once(self) -> None:
        store, time = WatchedStore(), Time()
        who = await make(store, monthly_tokens=30)
        quota = Quota(store, clock=time)
        await settle_hold(store, who, await take(quota, who, prompt=10, most=20), generated=20)
        with pytest.raises(QuotaExceeded) as first:
            await take(quota, who)
        asked = store.num_reserves
        for _ in range(100):
            with pytest.raises(QuotaExceeded) as later:
                quota.check(who)
            assert later.value.answer == first.value.answer
            with pytest.raises(QuotaExceeded):
                await take(quota, who)
        assert store.num_reserves == asked
        time.now += MAX_S
        quota.check(who)

    async def test_while_something_runs_some_may_come_back(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=30)
        quota = Quota(store, clock=Time())
        hold = await take(quota, who, prompt=10, most=20)
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        quota.check(who)
        await settle_hold(store, who, hold, generated=5)
        assert (await take(quota, who, prompt=10, most=20)).allowed == 5

    async def test_a_shorter_prompt_may_fit(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=30)
        quota = Quota(store, clock=Time())
        with pytest.raises(QuotaExceeded):
            await take(quota, who, prompt=30)
        asked = store.num_reserves
        with pytest.raises(QuotaExceeded):
            await take(quota, who, prompt=40)
        assert store.num_reserves == asked
        quota.check(who)
        assert (await take(quota, who, prompt=29, most=20)).allowed == 1

    async def test_a_prompt_has_a_token(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=1)
        quota = Quota(store, clock=Time())
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        with pytest.raises(QuotaExceeded):
            quota.check(who)

    async def test_what_costs_nothing_passes_a_budget_of_money(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_cost_micro=1)
        quota, price = Quota(store, clock=Time()), Price(prompt=10**6, completion=10**6)
        with pytest.raises(QuotaExceeded) as refused:
            await take(quota, who, price=price)
        assert refused.value.answer.refused_by == "monthly_cost"
        asked = store.num_reserves
        with pytest.raises(QuotaExceeded):
            await take(quota, who, price=price)
        assert store.num_reserves == asked
        quota.check(who)
        quota.check(who, price=Price(prompt=5 * 10**5, completion=5 * 10**5))
        with pytest.raises(QuotaExceeded):
            quota.check(who, price=price)  # a token of each does not fit
        assert (await take(quota, who)).allowed > 0

    async def test_it_ends_with_the_month(self) -> None:
        store, time = WatchedStore(), Time()
        store.time.now = datetime(2031, 1, 31, 23, 59, 59, 500_000, tzinfo=UTC)
        who = await make(store, monthly_tokens=0)
        quota = Quota(store, clock=time)
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        time.now += 0.499
        with pytest.raises(QuotaExceeded):
            quota.check(who)
        time.now += 0.001
        quota.check(who)

    async def test_a_store_that_is_away_says_nothing_of_it(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=0)

        async def away(*args: object) -> None:
            raise StoreUnavailable("away")

        store.month_left = away  # type: ignore[assignment, method-assign]
        quota = Quota(store, clock=Time())
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        quota.check(who)


LIMITS: dict[str, list[int | None]] = {
    "requests_per_minute": [None, None, None, 2],
    "tokens_per_minute": [None, None, None, 100],
    "monthly_tokens": [None, 60, 100],
    "monthly_cost_micro": [None, None, None, 100],
}
limits_of = st.fixed_dictionaries({name: st.sampled_from(few) for name, few in LIMITS.items()})
PRICE = Price(prompt=1_000_000, completion=2_000_000)
steps_of = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.sampled_from([10, 1, 60])),
        st.tuples(st.just("take"), st.just(0), st.sampled_from([10, 30])),
        st.tuples(st.just("settle"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("release"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("charge"), st.integers(0, 1), st.integers(0, 40)),
        st.tuples(st.just("wait"), st.just(0), st.sampled_from([300_000, 1, 900_000, 10**6])),
        st.tuples(st.just("limit"), st.integers(0, 1), st.integers(0, 400)),
    ),
    min_size=5,
    max_size=25,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(limits_of, limits_of, st.booleans(), steps_of)
async def test_whatever_happens_the_store_would_have_said_the_same(
    timed: Store,
    clock: Clock,
    of_tenant: dict[str, int | None],
    of_key: dict[str, int | None],
    is_late: bool,
    steps: list[tuple[str, int, int]],
) -> None:
    """Two keys of a tenant at two workers, one of which is asked; months that end, limits that
    change, settlements that give back, and charges without a reservation."""
    clock.now = datetime(2031, 1, 31, 23, 59, 59 if is_late else 0, tzinfo=UTC)
    time = Time()
    quota, elsewhere = (Quota(timed, clock=time) for _ in range(2))
    _, first = await make_key(timed, str(uuid4()))
    await put(timed, first, "tenant", **of_tenant)
    await put(timed, first, "key", **of_key)
    minted = keys.mint(PEPPER)
    await timed.create_key(
        first.tenant.id,
        public_id=minted.public_id,
        key_hash=minted.key_hash,
        name="other",
        scopes=["chat"],
    )
    names = (first.key.public_id, minted.public_id)
    held: list[QuotaRequest] = []

    async def now_of(name: str) -> Principal:
        """As the authenticator gives it, once it has heard of changed limits."""
        record = await timed.find_key(name)
        assert record is not None
        return record.principal

    for action, which, amount in steps:
        who = await now_of(names[which % 2])
        match action:
            case "take":
                at = elsewhere if which == 2 else quota
                if at is quota:
                    await _as_the_store_says(timed, quota, who, prompt=amount)
                with contextlib.suppress(QuotaExceeded):
                    hold = await take(at, who, prompt=amount, most=40, price=PRICE)
                    held.append(hold.request)
            case "settle" if held:
                request = held.pop(which % len(held))
                await settle(timed, request, completion=amount, cost_micro=amount)
            case "release" if held:
                request = held.pop(which % len(held))
                await timed.release(request.tenant_id, request.request_id)
            case "charge":
                await settle(timed, ask(who.key, 1), completion=amount, cost_micro=amount)
            case "wait":
                clock.advance(microseconds=amount)
                time.now += amount / 1e6
            case "limit":
                changed = {**of_tenant, "monthly_tokens": amount}
                await put(timed, who, "tenant", **changed)


async def _as_the_store_says(store: Store, quota: Quota, who: Principal, *, prompt: int) -> None:
    """What is known without the store is what the store says."""
    for tokens in (1, prompt):
        known = quota._refusals.find(who, tokens, PRICE)
        if known is None:
            continue
        answer = await store.reserve(ask(who.key, tokens, 1, price=PRICE))
        assert answer.state == "refused"
        if answer.refused_by != known.refused_by:
            # Another limit has come to refuse it, too, and is named first.
            assert known.refused_by == "requests" or answer.refused_by == "tokens"
            continue
        assert answer.scope_kind == known.scope_kind
        if known.wait_us is not None:  # Charges without a reservation make it longer.
            assert answer.wait_us is not None
            assert known.wait_us <= answer.wait_us + 2  # of seconds as floats
            assert answer.requests is not None
            assert answer.requests.remaining == 0
        else:
            assert answer.wait_us is None


async def settle_hold(store: Store, who: Principal, hold: Hold, *, generated: int) -> None:
    await settle(store, hold.request, completion=generated)
    await hold.close()
