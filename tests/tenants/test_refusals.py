from __future__ import annotations

import contextlib
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants import keys
from tenants.errors import QuotaExceeded
from tenants.limits import Limits, QuotaAnswer, ScopePolicy, Window
from tenants.quota import Hold, Quota
from tenants.refusals import MAX_KNOWN, MAX_S, Refusals
from tenants.types import Principal
from tests.tenants.quotas import WatchedStore, make, take
from tests.tenants.reserving import ask, put
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
