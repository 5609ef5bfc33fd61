"""Sums of usage are those of the ledger: at any moment, for any time span, whatever runs beside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args
from uuid import UUID

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenants import postgres_upkeep
from tenants.limits import Limits
from tenants.request_ids import new_request_id
from tenants.store import Store
from tenants.types import (
    USAGE_GROUPS,
    ApiKey,
    UsageBucket,
    UsageEvent,
    UsageGroup,
    UsageSum,
)
from tests.ledger import usage_totals
from tests.tenants.samples import make_event, make_key

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro")


class Settle(NamedTuple):
    key: int
    model: str
    minutes_ago: int
    is_repeated: bool


class Look(NamedTuple):
    tenant: int | None
    hours_ago: float
    hours: float
    groups: tuple[UsageGroup, ...]
    bucket: UsageBucket


minutes = st.integers(-60, 4 * 24 * 60) | st.integers(50 * 24 * 60, 100 * 24 * 60)
steps = st.lists(
    st.builds(Settle, st.integers(0, 2), st.sampled_from(["a", "b"]), minutes, st.booleans())
    | st.sampled_from(["roll up", "retention"])
    | st.builds(
        Look,
        st.none() | st.integers(0, 1),
        st.sampled_from([0.0, 3.0, 30.5, 72.0, 3000.0]) | st.floats(0, 120),
        st.sampled_from([1.0, 24.0, 4000.0]) | st.floats(0, 120),
        st.lists(st.sampled_from(USAGE_GROUPS), unique=True).map(tuple),
        st.sampled_from(["hour", "day", "total"]),
    ),
    min_size=5,
    max_size=40,
)


# Chance seldom has the same hour moved twice and settled in again, and spans that end with it.
_SETTLED: list[Settle | Look | str] = [
    Settle(key, "a", int(60 * hours_ago), False)
    for key in range(3)
    for hours_ago in (1.5, 25.5, 37.5, 49.5)
]
MOVED_TWICE = [*[*_SETTLED, "roll up"] * 2, *_SETTLED]
_GROUPED: list[tuple[int | None, tuple[UsageGroup, ...]]] = [
    (0, ()),
    (0, ("project", "model")),
    (None, ("tenant", "key")),
]
EVERY_LOOK = [
    Look(tenant, hours_ago, hours, groups, bucket)
    for tenant, groups in _GROUPED
    for bucket in get_args(UsageBucket)
    for hours_ago, hours in ((3000.0, 4000.0), (38.0, 12.0), (56.0, 18.0), (50.0, 33.5))
]


def _place_of(row: UsageSum) -> list[Any]:
    groups = (row.start, row.tenant_id, row.project_id, row.key_id, row.model)
    return [group for group in groups if group is not None]


def summed(
    events: Sequence[UsageEvent], keys: Sequence[ApiKey], start: datetime, end: datetime, look: Look
) -> set[UsageSum]:
    """The same from single requests."""
    projects = {key.id: key.project_id for key in keys}
    tenant_id = None if look.tenant is None else keys[look.tenant].tenant_id
    sums: dict[tuple[object, ...], dict[str, int]] = {}
    for event in events:
        hour = event.created_at.replace(minute=0, second=0, microsecond=0)
        if not start <= hour < end or tenant_id not in (None, event.tenant_id):
            continue
        group = (
            {"hour": hour, "day": hour.replace(hour=0), "total": None}[look.bucket],
            event.tenant_id if "tenant" in look.groups else None,
            projects[event.key_id] if "project" in look.groups else None,
            event.key_id if "key" in look.groups else None,
            event.model if "model" in look.groups else None,
        )
        so_far = sums.setdefault(group, dict.fromkeys(("requests", *COUNTS), 0))
        so_far["requests"] += 1
        for name in COUNTS:
            so_far[name] += getattr(event, name)
    names = ("start", "tenant_id", "project_id", "key_id", "model")
    return {
        UsageSum(**dict(zip(names, group, strict=True)), **counts)  # type: ignore[arg-type]
        for group, counts in sums.items()
    }


@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
async def test_sums_are_those_of_the_ledger_after_anything(
    pg_dsn: str, steps: list[Settle | Look | str]
) -> None:
    store = await Store.connect(pg_dsn)
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)  # spans begin with hours
    keys = [(await make_key(store, f"tenant {new_request_id()}"))[1].key for _ in range(2)]
    second = await store.create_key(
        keys[0].tenant_id,
        public_id=new_request_id().hex[-12:],
        key_hash=bytes(32),
        name="second",
        scopes=["chat"],
        project_id=(await store.create_project(keys[0].tenant_id, "other")).id,
    )
    keys = [keys[0], keys[1], second]
    everybody = {key.tenant_id for key in keys}
    events: list[UsageEvent] = []

    async def settle(step: Settle) -> None:
        event = make_event(
            keys[step.key],
            request_id=new_request_id(),
            model=step.model,
            created_at=now - timedelta(minutes=step.minutes_ago),
            prompt_tokens=2 * len(events) + 3,
            cached_tokens=len(events) + 2,
            completion_tokens=len(events) + 1,
            cost_micro=3,
        )
        if step.is_repeated and events:
            event = events[-1]
        assert await store.record_usage(event) == (event not in events)
        if event not in events:
            events.append(event)

    async def look(step: Look) -> None:
        start = now - timedelta(hours=step.hours_ago)
        end = start + timedelta(hours=step.hours)
        tenant_id = None if step.tenant is None else keys[step.tenant].tenant_id
        groups = step.groups
        if tenant_id is None and "tenant" not in groups:
            # Other examples of this test have left theirs in the database.
            groups = ("tenant", *groups)
        found = await store.sum_usage(tenant_id, (start, end), group_by=groups, bucket=step.bucket)
        order = [_place_of(row) for row in found]
        assert order == sorted(order)
        own = {row for row in found if row.tenant_id in everybody or tenant_id is not None}
        assert own == summed(events, keys, start, end, step._replace(groups=groups))

    try:
        for step in [*steps, *MOVED_TWICE, *EVERY_LOOK]:
            if isinstance(step, Settle):
                await settle(step)
            elif isinstance(step, Look):
                await look(step)
            elif step == "roll up":
                await store.roll_up()
            else:
                # It forgets requests, never sums.
                await store.maintain(usage_retention_months=1)
        for key in keys[:2]:
            own_events = [event for event in events if event.tenant_id == key.tenant_id]
            totals = await usage_totals(store, key.tenant_id)
            assert totals.requests == len(own_events)
    finally:
        await store.close()


async def test_whoever_reads_while_sums_are_moved_sees_each_request_once(pg_dsn: str) -> None:
    workers = [await Store.connect(pg_dsn) for _ in range(2)]
    _, who = await make_key(workers[0])
    begun = settled = 0
    done = asyncio.Event()

    async def settle(worker: Store) -> None:
        nonlocal begun, settled
        for _ in range(60):
            begun += 1
            assert await worker.record_usage(make_event(who.key, request_id=new_request_id()))
            settled += 1

    async def move(worker: Store) -> None:
        while not done.is_set():
            await worker.roll_up()

    async def read(worker: Store) -> int:
        num_reads = 0
        while not done.is_set():
            at_least = settled
            totals = await usage_totals(worker, who.tenant.id)
            assert at_least <= totals.requests <= begun
            num_reads += 1
        return num_reads

    others = [asyncio.create_task(work(w)) for work in (move, read) for w in workers]
    await asyncio.gather(*(settle(worker) for worker in workers * 4))
    done.set()
    *_, first, second = await asyncio.gather(*others)
    assert first
    assert second
    await workers[0].roll_up()
    connection = await asyncpg.connect(pg_dsn)
    assert await connection.fetchval("SELECT count(*) FROM usage_delta") == 0
    for table in ("usage_rollup", "usage_daily", "usage_daily_tenant"):
        assert await connection.fetchval(f"SELECT sum(requests) FROM {table}") == 480
    assert await connection.fetchval("SELECT count(*) FROM usage_event") == 480
    await connection.close()
    for worker in workers:
        await worker.close()


async def test_a_settlement_waits_for_no_other_settlement_s_sums(pg_dsn: str) -> None:
    """Of the same tenant, key and hour; nor for sums that are being moved."""
    store = await Store.connect(pg_dsn)
    _, who = await make_key(store)
    await store.record_usage(make_event(who.key))
    other = await asyncpg.connect(pg_dsn)
    aside = await asyncpg.connect(pg_dsn)
    async with other.transaction(), aside.transaction():
        await other.fetchval(
            "SELECT quota_settle(ARRAY[$1::uuid], ARRAY[$2::uuid], ARRAY[$3::uuid], '{demo}', "
            "'{stop}', '{1}', '{0}', '{1}', ARRAY[now()], '{NULL}', '{0}', NULL)",
            *(new_request_id(), who.tenant.id, who.key.id),
        )
        assert await aside.fetchval("SELECT usage_roll_up(100)") == 1
        async with asyncio.timeout(20.0):
            assert await store.record_usage(make_event(who.key))
    assert (await usage_totals(store, who.tenant.id)).requests == 3
    for connection in (other, aside):
        await connection.close()
    await store.close()


async def test_last_uses_of_keys_hold_up_no_settlement(pg_dsn: str) -> None:
    store = await Store.connect(pg_dsn)
    _, who = await make_key(store)
    await store.put_limits(who.tenant.id, "tenant", who.tenant.id, Limits(max_concurrent=9))
    aside = await asyncpg.connect(pg_dsn)
    touched = (
        "UPDATE api_key SET last_used_at = now() WHERE id IN "
        "(SELECT id FROM api_key WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED)"
    )
    async with aside.transaction():
        await aside.execute(touched, who.key.id)
        async with asyncio.timeout(20.0):
            assert await store.record_usage(make_event(who.key))
            # And one that somebody else changes is passed over.
            await store.touch_keys({who.key.id: datetime.now(UTC)})
    (key,) = await store.list_keys(who.tenant.id)
    assert key.last_used_at is not None
    await aside.close()
    await store.close()


async def test_all_columns_of_keys_are_audited_but_those_that_the_server_notes(pg_dsn: str) -> None:
    connection = await asyncpg.connect(pg_dsn)
    left_out = await connection.fetch(
        "SELECT attname FROM pg_attribute, pg_trigger WHERE attrelid = 'api_key'::regclass "
        "AND attnum > 0 AND NOT attisdropped AND tgrelid = attrelid AND tgname = 'api_key_audit' "
        "AND attnum <> ALL (tgattr::int2[])"
    )
    await connection.close()
    assert [row[0] for row in left_out] == ["last_used_at", "expiry_reported"]


async def test_ids_of_a_month_are_forgotten_together(pg_dsn: str) -> None:
    """Those of the months before the last three; a request that is settled again is not counted."""
    store = await Store.connect(pg_dsn)
    _, who = await make_key(store)
    connection = await asyncpg.connect(pg_dsn)
    old = datetime.now(UTC) - timedelta(days=150)
    await connection.execute("SELECT usage_add_partitions($1, 1)", old.date())
    old_id = UUID(int=int(old.timestamp() * 1000) << 80 | 7 << 76 | 2 << 62)
    new_id = new_request_id()
    for request_id, at in ((old_id, old), (new_id, datetime.now(UTC))):
        assert await store.record_usage(make_event(who.key, request_id=request_id, created_at=at))
    places = "SELECT request_id, tableoid::regclass::text FROM usage_seen"
    assert dict(map(tuple, await connection.fetch(places))) == {
        old_id: f"usage_seen_{old:%Y_%m}",
        new_id: f"usage_seen_{datetime.now(UTC):%Y_%m}",
    }
    await store.maintain()
    assert [row[0] for row in await connection.fetch(places)] == [new_id]
    assert await connection.fetchval("SELECT count(*) FROM usage_event") == 2, "the ledger stays"
    assert not await store.record_usage(make_event(who.key, request_id=new_id))
    assert (await usage_totals(store, who.tenant.id)).requests == 2
    await connection.close()
    await store.close()


async def test_ids_that_are_not_by_time_are_forgotten_in_portions(pg_dsn: str) -> None:
    """Those that are old, wherever they are in the table, and no others."""
    store = await Store.connect(pg_dsn)
    connection = await asyncpg.connect(pg_dsn)
    await connection.execute(
        # An id that begins with f is of no month's partition.
        "INSERT INTO usage_seen SELECT overlay(gen_random_uuid()::text PLACING 'f' FROM 1)::uuid, "
        "gen_random_uuid(), now() "
        "- CASE WHEN n % 5 = 0 THEN interval '1 day' ELSE interval '150 days' END "
        "FROM generate_series(1, 6000) AS n"
    )
    pages = "SELECT pg_relation_size('usage_seen_default') / 8192"
    assert await connection.fetchval(pages) > 2 * postgres_upkeep.BLOCKS
    await store.maintain()
    await store.close()
    left = "SELECT count(*), max(now() - created_at) < interval '2 days' FROM usage_seen"
    assert tuple(await connection.fetchrow(left)) == (1200, True)
    await connection.close()
