"""The store's clock is set back and forward: nobody is held up until it is where it was, and nobody
gets more than once what there is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from tenants.quota import Quota
from tenants.shared import WorkerAddress
from tenants.store import Store
from tests.ledger import usage_totals
from tests.tenants.quotas import WatchedStore, make, settle, take
from tests.tenants.reserving import LEASE, Clock, ask, limited
from tests.tenants.reserving import settle as settle_request

pytestmark = pytest.mark.asyncio

HOUR = {"hours": 1}


class TestRates:
    async def test_refill_from_the_moment_that_it_is_now(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, requests_per_minute=60)
        for _ in range(60):
            await timed.reserve(ask(key))
        clock.advance(hours=-1)
        await timed.follow_clock(LEASE)
        refused = await timed.reserve(ask(key))
        assert (refused.state, refused.wait_us) == ("refused", 1_000_000)
        clock.advance(seconds=1)
        assert (await timed.reserve(ask(key))).state == "running"
        assert (await timed.reserve(ask(key))).state == "refused"

    async def test_a_clock_that_swings_gives_a_minute_s_worth(
        self, timed: Store, clock: Clock
    ) -> None:
        """As an hour without requests does: a burst is what a minute has."""
        key = await limited(timed, requests_per_minute=5)
        for _ in range(5):
            await timed.reserve(ask(key))
        for hours in (-1, 1):
            clock.advance(hours=hours)
            await timed.follow_clock(LEASE)
        states = [(await timed.reserve(ask(key))).state for _ in range(6)]
        assert states == ["running"] * 5 + ["refused"]

    @pytest.mark.parametrize(("seconds", "is_followed"), [(60, False), (61, True)])
    async def test_up_to_a_minute_is_waited_for(
        self, timed: Store, clock: Clock, seconds: int, is_followed: bool
    ) -> None:
        key = await limited(timed, requests_per_minute=60)
        for _ in range(60):
            await timed.reserve(ask(key))
        clock.advance(seconds=-seconds)
        await timed.follow_clock(LEASE)
        clock.advance(seconds=1)
        assert ((await timed.reserve(ask(key))).state == "running") == is_followed


class TestLeases:
    async def test_of_the_dead_end_soon(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, max_concurrent=1)
        dead = ask(key)
        await timed.reserve(dead)
        clock.advance(hours=-1)
        await timed.follow_clock(LEASE)
        assert (await timed.reserve(ask(key))).refused_by == "concurrent"
        clock.now += LEASE
        assert (await timed.reserve(ask(key))).state == "running"
        assert await timed.reap() == dead.request_id

    async def test_of_the_living_are_renewed_from_there(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, max_concurrent=1)
        living = ask(key)
        await timed.reserve(living)
        clock.advance(hours=-1)
        await timed.follow_clock(LEASE)
        for _ in range(3):
            clock.now += LEASE / 2
            await timed.renew(living.owner, {living.request_id: 7}, LEASE)
            assert await timed.reap() is None
        assert (await timed.reserve(ask(key))).refused_by == "concurrent"

    async def test_of_workers_that_are_gone_end_soon(self, timed: Store, clock: Clock) -> None:
        clock.now = datetime.now(UTC)  # the address book has no clock of its own
        await timed.shared.register_worker("w", "there", LEASE + timedelta(hours=1))
        found = await timed.shared.find_worker("w")
        assert found == WorkerAddress(address="there", is_leased=True)
        clock.now -= LEASE
        await timed.follow_clock(LEASE)
        clock.now += LEASE
        found = await timed.shared.find_worker("w")
        assert found == WorkerAddress(address="there", is_leased=False)


class TestMonths:
    async def test_one_that_began_too_soon_is_not_given_again(
        self, timed: Store, clock: Clock
    ) -> None:
        clock.now = datetime(2031, 1, 31, 23, 30, tzinfo=UTC)
        key = await limited(timed, monthly_tokens=100)
        assert (await timed.reserve(ask(key, 60, 40))).state == "running"
        clock.advance(**HOUR)
        assert (await timed.reserve(ask(key, 60, 40))).state == "running"  # February's
        clock.advance(hours=-1)
        await timed.follow_clock(LEASE)
        assert (await timed.reserve(ask(key, 1, 1))).refused_by == "monthly_tokens"
        clock.advance(hours=1)
        assert (await timed.reserve(ask(key, 1, 1))).refused_by == "monthly_tokens"
        clock.advance(days=28)
        assert (await timed.reserve(ask(key, 60, 40))).state == "running"

    async def test_what_was_not_used_comes_back_in_a_month_that_began_too_soon(
        self, timed: Store, clock: Clock
    ) -> None:
        clock.now = datetime(2031, 2, 1, 0, 30, tzinfo=UTC)
        key = await limited(timed, monthly_tokens=100)
        assert (await timed.reserve(ask(key, 10, 10))).state == "running"
        clock.advance(hours=-1)
        request = ask(key, 10, 70)
        assert (await timed.reserve(request)).state == "running"
        await settle_request(timed, request, completion=0)
        assert (await timed.reserve(ask(key, 10, 256))).completion_tokens == 60

    async def test_one_of_a_wrong_year_ends_with_the_right_one(
        self, timed: Store, clock: Clock
    ) -> None:
        clock.now = datetime(2099, 7, 1, tzinfo=UTC)
        key = await limited(timed, monthly_tokens=100)
        await timed.reserve(ask(key, 60, 40))
        clock.now = datetime(2031, 1, 31, 23, tzinfo=UTC)
        await timed.follow_clock(LEASE)
        assert (await timed.reserve(ask(key, 1, 1))).refused_by == "monthly_tokens"
        clock.advance(**HOUR)
        assert (await timed.reserve(ask(key, 60, 40))).state == "running"


class TestQuota:
    """A beat notices, because nobody can set the clock of its own."""

    async def test_set_forward_the_living_are_spared(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, now = WatchedStore(), 0.0
        who = await make(store, max_concurrent=5)
        mine, other = (Quota(store, clock=lambda: now) for _ in range(2))
        hold = await take(other, who)
        await take(Quota(store), who)  # of one that dies
        for quota in (mine, other):
            await quota.beat()
        store.time.advance(**HOUR)
        await mine.beat()
        assert "The store's clock was set by +3600 s" in caplog.text
        assert len(await store.list_running()) == 2
        await other.beat()
        # What runs on is settled by its owner, to the token; the dead one's when its time has come.
        hold.watch(lambda: 77)
        for _ in range(20):
            now += 10
            store.time.advance(seconds=10)
            await mine.beat()
            await other.beat()
        assert [row.request_id for row in await store.list_running()] == [hold.request_id]
        await settle(store, who, hold)
        totals = await usage_totals(store, who.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (2, 77)

    @pytest.mark.parametrize("seconds", [-31, 31])
    async def test_a_step_longer_than_a_lease_is_told_and_a_shorter_one_survived(
        self, seconds: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, now = WatchedStore(), 0.0
        who = await make(store, max_concurrent=5)
        mine, other = (Quota(store, clock=lambda: now) for _ in range(2))
        hold = await take(other, who)
        for step in (seconds // 2, seconds):
            await mine.beat()
            store.time.advance(seconds=step)
            await mine.beat()
            assert (f"set by {step:+d} s" in caplog.text) == (abs(step) > 30)
            await other.beat()
        assert [row.request_id for row in await store.list_running()] == [hold.request_id]

    @pytest.mark.pg
    async def test_set_back_nobody_waits_until_it_is_where_it_was(
        self, pg_store: Store, pg_dsn: str
    ) -> None:
        """On the server's own clock: as if it had been an hour ahead until now."""
        key = await limited(pg_store, str(uuid4()), tokens_per_minute=60_000, max_concurrent=1)
        dead = ask(key, 30_000, 30_000)
        assert (await pg_store.reserve(dead)).state == "running"
        owner = await asyncpg.connect(pg_dsn)
        await owner.execute("UPDATE limit_state SET refilled_at = refilled_at + interval '1 hour'")
        await owner.execute("UPDATE reservation SET expires_at = expires_at + interval '1 hour'")
        await Quota(pg_store).beat()
        left = await owner.fetchval(
            "SELECT max(expires_at) - clock_timestamp() FROM reservation WHERE request_id = $1",
            dead.request_id,
        )
        assert left <= timedelta(seconds=30)
        await pg_store.release(key.tenant_id, dead.request_id)
        refilled_at = await owner.fetchval(
            "SELECT max(refilled_at) FROM limit_state WHERE tenant_id = $1", key.tenant_id
        )
        assert refilled_at <= await pg_store.clock()
        await owner.close()
        assert (await pg_store.reserve(ask(key, 10, 10))).state == "running"
