from __future__ import annotations

import asyncio
import time
from uuid import uuid4

import pytest

from tenants.errors import QuotaExceeded
from tenants.limits import Price
from tenants.quota import Hold, Quota
from tenants.store import Store
from tests.ledger import usage_totals
from tests.tenants.quotas import WatchedStore, make, more, settle, take
from tests.tenants.reserving import put

pytestmark = pytest.mark.asyncio


class TestReserve:
    async def test_without_policies_nobody_is_asked(self) -> None:
        store = WatchedStore()
        who = await make(store)
        quota = Quota(store)
        hold = await take(quota, who, most=5000)
        assert hold.allowed == 5000
        hold.watch(lambda: 4999)
        hold.ask(256)
        await quota.release(hold)
        assert (store.num_reserves, store.num_extends, store.num_releases) == (0, 0, 0)
        assert quota.num_held == 0

    async def test_without_policies_a_long_request_is_listed_until_it_is_settled(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.01)
        who = await make(store)
        quota = Quota(store)
        hold = await take(quota, who, most=5000)
        async with asyncio.timeout(30):
            while quota.num_held == 0:  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.001)
        (running,) = await store.list_running(who.tenant.id)
        assert (running.request_id, running.key_id) == (hold.request_id, who.key.id)
        assert hold.allowed == 5000
        hold.watch(lambda: 4000)
        await settle(store, who, hold)
        assert quota.num_held == 0
        assert await store.list_running() == []
        assert (await usage_totals(store, who.tenant.id)).completion_tokens == 4000

    async def test_those_that_grow_old_together_are_listed_together(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.3)
        monkeypatch.setattr("tenants.quota.LIST_EVERY_S", 0.3)
        store = WatchedStore()
        who = await make(store)
        quota = Quota(store)
        holds = [await take(quota, who) for _ in range(3)]
        await quota.release(holds[1])
        async with asyncio.timeout(30):
            while quota.num_held < 2:  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.001)
        late = await take(quota, who)  # once all are listed, the next begins anew
        async with asyncio.timeout(30):
            while quota.num_held < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        for hold in (holds[0], holds[2], late):
            await settle(store, who, hold)
        assert store.num_reserves == 3

    @pytest.mark.parametrize("is_late", [False, True])
    @pytest.mark.parametrize("answers_after_s", [0.0, 0.05])
    async def test_only_what_is_listed_after_its_end_is_taken_off_by_itself(
        self, monkeypatch: pytest.MonkeyPatch, is_late: bool, answers_after_s: float
    ) -> None:
        """Between its end and its settlement, or after that."""
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.0)
        store = WatchedStore()
        who = await make(store)
        if is_late:
            store.gate = asyncio.Event()
        quota = Quota(store)
        hold = await take(quota, who)
        async with asyncio.timeout(30):
            while store.num_reserves == 0:  # noqa: ASYNC110 - the store's state
                await asyncio.sleep(0.001)
        await hold.stop()
        if store.gate is not None:
            asyncio.get_running_loop().call_later(answers_after_s, store.gate.set)
        if answers_after_s == 0:
            await asyncio.sleep(0.01)
        await settle(store, who, hold)
        await hold.close()
        assert store.num_releases == is_late
        assert quota.num_held == 0
        assert await store.list_running() == []

    async def test_the_young_are_not_listed_with_the_old(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = WatchedStore()
        who = await make(store)
        quota = Quota(store)
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.0)
        old = await take(quota, who)
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 60.0)
        young = await take(quota, who)
        async with asyncio.timeout(30):
            while quota.num_held == 0:  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.001)
        assert [row.request_id for row in await store.list_running()] == [old.request_id]
        assert young._listing is None
        for hold in (old, young):
            await settle(store, who, hold)

    async def test_the_young_are_listed_once_they_are_old(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Though nobody comes after them."""
        store = WatchedStore()
        who = await make(store)
        quota = Quota(store)
        monkeypatch.setattr("tenants.quota.LIST_EVERY_S", 0.01)
        holds = []
        for list_after_s in (0.0, 0.02, 0.04):
            monkeypatch.setattr("tenants.quota.LIST_AFTER_S", list_after_s)
            holds.append(await take(quota, who))
        async with asyncio.timeout(30):
            while quota.num_held < 3:  # noqa: ASYNC110 - the condition is another object's state
                await asyncio.sleep(0.001)
        listed = {row.request_id for row in await store.list_running()}
        assert listed == {hold.request_id for hold in holds}
        for hold in holds:
            await settle(store, who, hold)

    async def test_it_runs_unlisted_while_the_store_is_away(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.01)
        store = WatchedStore()
        who = await make(store)
        quota = Quota(store)
        store.away = True
        hold = await take(quota, who, most=5000)
        async with asyncio.timeout(30):
            while "runs unlisted" not in caplog.text:  # noqa: ASYNC110 - a log
                await asyncio.sleep(0.001)
        assert (hold.allowed, quota.num_held) == (5000, 0)
        store.away = False
        hold.watch(lambda: 7)
        await settle(store, who, hold)
        assert (await usage_totals(store, who.tenant.id)).completion_tokens == 7
        assert store.num_releases == 0

    async def test_a_policy_made_meanwhile_neither_ends_it_nor_queues_it(
        self, store: Store
    ) -> None:
        who = await make(store)
        quota = Quota(store)
        hold = await take(quota, who, most=5000)
        await put(store, who, "tenant", max_concurrent=1, max_queued=1)
        record = await store.find_key(who.key.public_id)
        assert record is not None
        first = await take(quota, record.principal)
        hold.start_listing()
        assert hold._listing is not None
        await hold._listing
        assert hold.allowed == 5000
        assert [row.request_id for row in await store.list_running()] == [first.request_id]
        second = asyncio.create_task(take(quota, record.principal))  # the only place to wait
        await asyncio.sleep(0.02)
        await settle(store, who, first)
        async with asyncio.timeout(30):
            await settle(store, who, await second)
        await settle(store, who, hold)

    async def test_a_request_that_never_ran_is_never_listed(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tenants.quota.LIST_AFTER_S", 0.01)
        quota = Quota(store)
        who = await make(store)
        await quota.release(await take(quota, who))
        await asyncio.sleep(0.05)
        assert await store.list_running() == []

    async def test_takes_a_slice_and_never_more_than_asked(self, store: Store) -> None:
        who = await make(store, tokens_per_minute=10_000)
        quota, began = Quota(store), time.monotonic()
        assert (await take(quota, who, most=5000)).allowed == 256
        hold = await take(quota, who, most=7)
        assert hold.allowed == 7
        assert hold.answer.tokens is not None
        refilled = (time.monotonic() - began) * 10_000 / 60
        assert 9717 <= hold.answer.tokens.remaining <= 9718 + refilled  # 10,000 - 266 - 17

    async def test_refusal_says_which_limit_and_when(self, store: Store) -> None:
        who = await make(store, "key", requests_per_minute=1)
        quota = Quota(store)
        await take(quota, who)
        with pytest.raises(
            QuotaExceeded, match=r"key's limit of requests .* again in \d"
        ) as caught:
            await take(quota, who)
        wait_us = caught.value.retry_after_us
        assert wait_us is not None
        assert 0 < wait_us <= 60_000_000
        assert not caught.value.is_budget
        assert not caught.value.is_too_large

    async def test_kinds_of_refusal(self, store: Store) -> None:
        quota = Quota(store)
        with pytest.raises(QuotaExceeded, match=r"tokens per month is reached\.$") as budget:
            await take(quota, await make(store, monthly_tokens=10))
        with pytest.raises(QuotaExceeded, match=r"tokens per minute is reached\.$") as large:
            await take(quota, await make(store, tokens_per_minute=10))
        assert (budget.value.is_budget, budget.value.is_too_large) == (True, False)
        assert (large.value.is_budget, large.value.is_too_large) == (False, True)
        assert budget.value.retry_after_us is large.value.retry_after_us is None
        assert quota.num_held == 0

    async def test_the_price_is_that_of_the_month(self, store: Store) -> None:
        who = await make(store, monthly_cost_micro=10)
        price, quota = Price(prompt=10**6, completion=10**6), Quota(store)

        async def reserve(prompt: int) -> Hold:
            return await quota.reserve(
                who,
                request_id=uuid4(),
                model="demo",
                prompt_tokens=prompt,
                max_tokens=50,
                price=price,
            )

        with pytest.raises(QuotaExceeded) as caught:
            await reserve(11)
        assert caught.value.answer.refused_by == "monthly_cost"
        for _ in range(2):  # what is released is there again
            hold = await reserve(6)
            assert hold.allowed == 4
            await quota.release(hold)

    async def test_release_frees_everything(self, store: Store) -> None:
        who = await make(store, max_concurrent=1, monthly_tokens=1000)
        quota = Quota(store)
        for _ in range(3):
            hold = await take(quota, who, most=990)
            assert quota.num_held == 1
            await quota.release(hold)
        assert quota.num_held == 0
        assert (await usage_totals(store, who.tenant.id)).requests == 0


class TestQueue:
    async def test_waits_for_its_turn(self, store: Store) -> None:
        who = await make(store, max_concurrent=1, max_queued=3)
        quota = Quota(store)
        first = await take(quota, who)
        order: list[int] = []

        async def client(number: int) -> None:
            hold = await take(quota, who)
            order.append(number)
            await settle(store, who, hold)

        clients = []
        for number in range(3):
            clients.append(asyncio.create_task(client(number)))
            while len(await store.list_running()) < 2 + number:  # noqa: ASYNC110 - the store's
                await asyncio.sleep(0.001)
        with pytest.raises(QuotaExceeded, match="concurrent requests"):
            await take(quota, who)
        assert order == []
        await settle(store, who, first)
        async with asyncio.timeout(30):
            await asyncio.gather(*clients)
        assert order == [0, 1, 2]

    async def test_gives_up_in_time_and_leaves_its_place(self, store: Store) -> None:
        who = await make(store, max_concurrent=1, max_queued=1)
        quota = Quota(store, queue_timeout_s=0.05)
        first = await take(quota, who)
        for _ in range(2):
            with pytest.raises(QuotaExceeded) as caught:
                await take(quota, who)
            assert caught.value.answer.state == "refused"
            assert len(await store.list_running()) == 1, "nobody waits any more"
        await settle(store, who, first)
        await take(quota, who)

    async def test_a_queue_that_closes_lets_nobody_wait(self, store: Store) -> None:
        who = await make(store, max_concurrent=1, max_queued=1)
        quota = Quota(store)
        first = await take(quota, who)
        waiter = asyncio.create_task(take(quota, who))
        await asyncio.sleep(0.05)
        quota.close_queue()
        async with asyncio.timeout(10):
            with pytest.raises(QuotaExceeded):
                await waiter
        assert len(await store.list_running()) == 1
        await settle(store, who, first)
        await settle(store, who, await take(quota, who))  # there is nothing to wait for

    async def test_who_waits_long_asks_no_less_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tenants.quota.MAX_POLL_S", 0.02)
        store = WatchedStore()
        who = await make(store, max_concurrent=1, max_queued=1)
        quota = Quota(store)
        running = await take(quota, who)
        waiting = asyncio.create_task(take(quota, who))
        async with asyncio.timeout(30):
            while store.num_reserves < 20:  # noqa: ASYNC110 - the condition is another's state
                await asyncio.sleep(0.01)
            await settle(store, who, running)
            await settle(store, who, await waiting)

    async def test_who_waits_asks_ever_less_often(self) -> None:
        store = WatchedStore()
        who = await make(store, max_concurrent=1, max_queued=1)
        quota = Quota(store)
        running = await take(quota, who)
        store.num_reserves, began = 0, time.monotonic()
        waiting = asyncio.create_task(take(quota, who))
        await asyncio.sleep(0.1)
        # Pauses of 10, 15, 22.5, … ms lie between the questions.
        assert 0.02 * (1.5 ** (store.num_reserves - 1) - 1) <= time.monotonic() - began
        await settle(store, who, running)
        async with asyncio.timeout(30):
            await settle(store, who, await waiting)

    async def test_cancelled_waiter_leaves_its_place(self, store: Store) -> None:
        who = await make(store, max_concurrent=1, max_queued=1)
        quota = Quota(store)
        first = await take(quota, who)
        waiter = asyncio.create_task(take(quota, who))
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.wait([waiter])
        second = asyncio.create_task(take(quota, who))
        await asyncio.sleep(0.02)
        await settle(store, who, first)
        async with asyncio.timeout(30):
            await second

    async def test_cancelled_when_it_was_admitted_just_now(self) -> None:
        store = WatchedStore()
        who = await make(store, max_concurrent=1)
        quota = Quota(store)
        store.gate = asyncio.Event()
        admitted = asyncio.create_task(take(quota, who))
        await asyncio.sleep(0.01)
        admitted.cancel()
        await asyncio.wait([admitted])
        assert admitted.cancelled()
        store.gate.set()
        assert (await take(quota, who)).allowed == 256


class TestExtension:
    async def test_adds_what_is_asked_up_to_what_the_request_can_use(self, store: Store) -> None:
        who = await make(store, monthly_tokens=100_000)
        hold = await take(Quota(store, slice_tokens=100), who, most=250)
        assert hold.slice_tokens == hold.allowed == 100
        told: list[int] = []
        hold.on_more = lambda: told.append(hold.allowed)
        assert await more(hold, 120) == 220
        assert await more(hold, 120) == 250
        assert await more(hold, 120) == 250
        assert told == [220, 250]
        (running,) = await store.list_running()
        assert running.request_id == hold.request_id

    async def test_asks_one_question_at_a_time(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=100_000)
        hold = await take(Quota(store, slice_tokens=100), who, most=1000)
        hold.ask(100)
        assert await more(hold, 50) == 200
        assert (store.num_extends, store.num_reserves) == (1, 1)

    async def test_the_store_has_half_the_time_there_is(self) -> None:
        """The other half is for its answer, and for the engine to hear of it."""
        store = WatchedStore()
        who = await make(store, monthly_tokens=100_000)
        hold = await take(Quota(store, slice_tokens=100), who, most=1000)
        hold.ask(100, patience_s=0.5)
        assert await more(hold) == 200
        assert store.patience_s == 0.25

    async def test_stops_where_the_month_ends(self, store: Store) -> None:
        who = await make(store, "project", monthly_tokens=310)
        hold = await take(Quota(store), who, prompt=10, most=1000)
        assert (hold.allowed, hold.is_last) == (256, False)
        assert await more(hold) == 300
        assert hold.is_last
        assert await more(hold) == 300
        hold.watch(lambda: 300)
        await settle(store, who, hold)
        with pytest.raises(QuotaExceeded):
            await take(Quota(store), who, prompt=1)

    async def test_a_slice_cut_by_the_rate_is_not_the_last(self, store: Store) -> None:
        who = await make(store, "project", monthly_tokens=10_000, tokens_per_minute=110)
        hold = await take(Quota(store), who, prompt=10, most=1000)
        assert (hold.allowed, hold.is_last) == (100, False)
        await settle(store, who, hold)

    async def test_an_error_that_nobody_foresaw_does_not_leave_a_stream_waiting(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(WatchedStore):
            async def extend(self, *args: object, **kwargs: object) -> int | None:
                raise RuntimeError("function extend(uuid) does not exist")

        store = Broken()
        who = await make(store, monthly_tokens=10_000)
        quota = Quota(store)
        hold = await take(quota, who, most=2000)
        await quota.refresh()
        told: list[int] = []
        hold.on_more = lambda: told.append(hold.allowed)
        assert await more(hold) == 512
        assert "does not exist" in caplog.text
        assert told == [512]

    async def test_what_the_store_has_lost_is_reserved_again(self, store: Store) -> None:
        """It crashed, or was away when the request began."""
        who = await make(store, monthly_tokens=1010, tokens_per_minute=500, max_concurrent=1)
        hold = await take(Quota(store), who, most=2000)
        assert await store.release(who.tenant.id, hold.request_id)
        assert await more(hold) == 512
        (running,) = await store.list_running()
        assert running.request_id == hold.request_id
        assert await more(hold, 900) == 1000
        assert hold.is_last
        hold.watch(lambda: 1000)
        await settle(store, who, hold)
        assert await store.list_running() == []

    async def test_of_what_was_lost_all_is_reserved_again(self, store: Store) -> None:
        """Also what is more than a minute's worth, and more than there is by now."""
        who = await make(store, monthly_tokens=1010, tokens_per_minute=300)
        quota = Quota(store)
        hold = await take(quota, who, most=2000)
        assert await more(hold, 400) == 656
        assert await store.release(who.tenant.id, hold.request_id)
        assert await more(hold, 100) == 756
        assert await more(hold, 900) == 1000
        assert hold.is_last
        await quota.release(hold)
        hold = await take(quota, who, most=2000)
        assert await more(hold, 400) == 656
        assert await store.release(who.tenant.id, hold.request_id)
        await put(store, who, "tenant", monthly_tokens=500, tokens_per_minute=300)
        assert await more(hold, 100) == 656
        assert hold.is_last

    @pytest.mark.parametrize("limit", ["monthly_tokens", "monthly_cost_micro"])
    async def test_of_what_was_lost_nothing_is_given_where_others_have_used_up_the_month(
        self, store: Store, limit: str
    ) -> None:
        who = await make(store, "tenant", **{limit: 800})
        quota, price = Quota(store), Price(prompt=10**6, completion=10**6)
        lost, other = [
            await quota.reserve(
                who,
                request_id=uuid4(),
                model="demo",
                prompt_tokens=10,
                max_tokens=2000,
                price=price,
            )
            for _ in range(2)
        ]
        assert await store.release(who.tenant.id, lost.request_id)
        assert await more(other, 900) == 790
        assert await more(lost) == 256
        assert lost.is_last

    async def test_a_request_that_runs_is_not_ended_for_a_slot_that_was_taken_meanwhile(
        self, store: Store
    ) -> None:
        who = await make(store, max_concurrent=1, max_queued=1, monthly_tokens=5000)
        quota = Quota(store)
        hold = await take(quota, who, most=2000)
        assert await store.release(who.tenant.id, hold.request_id)
        other = await take(quota, who)
        assert (await more(hold), hold.is_last) == (512, False)
        (running,) = await store.list_running()
        assert running.request_id == other.request_id

    async def test_no_answer_comes_after_stop(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=10_000)
        hold = await take(Quota(store), who)
        store.gate = asyncio.Event()
        hold.on_more = lambda: pytest.fail("it was stopped")
        hold.ask(256)
        await asyncio.sleep(0)
        await hold.stop()
        store.gate.set()
        num_extends = store.num_extends
        assert await more(hold) == 256
        assert store.num_extends == num_extends, "it asks for nothing any more"

    async def test_close_ends_its_task_and_is_idempotent(self) -> None:
        store = WatchedStore()
        who = await make(store, monthly_tokens=10_000)
        hold = await take(Quota(store), who)
        hold.ask(250)
        await hold.close()
        await hold.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
