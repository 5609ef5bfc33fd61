"""Leases of reservations, and what happens to them while the store is away."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from tenants import quota as quota_module
from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.quota import Quota
from tenants.store import Store
from tests.ledger import usage_totals
from tests.tenants.quotas import WatchedStore, make, more, settle, take

pytestmark = pytest.mark.asyncio


class TestLeases:
    async def test_are_renewed_with_what_was_generated(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = WatchedStore()
        who = await make(store, max_concurrent=1)
        quota = Quota(store, lease_s=30)
        hold = await take(quota, who)
        for generated in (3, 6, 9):
            store.time.advance(seconds=20)
            hold.watch(partial(int, generated))
            await quota.beat()
        store.time.advance(seconds=29)
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        # The process dies; another one's beat settles at the last renewal.
        store.time.advance(seconds=1)
        await Quota(store, patience_s=0).beat()
        totals = await usage_totals(store, who.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (1, 9)
        assert f"{hold.request_id} was settled for its dead owner" in caplog.text

    async def test_run_renews_them_long_before_they_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, sleep, num_sleeps = WatchedStore(), asyncio.sleep, 0
        who = await make(store, max_concurrent=1)

        async def slept(seconds: float) -> None:
            nonlocal num_sleeps
            num_sleeps += 1
            store.time.advance(seconds=1.9 * seconds)
            await sleep(0)

        monkeypatch.setattr(asyncio, "sleep", slept)
        quota = Quota(store, lease_s=30)
        hold = await take(quota, who)
        running = asyncio.create_task(quota.run())
        neighbour = Quota(store, patience_s=0)
        while num_sleeps < 10:
            await neighbour.beat()
            assert [row.request_id for row in await store.list_running()] == [hold.request_id]
            await sleep(0)
        running.cancel()
        await asyncio.wait([running])

    async def test_an_owner_that_was_slow_settles_for_itself(self, store: Store) -> None:
        """Its slot is another's by then, but what it generated is charged, to the token."""
        who = await make(store, max_concurrent=1)
        slow = Quota(store, lease_s=0.05)
        hold = await take(slow, who)
        await asyncio.sleep(0.1)
        neighbour = Quota(store)
        await neighbour.beat()
        other = await take(neighbour, who)
        hold.watch(lambda: 77)
        await settle(store, who, hold)
        totals = await usage_totals(store, who.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (1, 77)
        await settle(store, who, other)

    async def test_run_beats_until_cancelled(self) -> None:
        store = WatchedStore()
        who = await make(store, max_concurrent=1)
        await take(Quota(store, lease_s=0.01), who)
        store.time.advance(seconds=1)
        running = asyncio.create_task(Quota(store, lease_s=0.03, patience_s=0).run())
        async with asyncio.timeout(30):
            while not (await usage_totals(store, who.tenant.id)).requests:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    async def test_as_it_starts_run_spares_the_living(self) -> None:
        """All gateways may have been down."""
        store, now = WatchedStore(), 0.0
        who = await make(store, max_concurrent=5)
        await take(Quota(store), who)
        store.time.advance(seconds=100)
        quota = Quota(store, lease_s=0.03, patience_s=0, clock=lambda: now)
        running = asyncio.create_task(quota.run())
        await asyncio.sleep(0.05)
        assert len(await store.list_running()) == 1
        now += 0.03
        async with asyncio.timeout(30):
            while await store.list_running():  # noqa: ASYNC110 - the store's
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])

    async def test_after_an_outage_the_living_are_spared(self) -> None:
        """All leases have run out meanwhile: who comes back first must not settle the others."""
        store, now = WatchedStore(), 0.0
        who = await make(store, max_concurrent=5)
        mine, other = (Quota(store, lease_s=30, patience_s=0, clock=lambda: now) for _ in range(2))
        hold = await take(other, who)
        dead = await take(Quota(store, lease_s=30), who)
        other._spare_the_living()
        mine._spare_the_living()
        store.time.advance(seconds=100)
        now += 1
        await mine.beat()
        await other.beat()
        assert len(await store.list_running()) == 2
        now += 30
        store.time.advance(seconds=20)
        await mine.beat()
        assert [row.request_id for row in await store.list_running()] == [hold.request_id]
        assert dead.generated == 0

    async def test_run_goes_on_after_an_outage_and_spares_the_living_then(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, now, num_renewals, away = WatchedStore(), 0.0, 0, True
        who = await make(store, max_concurrent=5)
        quota = Quota(store, lease_s=0.03, patience_s=0, clock=lambda: now)
        mine = await take(quota, who)
        dead = await take(Quota(store, lease_s=0.03), who)
        renew = store.renew

        async def renewed(*arguments: Any) -> Any:
            nonlocal num_renewals
            if away:
                raise StoreUnavailable("away")
            num_renewals += 1
            return await renew(*arguments)

        monkeypatch.setattr(store, "renew", renewed)
        running = asyncio.create_task(quota.run())
        async with asyncio.timeout(30):
            while "Leases are not renewed" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            now += 60  # long after what was spared at the start
            store.time.advance(seconds=60)
            caplog.clear()
            while "Leases are not renewed" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            away = False
            while num_renewals < 3:  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.001)
            assert caplog.text.count("Leases are not renewed") == 1
            assert caplog.text.count("Leases are renewed again, after 60.0 s") == 1
            listed = {row.request_id for row in await store.list_running()}
            assert listed == {mine.request_id, dead.request_id}
            now += 1
            while len(await store.list_running()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        running.cancel()
        await asyncio.wait([running])
        assert [row.request_id for row in await store.list_running()] == [mine.request_id]

    async def test_an_outage_is_not_over_before_the_store_has_answered(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A process in which nothing runs any more has nothing to ask."""
        store, now, num_beats, num_renewals = WatchedStore(), 0.0, 0, 0
        who = await make(store, max_concurrent=5)
        quota = Quota(store, lease_s=0.006, patience_s=0, clock=lambda: now)
        hold = await take(quota, who)
        beat = quota.beat

        async def counted() -> bool:
            nonlocal num_beats
            num_beats += 1
            return await beat()

        async def away(*arguments: object) -> None:
            nonlocal num_renewals
            num_renewals += 1
            raise StoreUnavailable("away")

        async def beats(count: int) -> None:
            until = num_beats + count
            async with asyncio.timeout(30):
                while num_beats < until:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)

        monkeypatch.setattr(quota, "beat", counted)
        running = asyncio.create_task(quota.run())
        await beats(2)  # the ledger is maintained at the start
        monkeypatch.setattr(store, "renew", away)
        await beats(3)
        assert caplog.text.count("Leases are not renewed: away") == 1
        await hold.close()
        await beats(1)
        num_renewals = 0
        await beats(5)
        assert num_renewals == 0
        assert "renewed again" not in caplog.text
        now += 1.0  # the dead are looked for again
        await beats(2)
        assert caplog.text.count("Leases are renewed again, after 1.0 s") == 1
        running.cancel()
        await asyncio.wait([running])

    async def test_what_cannot_be_taken_back_stays_until_its_lease_ends(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = WatchedStore()
        who = await make(store, max_concurrent=1)
        quota = Quota(store, lease_s=30, patience_s=0)
        hold = await take(quota, who)

        async def away(tenant_id: UUID, request_id: UUID) -> bool:
            raise StoreUnavailable("away")

        with monkeypatch.context() as patch:
            patch.setattr(store, "release", away)
            await quota.release(hold)
        assert f"{hold.request_id} stays reserved" in caplog.text
        with pytest.raises(QuotaExceeded):
            await take(quota, who)
        store.time.advance(seconds=31)
        await quota.beat()
        assert (await take(quota, who)).allowed == 256


class TestOutage:
    async def test_the_log_says_what_goes_without_the_store_and_when_that_ends(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(quota_module, "CALM_S", 0.0)
        monkeypatch.setattr(quota_module, "LIST_AFTER_S", 0.0)
        store = WatchedStore()
        who, free = await make(store, monthly_tokens=10**6), await make(store)
        quota = Quota(store)
        release = store.release

        async def away(tenant_id: UUID, request_id: UUID) -> bool:
            raise StoreUnavailable("away")

        hold = await take(quota, who, most=5000)
        await quota.refresh()
        unused = [await take(quota, who) for _ in range(2)]
        for is_away in (True, False):
            store.away = is_away
            monkeypatch.setattr(store, "release", away if is_away else release)
            await more(hold, 100)
            unlisted = await take(quota, free)
            unlisted.start_listing()
            assert unlisted._listing is not None
            await unlisted._listing
            await quota.release(unused.pop())
            if not is_away:
                await quota.refresh()
        assert len(caplog.records) == 6
        assert "Limits are kept from what is known of them: away" in caplog.text
        for end in ("Limits are the store's", "Requests are listed", "Requests are released"):
            assert caplog.text.count(f"{end} again, after ") == 1
