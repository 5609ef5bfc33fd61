"""Webhooks: which events there are, for whom, and who sends them."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tenants import keys
from tenants.errors import InvalidValue, ObjectNotFound
from tenants.limits import Price, QuotaRequest
from tenants.shared import EngineRecord
from tenants.store import Store
from tenants.types import Principal
from tenants.webhooks import MAX_WEBHOOKS, Backlog, Webhook
from tests.postgres import execute
from tests.tenants.reserving import ask, put, settle
from tests.tenants.samples import PEPPER, make_key

pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

LEASE = timedelta(seconds=60)
NOTHING_WAITS = Backlog(num_pending=0, oldest_s=0.0)
URL = "https://receiver.example/hooks"


async def events_of(store: Store, webhook: Webhook) -> list[dict[str, Any]]:
    """What waits for a webhook, in the order in which it is sent."""
    due = await store.webhooks.due(webhook.id, 10_000)
    bodies = [json.loads(one.body) for one in due]
    assert [one.type for one in due] == [body["type"] for body in bodies]
    return bodies


class TestKept:
    """Where events are sent; in both stores."""

    async def test_a_life(self, store: Store) -> None:
        tenant = await store.create_tenant("acme")
        kept = store.webhooks
        mine = await kept.create(tenant.id, URL, ["key.expiring", "key.expiring"])
        site = await kept.create(None, URL, ())
        assert (mine.events, site.events) == (("key.expiring",), ())
        assert [one.id for one in await kept.all()] == [mine.id, site.id]
        assert [one.id for one in await kept.all(tenant.id)] == [mine.id]
        changed = await kept.update(mine.id, url=URL + "/2", events=(), disabled=True)
        assert (changed.url, changed.events) == (URL + "/2", ())
        again = await kept.update(mine.id, disabled=True)
        assert again == changed
        assert (await kept.update(mine.id, disabled=False)).disabled_at is None
        rotated = await kept.rotate(mine.id, timedelta(hours=1))
        assert rotated.secret_version == 2
        assert rotated.old_secret_until is not None
        assert abs(rotated.old_secret_until - datetime.now(UTC) - timedelta(hours=1)).seconds < 60
        await kept.delete(mine.id)
        for gone in (kept.delete, kept.rotate, kept.test, kept.update):
            with pytest.raises(ObjectNotFound, match="webhook"):
                await gone(mine.id)

    async def test_what_is_refused(self, store: Store) -> None:
        with pytest.raises(InvalidValue, match=r"'key\.expired' is none of .*key\.expiring"):
            await store.webhooks.create(None, URL, ["key.expired"])
        with pytest.raises(ObjectNotFound):
            await store.webhooks.create(uuid4(), URL, ())
        for _ in range(MAX_WEBHOOKS):
            await store.webhooks.create(None, URL, ())
        with pytest.raises(InvalidValue, match="16 webhooks"):
            await store.webhooks.create(None, URL, ())
        tenant = await store.create_tenant("acme")
        assert await store.webhooks.create(tenant.id, URL, ())


class TestBudgets:
    async def test_each_threshold_once_in_the_order_of_crossing(self, pg_store: Store) -> None:
        """Over random lives of requests, some of which run at the same time."""
        rng = random.Random(7)
        hook = await pg_store.webhooks.create(None, URL, ())
        for number in range(6):
            _, who = await make_key(pg_store, f"tenant {number}")
            budget, used, expected = rng.randint(200, 2000), 0, []
            await put(pg_store, who, "tenant", monthly_tokens=budget)
            running: list[QuotaRequest] = []
            while used < budget:
                request = ask(who.key, prompt=rng.randint(0, 30), completion=rng.randint(1, 60))
                answer = await pg_store.reserve(request)
                if answer.state == "running":
                    running.append(request)
                if running and (answer.state != "running" or rng.random() < 0.5):
                    ended = running.pop(rng.randrange(len(running)))
                    generated = rng.randint(0, ended.completion_tokens)
                    before = used
                    used += ended.prompt_tokens + generated
                    await settle(pg_store, ended, generated)
                    expected += [
                        (step, used)
                        for step in (50, 80, 100)
                        if before < budget * step / 100 <= used
                    ]
                elif answer.state != "running":
                    break  # What is left is too little for the next one.
            events = [
                event["data"]
                for event in await events_of(pg_store, hook)
                if event["data"]["tenant_id"] == str(who.tenant.id)
            ]
            assert [(one["threshold_percent"], one["used"]) for one in events] == expected
            assert {
                (one["scope"], one["scope_id"], one["limit"], one["budget"]) for one in events
            } == {("tenant", str(who.tenant.id), budget, "tokens")}

    async def test_spending_and_scopes(self, pg_store: Store) -> None:
        _, who = await make_key(pg_store)
        hook = await pg_store.webhooks.create(who.tenant.id, URL, ())
        await put(pg_store, who, "key", monthly_cost_micro=1000)
        await put(pg_store, who, "project", monthly_tokens=100)
        price = Price(prompt=10_000_000, completion=10_000_000)  # ten millionths a token
        request = ask(who.key, prompt=80, completion=20, price=price)
        assert (await pg_store.reserve(request)).state == "running"
        await settle(pg_store, request, 10, cost_micro=900)
        told = [
            (one["data"]["scope"], one["data"]["budget"], one["data"]["threshold_percent"])
            for one in await events_of(pg_store, hook)
        ]
        assert sorted(told) == [
            ("key", "cost_micro", 50), ("key", "cost_micro", 80),
            ("project", "tokens", 50), ("project", "tokens", 80),
        ]  # fmt: skip

    async def test_a_budget_that_is_raised_is_reported_anew(self, pg_store: Store) -> None:
        _, who = await make_key(pg_store)
        hook = await pg_store.webhooks.create(None, URL, ())

        async def use(tokens: int) -> list[int]:
            known = len(await events_of(pg_store, hook))
            await settle(pg_store, ask(who.key, prompt=tokens), 0)  # never reserved
            events = await events_of(pg_store, hook)
            return [event["data"]["threshold_percent"] for event in events[known:]]

        await put(pg_store, who, "tenant", monthly_tokens=100)
        assert await use(100) == [50, 80, 100]
        assert await use(1) == []
        await put(pg_store, who, "tenant", monthly_tokens=200)
        assert await use(1) == []
        assert await use(60) == [80]
        assert await use(60) == [100]
        await put(pg_store, who, "tenant", monthly_tokens=0)
        assert await use(1) == []

    async def test_a_month_later(self, pg_store: Store, pg_dsn: str) -> None:
        _, who = await make_key(pg_store)
        hook = await pg_store.webhooks.create(None, URL, ())
        await put(pg_store, who, "tenant", monthly_tokens=100)
        await settle(pg_store, ask(who.key, prompt=60), 0)
        await execute(
            pg_dsn, "UPDATE limit_state SET month = '2020-01-01', reported_month = '2020-01-01'"
        )
        await settle(pg_store, ask(who.key, prompt=60), 0)
        events = await events_of(pg_store, hook)
        assert [one["data"]["threshold_percent"] for one in events] == [50, 50]

    async def test_no_event_of_a_settlement_that_is_undone(
        self, pg_store: Store, pg_dsn: str
    ) -> None:
        _, who = await make_key(pg_store)
        hook = await pg_store.webhooks.create(None, URL, ())
        await put(pg_store, who, "tenant", monthly_tokens=100)
        connection = await asyncpg.connect(pg_dsn)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "SELECT quota_settle(ARRAY[gen_random_uuid()], ARRAY[$1::uuid], ARRAY[$2::uuid], "
            "'{demo}', '{stop}', '{90}', '{0}', '{0}', ARRAY[now()], '{NULL}', '{0}', NULL)",
            *(who.tenant.id, who.key.id),
        )
        assert await connection.fetchval("SELECT count(*) FROM webhook_delivery") == 2
        await transaction.rollback()
        await connection.close()
        assert await events_of(pg_store, hook) == []


class TestTime:
    async def test_keys_that_expire(self, pg_store: Store, pg_dsn: str) -> None:
        _, who = await make_key(pg_store)
        hook = await pg_store.webhooks.create(who.tenant.id, URL, ["key.expiring"])
        now = datetime.now(UTC)
        made: dict[str, tuple[float, float]] = {
            # name: created so many days ago, expires in so many
            "never": (30, 1000), "in time": (30, 8), "week": (30, 6.9), "day": (30, 0.9),
            "gone": (30, -1), "short": (0, 3), "short day": (1, 0.5), "hour": (0, 0.05),
        }  # fmt: skip
        for name, (age, rest) in made.items():
            await self._key(pg_store, pg_dsn, who, name, now - timedelta(days=age), rest)
        await self._key(pg_store, pg_dsn, who, "revoked", now - timedelta(days=30), 0.5)
        revoked = [key for key in await pg_store.list_keys(who.tenant.id) if key.name == "revoked"]
        await pg_store.revoke_key(revoked[0].public_id)

        async def told() -> list[tuple[str, int]]:
            while await pg_store.webhooks.upkeep():
                pass
            events = await events_of(pg_store, hook)
            return sorted((event["data"]["name"], event["data"]["days"]) for event in events)

        assert await told() == [("day", 1), ("short day", 1), ("week", 7)]
        assert await told() == [("day", 1), ("short day", 1), ("week", 7)]
        await execute(pg_dsn, "UPDATE api_key SET expires_at = now() + interval '23 hours' "
                              "WHERE name = 'week'")  # fmt: skip
        assert await told() == [("day", 1), ("short day", 1), ("week", 1), ("week", 7)]
        audited = [one.action for one in await pg_store.list_audit(who.tenant.id)]
        assert Counter(audited)["key.update"] == 1 + len(made) + 1  # those of this test only

    async def _key(
        self, store: Store, dsn: str, who: Principal, name: str, created: datetime, days: float
    ) -> None:
        minted = keys.mint(PEPPER)
        await store.create_key(
            who.tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name=name,
            scopes=["chat"],
            expires_at=datetime.now(UTC) + timedelta(days=days + 100),
        )
        await execute(
            dsn,
            f"UPDATE api_key SET created_at = '{created.isoformat()}', "
            f"expires_at = now() + interval '{days} days' WHERE name = '{name}'",
        )

    async def test_what_is_over_is_deleted_after_a_week(self, pg_store: Store, pg_dsn: str) -> None:
        hook = await pg_store.webhooks.create(None, URL, ())
        for state in ("delivered", "failed", "pending"):
            event = await pg_store.webhooks.test(hook.id)
            again = LEASE if state == "pending" else None
            await pg_store.webhooks.note(
                hook.id,
                event,
                state=state,
                answer="200",
                again_in=again,
            )
        assert await pg_store.webhooks.upkeep() == 0
        await execute(pg_dsn, "UPDATE webhook_delivery SET created_at = now() - interval '8 days', "
                              "ended_at = ended_at - interval '8 days'")  # fmt: skip
        assert await pg_store.webhooks.upkeep() == 2
        (left,) = await pg_store.webhooks.deliveries(hook.id)
        assert (left.state, left.num_attempts, left.last_answer) == ("pending", 1, "200")


async def test_engines_that_go_down_and_come_back(pg_store: Store) -> None:
    hook = await pg_store.webhooks.create(None, URL, ())
    _, who = await make_key(pg_store)
    await pg_store.webhooks.create(who.tenant.id, URL, ())

    async def register(epoch: int, state: str, lease: timedelta = LEASE) -> None:
        record = EngineRecord(
            id="gpu-1", model="demo", config_hash="c", text_hash="t", protocol=1, version="1",
            capacity=8, epoch=epoch, state=state,  # type: ignore[arg-type]
        )  # fmt: skip
        assert await pg_store.shared.register_engine(record, lease) == "ok"

    async def told() -> list[str]:
        return [event["type"] for event in await events_of(pg_store, hook)]

    await register(1, "loading")
    await register(1, "ready")
    await register(1, "ready")
    assert await told() == ["engine.up"]
    await register(2, "ready")  # It was down for so short that nobody saw it.
    assert await told() == ["engine.up", "engine.down", "engine.up"]
    await register(2, "ready", timedelta(seconds=-1))
    assert await pg_store.shared.lose_engine("gpu-1", 2)
    await register(3, "loading")
    assert (await told())[3:] == ["engine.down"]
    await register(3, "ready")
    assert (await told())[4:] == ["engine.up"]
    await pg_store.shared.forget_engine("gpu-1", 3)
    assert len(await told()) == 5
    (mine,) = await pg_store.webhooks.all(who.tenant.id)
    assert await events_of(pg_store, mine) == []


async def emit(dsn: str, tenant_id: UUID | None, kind: str, count: int = 1) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET ROLE sluice_app")
    for _ in range(count):
        await connection.execute("SELECT webhook_event($1, $2, '{\"n\": 1}')", tenant_id, kind)
    await connection.close()


async def test_who_gets_an_event(pg_store: Store, pg_dsn: str) -> None:
    one = await pg_store.create_tenant("one")
    two = await pg_store.create_tenant("two")
    hooks = {
        "site": await pg_store.webhooks.create(None, URL, ()),
        "one": await pg_store.webhooks.create(one.id, URL, ()),
        "batches of one": await pg_store.webhooks.create(one.id, URL, ["batch.completed"]),
        "two": await pg_store.webhooks.create(two.id, URL, ()),
        "off": await pg_store.webhooks.create(one.id, URL, ()),
    }
    await pg_store.webhooks.update(hooks["off"].id, disabled=True)
    await emit(pg_dsn, one.id, "batch.completed")
    await emit(pg_dsn, one.id, "batch.failed")
    await emit(pg_dsn, None, "engine.down")
    got = {
        name: [event["type"] for event in await events_of(pg_store, hook)]
        for name, hook in hooks.items()
    }
    assert got == {
        "site": ["batch.completed", "batch.failed", "engine.down"],
        "one": ["batch.completed", "batch.failed"],
        "batches of one": ["batch.completed"],
        "two": [],
        "off": [],
    }
    (first, *_), (same, *_) = [
        await pg_store.webhooks.due(hooks[name].id, 9) for name in ("site", "one")
    ]
    assert first.event_id == same.event_id
    assert json.loads(first.body)["data"] == {"n": 1, "tenant_id": str(one.id)}


async def test_no_tenant_sees_what_waits_for_anothers(pg_store: Store, pg_dsn: str) -> None:
    one = await pg_store.create_tenant("one")
    await pg_store.webhooks.create(None, URL, ())
    await pg_store.webhooks.create(one.id, URL, ())
    await emit(pg_dsn, one.id, "batch.completed")
    connection = await asyncpg.connect(pg_dsn)
    await connection.execute("SET ROLE sluice_app")
    for table in ("webhook", "webhook_delivery"):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
        async with connection.transaction():
            await connection.execute("SELECT sluice_enter($1)", one.id)
            assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 1
    await connection.close()


async def test_what_waits_is_counted(pg_store: Store, pg_dsn: str) -> None:
    kept = pg_store.webhooks
    assert await kept.backlog() == NOTHING_WAITS
    one, other = await kept.create(None, URL, ()), await kept.create(None, URL, ())
    first = await kept.test(one.id)
    await kept.test(one.id)
    await kept.test(other.id)
    await execute(pg_dsn, "UPDATE webhook_delivery SET created_at = created_at - interval '1 hour'")
    found = await kept.backlog()
    assert found.num_pending == 3
    assert 3600 <= found.oldest_s < 3700
    await kept.note(one.id, first, state="delivered", answer="200", again_in=None)
    await kept.update(other.id, disabled=True)
    assert (await kept.backlog()).num_pending == 1
    await kept.update(one.id, disabled=True)
    assert await kept.backlog() == NOTHING_WAITS


async def test_what_waits_is_bounded(pg_store: Store, pg_dsn: str) -> None:
    hook = await pg_store.webhooks.create(None, URL, ())
    one = await pg_store.create_tenant("one")
    two = await pg_store.create_tenant("two")
    own = await pg_store.webhooks.create(one.id, URL, ())
    await emit(pg_dsn, one.id, "batch.failed", count=101)
    assert len(await events_of(pg_store, own)) == 101
    # Who makes them by the thousand keeps the deployment's from nobody else.
    assert len(await events_of(pg_store, hook)) == 100
    await emit(pg_dsn, two.id, "budget.threshold_reached")
    await emit(pg_dsn, None, "engine.down", count=1001)
    assert len(await events_of(pg_store, hook)) == 100 + 1 + 1000


async def test_one_worker_at_a_time(pg_store: Store, pg_dsn: str) -> None:
    kept = pg_store.webhooks
    hooks = [await kept.create(None, URL, ()) for _ in range(3)]
    idle = await kept.create(None, URL, ["engine.up"])
    await emit(pg_dsn, None, "engine.down")
    first = await kept.claim(2, LEASE)
    second = await kept.claim(9, timedelta())
    assert sorted([one.id for one in (*first, *second)]) == sorted(one.id for one in hooks)
    assert idle.id not in {one.id for one in (*first, *second)}
    # The second one's lease is over: it died.
    assert [one.id for one in await kept.claim(9, LEASE)] == [second[0].id]
    await kept.release(first[0].id, timedelta())
    assert [one.id for one in await kept.claim(9, LEASE)] == [first[0].id]
    (due,) = await kept.due(first[0].id, 9)
    await kept.note(first[0].id, due.event_id, state="pending", answer="500", again_in=LEASE)
    await kept.release(first[0].id, timedelta())
    assert await kept.claim(9, LEASE) == []  # Nothing is due.
