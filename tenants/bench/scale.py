"""``python -m tenants.bench.scale``: what ten thousand tenants cost, on a durable PostgreSQL of its
own that it fills (``fill``).

    sums       of 30 days, of all tenants and of the largest
    settle     p99 of settlements: alone, while last uses of all keys are written, and while the
               retention deletes old requests and months are added and dropped
    leases     how many were late meanwhile, and how many requests ran beside ``max_concurrent``
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import uvloop
from rich.console import Console
from rich.table import Table

from tenants.bench.fill import Size, fill
from tenants.bench.requests import on_own_server
from tenants.errors import QuotaExceeded
from tenants.limits import Limits
from tenants.quota import Hold, Quota
from tenants.request_ids import new_request_id
from tenants.store import Store
from tenants.types import ApiKey, Principal, UsageEvent
from tenants.upkeep import ROLL_UP_S
from tenants.usage import Ledger

DAYS = 30
SHOWN = 50
"""Tenants that the admin page shows."""
LEASE_S = 6.0
MAX_CONCURRENT = 4


@dataclass(frozen=True)
class Line:
    """One line of the result."""

    what: str
    count: int
    p50_ms: float
    p99_ms: float
    most_ms: float


@dataclass
class Load:
    """Requests of many tenants at a steady rate, and of one that is always at its limit."""

    dsn: str
    store: Store
    people: Sequence[Principal]
    full: Principal
    """Has ``MAX_CONCURRENT`` slots."""
    per_s: float
    settled_ms: list[float] = field(default_factory=list)
    num_running: int = 0
    most_running: int = 0
    num_late: int = 0

    async def run(self, until: Callable[[], bool]) -> None:
        """Until it is time: settle, keep leases, and look for late ones."""
        quota, ledger = Quota(self.store, lease_s=LEASE_S), Ledger(self.store)
        beating = asyncio.create_task(quota.run())
        watching = asyncio.create_task(self._watch())
        pressing = (self._press(quota, ledger, until) for _ in range(3 * MAX_CONCURRENT))
        clients = [asyncio.create_task(client) for client in pressing]
        try:
            began, number = time.perf_counter(), 0
            async with asyncio.TaskGroup() as group:
                while not until():
                    who = self.people[number * 7919 % len(self.people)]
                    group.create_task(self._request(quota, ledger, who))
                    number += 1
                    await asyncio.sleep(max(0.0, began + number / self.per_s - time.perf_counter()))
            await asyncio.gather(*clients)
        finally:
            for task in (beating, watching, *clients):
                task.cancel()
            await asyncio.gather(beating, watching, *clients, return_exceptions=True)

    async def _request(self, quota: Quota, ledger: Ledger, who: Principal) -> None:
        hold = await _reserve(quota, who)
        began = time.perf_counter()
        await ledger.settle(_event(who.key, hold.request_id))
        self.settled_ms.append((time.perf_counter() - began) * 1000)
        await hold.close()

    async def _press(self, quota: Quota, ledger: Ledger, until: Callable[[], bool]) -> None:
        """Requests that live longer than a lease, beside others that find no slot."""
        while not until():
            try:
                hold = await _reserve(quota, self.full)
            except QuotaExceeded:
                await asyncio.sleep(0.05)
                continue
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
            for _ in range(int(2.5 * LEASE_S / 0.1)):
                if until():
                    break
                await asyncio.sleep(0.1)
            self.num_running -= 1
            await ledger.settle(_event(self.full.key, hold.request_id))
            await hold.close()

    async def _watch(self) -> None:
        connection = await asyncpg.connect(self.dsn)
        late = "SELECT count(*) FROM reservation WHERE expires_at < clock_timestamp()"
        try:
            while True:
                await asyncio.sleep(0.2)
                self.num_late += await connection.fetchval(late)
        finally:
            await connection.close()


class Scale:
    """All measurements of a database that ``fill`` has filled."""

    def __init__(self, dsn: str, store: Store, size: Size, per_s: float) -> None:
        self._dsn = dsn
        self._store = store
        self._size = size
        self._per_s = per_s
        self.lines: list[Line] = []
        self.num_late = self.most_running = 0

    async def sums(self) -> None:
        """Whole days, as the admin page asks for them, and from this hour 30 days ago on."""
        tenants = await self._store.sum_usage(None, _days(), group_by=["tenant"])
        largest = max(tenants, key=lambda row: row.requests).tenant_id
        asked: tuple[tuple[str, UUID | None, dict[str, Any]], ...] = (
            ("all tenants, by day", None, {"bucket": "day"}),
            (
                f"all tenants, the {SHOWN} with the most tokens",
                None,
                {"group_by": ["tenant"], "by_tokens": True, "limit": SHOWN + 1},
            ),
            ("all tenants, by tenant", None, {"group_by": ["tenant"]}),
            ("all tenants, by tenant and model", None, {"group_by": ["tenant", "model"]}),
            ("all tenants, by key", None, {"group_by": ["key"]}),
            ("the largest tenant, by day", largest, {"bucket": "day"}),
            ("the largest tenant, by model", largest, {"group_by": ["model"]}),
            ("the largest tenant, by key and model", largest, {"group_by": ["key", "model"]}),
        )
        for what, tenant_id, options in asked:
            for cut, span in (("", _days()), (", days cut", _days(cut=True))):
                taken = [
                    await _timed(self._store.sum_usage(tenant_id, span, **options))
                    for _ in range(7)
                ]
                self._add(f"30 days of {what}{cut}", taken)

    async def settlements(self, seconds: float) -> None:
        """Settlements alone, beside last uses of keys, and beside upkeep."""
        people, full = await self._people()
        key_ids = await self._key_ids()

        async def rest() -> None:
            await asyncio.sleep(seconds)

        async def touch() -> None:
            until = time.perf_counter() + seconds
            while time.perf_counter() < until:
                await self._store.touch_keys(dict.fromkeys(key_ids, datetime.now(UTC)))

        async def keep_up() -> None:
            connection = await asyncpg.connect(self._dsn)
            await self._store.maintain(usage_retention_months=1)
            await connection.fetch("SELECT usage_add_partitions('2050-01-01', 2)")
            await connection.close()

        for what, beside in (
            ("settle, nothing beside it", rest),
            (f"settle, last uses of {len(key_ids):,} keys beside it", touch),
            (f"settle, {self._size.old_rows:,} old rows deleted and months added", keep_up),
        ):
            load = Load(self._dsn, self._store, people, full, self._per_s)
            work = asyncio.create_task(_and_roll_up(self._store, beside()))
            await load.run(work.done)
            await work
            self._add(what, load.settled_ms)
            self.num_late += load.num_late
            self.most_running = max(self.most_running, load.most_running)

    def _add(self, what: str, taken_ms: list[float]) -> None:
        cuts = statistics.quantiles(taken_ms, n=100, method="inclusive")
        self.lines.append(Line(what, len(taken_ms), cuts[49], cuts[98], max(taken_ms)))

    async def _people(self) -> tuple[list[Principal], Principal]:
        connection = await asyncpg.connect(self._dsn)
        found = await connection.fetch("SELECT public_id FROM api_key ORDER BY random() LIMIT 1000")
        await connection.close()
        records = [await self._store.find_key(row["public_id"]) for row in found]
        people = [record.principal for record in records if record is not None]
        full = people.pop()
        limits = Limits(max_concurrent=MAX_CONCURRENT)
        await self._store.put_limits(full.tenant.id, "key", full.key.id, limits)
        record = await self._store.find_key(full.key.public_id)
        assert record is not None
        return people, record.principal

    async def _key_ids(self) -> list[UUID]:
        connection = await asyncpg.connect(self._dsn)
        found = await connection.fetch("SELECT id FROM api_key")
        await connection.close()
        return [row["id"] for row in found]


async def _and_roll_up(store: Store, work: Coroutine[Any, Any, None]) -> None:
    """Do the work, and move sums meanwhile as a server does."""
    moving = asyncio.create_task(_roll_up(store))
    try:
        await work
    finally:
        moving.cancel()
        await asyncio.wait([moving])


async def _roll_up(store: Store) -> None:
    while True:
        await store.roll_up()
        await asyncio.sleep(ROLL_UP_S)


def _days(*, cut: bool = False) -> tuple[datetime, datetime]:
    now = datetime.now(UTC)
    start = now - timedelta(days=DAYS)
    if not cut:
        start = start.replace(hour=0, minute=0, second=0, microsecond=0)
    return start, now + timedelta(seconds=1)


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return (time.perf_counter() - began) * 1000


async def _reserve(quota: Quota, who: Principal) -> Hold:
    return await quota.reserve(
        who, request_id=new_request_id(), model="large", prompt_tokens=500, max_tokens=100
    )


def _event(key: ApiKey, request_id: UUID) -> UsageEvent:
    return UsageEvent(
        request_id=request_id,
        tenant_id=key.tenant_id,
        key_id=key.id,
        model="large",
        status="stop",
        prompt_tokens=500,
        cached_tokens=0,
        completion_tokens=100,
        created_at=datetime.now(UTC),
    )


async def run(dsn: str, size: Size, *, per_s: float, seconds: float) -> Scale:
    """Fill a migrated database, unless it is filled already, and measure it."""
    began = time.perf_counter()
    store = await Store.connect(dsn)
    try:
        scale = Scale(dsn, store, size, per_s)
        if not await store.has_keys():
            await fill(dsn, size)
            filled_s = time.perf_counter() - began
            scale.lines.append(Line("filling, in s", size.rows, filled_s, filled_s, filled_s))
        await scale.sums()
        await scale.settlements(seconds)
        return scale
    finally:
        await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tenants.bench.scale", description=__doc__)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=30_000)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--old-rows", type=int, default=8_000_000)
    parser.add_argument("--per-s", type=float, default=200.0, help="settlements a second")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--data-dir", type=Path, help="keep the filled database here, or use it")
    given = parser.parse_args()
    size = Size(given.tenants, given.keys, given.rows, DAYS, given.old_rows)

    async def work(dsn: str) -> Scale:
        return await run(dsn, size, per_s=given.per_s, seconds=given.seconds)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        scale = runner.run(on_own_server(work, given.data_dir))
    table = Table("", title=f"{size.tenants:,} tenants, {size.keys:,} keys, {size.rows:,} requests")
    for title in ("times", "p50 ms", "p99 ms", "most ms"):
        table.add_column(title, justify="right")
    for one in scale.lines:
        times = (f"{value:,.1f}" for value in (one.p50_ms, one.p99_ms, one.most_ms))
        table.add_row(one.what, f"{one.count:,}", *times)
    console = Console(width=120)
    console.print(table)
    console.print(f"late leases: {scale.num_late}")
    console.print(f"most at once with max_concurrent={MAX_CONCURRENT}: {scale.most_running}")


if __name__ == "__main__":
    main()
