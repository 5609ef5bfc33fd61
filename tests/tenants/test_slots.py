"""Slots of requests that run, and the queue before them: one contract for both stores."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from tenants.keys import mint
from tenants.limits import Price
from tenants.store import Store
from tests.ledger import usage_totals
from tests.tenants.reserving import LEASE, Clock, ask, limited, put, settle
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio


class TestSlots:
    async def test_slot_is_free_after_the_settlement(self, timed: Store) -> None:
        key = await limited(timed, max_concurrent=2)
        running = [ask(key) for _ in range(2)]
        for request in running:
            assert (await timed.reserve(request)).state == "running"
        refused = await timed.reserve(ask(key))
        assert (refused.refused_by, refused.wait_us) == ("concurrent", 1_000_000)
        await settle(timed, running[0], 3)
        assert (await timed.reserve(ask(key))).state == "running"
        assert (await timed.reserve(ask(key))).state == "refused"

    async def test_what_is_settled_already_gives_back_slot_and_all_that_is_held(
        self, timed: Store
    ) -> None:
        """A worker may reserve once more for a request whose end another has written."""
        key = await limited(timed, monthly_tokens=1000, monthly_cost_micro=1000)
        request = ask(key, prompt=10, completion=20, price=Price(prompt=10**6, completion=10**6))
        for _ in range(2):
            assert (await timed.reserve(request)).state == "running"
            await settle(timed, request, 5, cost_micro=15)
        (balance,) = await timed.balances([key.tenant_id])
        assert (balance.month_tokens, balance.month_cost_micro) == (15, 15)
        assert balance.num_running == 0

    async def test_slots_of_a_dead_owner_are_free_when_its_lease_ends(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=1)
        dead = ask(key, prompt=10)
        await timed.reserve(dead)
        assert await timed.renew(dead.owner, {dead.request_id: 7}, LEASE) == {dead.request_id}
        clock.advance(seconds=30)
        # Before anybody cleared it away.
        assert (await timed.reserve(ask(key))).state == "running"
        assert (await timed.reserve(ask(key))).state == "refused"
        assert await timed.reap() == dead.request_id
        assert await timed.reap() is None
        totals = await usage_totals(timed, key.tenant_id)
        assert (totals.requests, totals.prompt_tokens, totals.completion_tokens) == (1, 10, 7)
        assert await settle(timed, dead, completion=9) is False
        assert await usage_totals(timed, key.tenant_id) == totals
        assert (await timed.reserve(ask(key))).state == "refused"

    async def test_an_owner_that_comes_late_keeps_what_nobody_cleared_away(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=1)
        late, dead = ask(key, prompt=10), ask(key)
        await timed.reserve(late)
        clock.advance(minutes=10)
        assert await timed.renew(late.owner, {late.request_id: 9}, LEASE) == {late.request_id}
        assert await timed.reap() is None
        assert (await timed.reserve(dead)).state == "refused"
        assert await settle(timed, late, completion=12)
        await timed.reserve(dead)
        clock.advance(minutes=10)
        assert await timed.reap() == dead.request_id
        assert await timed.renew(dead.owner, {dead.request_id: 9}, LEASE) == set()

    async def test_with_patience_its_owner_may_settle_for_itself(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=1)
        slow, dead, queued = ask(key, prompt=10), ask(key), ask(key)
        await timed.reserve(slow)
        assert (await timed.reserve(queued)).state == "queued"
        clock.advance(seconds=31)
        patience = timedelta(seconds=60)
        assert await timed.reap(patience=patience) == queued.request_id
        assert await timed.reap(patience=patience) is None
        assert (await timed.reserve(dead)).state == "running", "its slot is free meanwhile"
        assert await settle(timed, slow, completion=12)
        clock.advance(seconds=89)
        assert await timed.reap(patience=patience) is None
        clock.advance(seconds=1)
        assert await timed.reap(patience=patience) == dead.request_id
        totals = await usage_totals(timed, key.tenant_id)
        assert (totals.requests, totals.completion_tokens) == (2, 12)

    async def test_extending_renews_the_lease_and_never_shortens_it(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=1)
        request = ask(key, prompt=10)
        await timed.reserve(request)

        async def extend(lease: timedelta) -> int | None:
            return await timed.extend(
                key.tenant_id, request.request_id, tokens=1, generated=3, lease=lease
            )

        clock.advance(seconds=20)
        assert await extend(LEASE) == 1
        assert await extend(timedelta(seconds=1)) == 1
        clock.advance(seconds=29)
        assert (await timed.reserve(ask(key))).state == "refused"
        assert await timed.reap() is None
        clock.advance(seconds=1)
        assert await timed.reap() == request.request_id
        assert (await usage_totals(timed, key.tenant_id)).completion_tokens == 3

    async def test_only_its_owner_renews_a_lease(self, timed: Store) -> None:
        request = ask(await limited(timed, max_concurrent=1))
        await timed.reserve(request)
        assert await timed.renew(uuid4(), {request.request_id: 1, uuid4(): 2}, LEASE) == set()

    async def test_queue_is_bounded_and_served_in_order(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=2)
        running = ask(key)
        await timed.reserve(running)
        waiting = []
        for state in ("queued", "queued", "refused"):
            clock.advance(milliseconds=1)
            waiting.append(ask(key))
            answer = await timed.reserve(waiting[-1])
            assert (answer.state, answer.refused_by) == (state, "concurrent")
        clock.advance(milliseconds=1)
        assert (await timed.reserve(waiting[0])).state == "queued"  # where it was
        await settle(timed, running, 1)
        for request, state in [
            (ask(key), "queued"),  # a newcomer does not pass those who wait
            (waiting[1], "queued"),
            (waiting[0], "running"),
            (waiting[1], "queued"),
        ]:
            clock.advance(milliseconds=1)
            if request not in waiting:
                state = "refused"  # and the queue is full
            assert (await timed.reserve(request)).state == state
        assert await timed.release(key.tenant_id, waiting[1].request_id)
        await settle(timed, waiting[0], 1)
        assert (await timed.reserve(ask(key))).state == "running"

    async def test_who_runs_keeps_nobody_waiting_for_another_slot(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=2, max_queued=1)
        requests = [ask(key) for _ in range(3)]
        for request, state in zip(requests, ("running", "running", "queued"), strict=True):
            assert (await timed.reserve(request)).state == state
            clock.advance(milliseconds=1)
        await settle(timed, requests[1], 1)
        assert (await timed.reserve(requests[2])).state == "running"

    async def test_queue_place_of_a_dead_owner_is_passed(self, timed: Store, clock: Clock) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=1)
        running, dead = ask(key), ask(key)
        await timed.reserve(running)
        clock.advance(milliseconds=1)
        await timed.reserve(dead)
        clock.advance(seconds=20)
        assert await timed.renew(running.owner, {running.request_id: 0}, LEASE)
        clock.advance(seconds=10)
        alive = ask(key)
        assert (await timed.reserve(alive)).state == "queued"
        await settle(timed, running, 1)
        assert (await timed.reserve(alive)).state == "running"
        assert await timed.reap() == dead.request_id
        assert (await usage_totals(timed, key.tenant_id)).requests == 1

    async def test_who_can_never_run_any_more_leaves_the_queue(
        self, timed: Store, clock: Clock
    ) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=1, tokens_per_minute=60)
        who = await timed.find_key(key.public_id)
        assert who is not None
        slots = {"max_concurrent": 1, "max_queued": 1}
        running, waiting = ask(key), ask(key)
        await timed.reserve(running)
        clock.advance(milliseconds=1)
        for per_minute, state, refused_by in [
            (60, "queued", "concurrent"),
            (25, "queued", "tokens"),  # all are used, but they come back
            (10, "refused", "tokens"),  # as many as the prompt has
        ]:
            await put(timed, who.principal, "tenant", **slots, tokens_per_minute=per_minute)
            answer = await timed.reserve(waiting)
            assert (answer.state, answer.refused_by) == (state, refused_by)
        left = await timed.list_running()
        assert [row.request_id for row in left] == [running.request_id]
        await put(timed, who.principal, "tenant", **slots)
        assert (await timed.reserve(ask(key))).state == "queued", "in the place that was left"

    async def test_every_scope_must_have_room_in_its_queue(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "key", max_concurrent=1, max_queued=0)
        await put(timed, who, "tenant", max_concurrent=1, max_queued=5)
        await timed.reserve(ask(who.key))
        assert (await timed.reserve(ask(who.key))).state == "refused"

    async def test_slots_are_counted_behind_scopes_that_have_none(self, timed: Store) -> None:
        _, who = await make_key(timed)
        await put(timed, who, "key", requests_per_minute=100)
        await put(timed, who, "project", tokens_per_minute=10_000)
        await put(timed, who, "tenant", max_concurrent=1)
        assert (await timed.reserve(ask(who.key))).state == "running"
        refused = await timed.reserve(ask(who.key))
        assert (refused.refused_by, refused.scope_kind) == ("concurrent", "tenant")

    async def test_nobody_stands_behind_those_who_wait_for_another_key(
        self, timed: Store, clock: Clock
    ) -> None:
        """Of another tenant, or of one's own."""
        _, who = await make_key(timed)
        await put(timed, who, "key", max_concurrent=1, max_queued=5)
        await put(timed, who, "tenant", max_concurrent=2, max_queued=5)
        minted = mint(PEPPER)
        own = await timed.create_key(
            who.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="another",
            scopes=["chat"],
        )
        other = await limited(timed, "other", max_concurrent=1, max_queued=5)
        for state in ("running", "queued"):
            assert (await timed.reserve(ask(who.key))).state == state
            clock.advance(milliseconds=1)
        for key in (own, other):
            assert (await timed.reserve(ask(key))).state == "running"

    async def test_who_waits_is_not_extended(self, timed: Store) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=1)
        await timed.reserve(ask(key))
        waiting = ask(key)
        assert (await timed.reserve(waiting)).state == "queued"
        more = await timed.extend(
            key.tenant_id, waiting.request_id, tokens=10, generated=0, lease=LEASE
        )
        assert more is None
        unknown = await timed.extend(key.tenant_id, uuid4(), tokens=10, generated=0, lease=LEASE)
        assert unknown is None

    async def test_leases_that_end_free_slots_of_their_own_scopes(
        self, timed: Store, clock: Clock
    ) -> None:
        keys = [await limited(timed, name, max_concurrent=1) for name in ("one", "other")]
        dead = [ask(key) for key in keys]
        await timed.reserve(dead[0])
        clock.advance(seconds=1)
        await timed.reserve(dead[1])
        clock.advance(seconds=29.5)
        assert (await timed.reserve(ask(keys[1]))).state == "refused"
        assert (await timed.reserve(ask(keys[0]))).state == "running"
        clock.advance(seconds=1)
        assert [await timed.reap() for _ in range(2)] == [request.request_id for request in dead]

    async def test_what_is_settled_in_the_queue_takes_no_slot(self, timed: Store) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=1)
        running, waiting = ask(key), ask(key)
        for request, state in ((running, "running"), (waiting, "queued")):
            assert (await timed.reserve(request)).state == state
        assert await settle(timed, waiting, 1)
        (balance,) = await timed.balances([key.tenant_id])
        assert balance.num_running == 1
        assert (await timed.reserve(ask(key))).state == "queued", "in the place that was left"

    async def test_waiting_takes_no_tokens(self, timed: Store) -> None:
        key = await limited(timed, max_concurrent=1, max_queued=5, tokens_per_minute=60)
        running, waiting = ask(key, 10, 20), ask(key, 10, 20)
        await timed.reserve(running)
        answer = await timed.reserve(waiting)
        assert answer.state == "queued"
        assert answer.tokens is not None
        assert answer.tokens.remaining == 30
        for request in (waiting, ask(key, 1, 1)):
            answer = await timed.reserve(request)
            assert answer.tokens is not None
            assert answer.tokens.remaining == 30
            assert await timed.release(key.tenant_id, request.request_id)  # gives none back
        await settle(timed, running, 20)
        assert (await timed.reserve(ask(key, 10, 20))).state == "running"
