"""Workers of an earlier version go on while the database is migrated under them.

A new version is rolled out in this order: migrate, then replace the workers one by one. So what any
version asked of the database must be answered by every later schema, and while it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

import migrations
from migrations import revisions
from tenants import queries
from tests.postgres import owned

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

HERE = Path(__file__).parent
OLD = queries.parse((HERE / "old_statements.sql").read_text())
OF_0006 = queries.parse((HERE / "statements_0006.sql").read_text())
LEASE = timedelta(seconds=30)
NUM_WORKERS = 3


async def test_every_later_schema_understands_what_was_ever_asked(empty_pg_dsn: str) -> None:
    found: list[str] = []
    for revision in revisions.known():
        await migrations.upgrade(empty_pg_dsn, revision)
        connection = await asyncpg.connect(empty_pg_dsn)
        for name, query in OLD.items():
            if name.rpartition("_")[2] <= revision:
                try:
                    await connection.prepare(query.sql)
                except asyncpg.PostgresError as error:
                    found.append(f"{revision} breaks {name}: {error}")
        await connection.close()
    assert not found


async def test_the_statements_of_this_version_are_understood_by_its_schema(
    empty_pg_dsn: str,
) -> None:
    """Otherwise the test above could not tell a broken statement from a forgotten one."""
    await migrations.upgrade(empty_pg_dsn)
    connection = await asyncpg.connect(empty_pg_dsn)
    for query in queries.load().values():
        await connection.prepare(query.sql)
    current = {query.sql for query in queries.load().values()}
    assert not current & {query.sql for query in OLD.values()}, "it is asked today"
    await connection.close()


class Worker:
    """One of 0006: requests one after the other, with plans that it keeps, as asyncpg does."""

    def __init__(self, connection: asyncpg.Connection, tenant_id: UUID, key_id: UUID) -> None:
        self._connection = connection
        self._tenant_id = tenant_id
        self._key_id = key_id
        self._id = uuid4()
        self.num_tokens = 0
        self.num_requests = 0

    async def ask(self, name: str, *values: object) -> list[asyncpg.Record]:
        found: list[asyncpg.Record] = await self._connection.fetch(OF_0006[name].sql, *values)
        return found

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            await self.request()

    async def request(self) -> None:
        request_id, now = uuid4(), datetime.now(UTC)
        (found,) = await self.ask("find_key", "A" * 12)
        assert found["id"] == self._key_id
        (project,) = await self.ask("list_projects", self._tenant_id)
        which = (request_id, self._tenant_id, project["id"], self._key_id, "m")
        (answer,) = await self.ask("reserve", *which, 10, 20, 0, 0, self._id, LEASE, None)
        assert answer["state"] == "running"
        (more,) = await self.ask("extend", request_id, self._tenant_id, 5, 9, LEASE, None)
        assert more["granted"] == 5
        assert await self.ask("renew", self._id, [request_id], [9], LEASE, None)
        if self.num_requests % 5 == 4:
            await self.ask("release", request_id, self._tenant_id, None)
        else:
            event = (request_id, self._tenant_id, self._key_id, "m", "stop", 10, 0, 12, now, None)
            (written,) = await self.ask("record_usage", *event, 0, None)
            assert written["written"]
            self.num_tokens += 12
        self.num_requests += 1


@asynccontextmanager
async def workers(dsn: str) -> AsyncIterator[list[Worker]]:
    connections = [await asyncpg.connect(dsn) for _ in range(NUM_WORKERS)]
    tenant_id, key_id = uuid4(), uuid4()
    made = [Worker(connection, tenant_id, key_id) for connection in connections]
    await made[0].ask("create_tenant", tenant_id, "acme", 1.0, 0)
    key: tuple[object, ...] = (
        key_id,
        tenant_id,
        None,
        "A" * 12,
        bytes(32),
        "x",
        ["chat"],
        [],
        "{}",
        None,
    )
    await made[0].ask("create_key", *key)
    limits = (10**6, 10**9, 100, None, None, 10**9, None, None, None)
    await made[0].ask("put_limits", tenant_id, "tenant", tenant_id, *limits)
    try:
        yield made
    finally:
        for connection in connections:
            await connection.close()


async def test_workers_serve_through_all_migrations_since(
    postgres_server: str, empty_pg_dsn: str
) -> None:
    """None of their requests fails, and none is lost."""
    async with owned(empty_pg_dsn) as dsn:
        await migrations.upgrade(dsn, "0006")
        async with workers(dsn) as old:
            is_over = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for worker in old:
                    group.create_task(worker.run(is_over))
                later = [revision for revision in revisions.known() if revision > "0006"]
                for revision in later:
                    await asyncio.sleep(0.05)
                    await migrations.upgrade(dsn, revision)
                await asyncio.sleep(0.1)
                is_over.set()
            assert await migrations.current(dsn) == migrations.head()
            assert min(worker.num_requests for worker in old) > len(later)
            (totals,) = await old[0].ask("usage_totals", old[0]._tenant_id)
            assert totals["completion_tokens"] == sum(worker.num_tokens for worker in old)
            (left,) = await old[0].ask("reap", datetime.now(UTC) + timedelta(days=1))
            assert left["request_id"] is None, "no reservation is left"
