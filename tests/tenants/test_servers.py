"""Other servers than the embedded one: older versions, a plain owner, a pooler in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

import migrations
from tenants.changes import Change, ChangeListener
from tenants.embedded import find_binaries
from tenants.errors import MigrationRefused, StoreUnavailable
from tenants.limits import Limits
from tenants.store import Store
from tests.ledger import usage_totals
from tests.postgres import (
    empty_pg_dsn,
    execute,
    installed,
    owned,
    pg_dsn,
    pg_folder,
    postgres_server,
    started,
)
from tests.tenants.reserving import ask, settle
from tests.tenants.samples import make_event, make_key

__all__ = ["empty_pg_dsn", "pg_dsn", "pg_folder", "postgres_server"]

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

VERSIONS = pytest.mark.parametrize("version", ["15", "16", "17", "18"])
CONTRACTS = (
    "tests/migrations",
    *(
        f"tests/tenants/test_{name}.py"
        for name in (
            "store",
            "reservations",
            "quota",
            "usage",
            "workers",
            "isolation",
            "audit",
            "shared",
            "changes",
            "limits",
            "postgres",
        )
    ),
)
POOLER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


async def exercise(store: Store) -> None:
    """A request's whole life, and what an administrator does."""
    _, who = await make_key(store)
    tenant_id = who.tenant.id
    await store.put_limits(tenant_id, "tenant", tenant_id, Limits(max_concurrent=2))
    requests = [ask(who.key) for _ in range(3)]
    answers = [await store.reserve(request) for request in requests]
    assert [answer.state for answer in answers] == ["running", "running", "refused"]
    assert await store.extend(
        tenant_id, requests[0].request_id, tokens=9, generated=5, lease=requests[0].lease
    )
    assert await store.renew(requests[0].owner, {requests[0].request_id: 5}, requests[0].lease)
    assert await settle(store, requests[0], 7)
    assert await store.release(tenant_id, requests[1].request_id)
    assert await store.record_usage(make_event(who.key))
    assert (await usage_totals(store, tenant_id)).requests == 2
    assert [tenant.id for tenant in await store.list_tenants()] == [tenant_id]
    assert (await store.revoke_key(who.key.public_id)).revoked_at is not None
    found = await store.find_key(who.key.public_id)
    assert found is not None
    assert found.principal.policies
    await store.touch_keys({who.key.id: who.key.created_at})
    await store.maintain()
    assert await store.reap() is None


def binaries_of(version: str) -> Path:
    found = installed()
    if version not in found:
        pytest.skip(
            f"no PostgreSQL {version}: apt-get install postgresql-{version}, or name its programs' "
            "folder in SLUICE_TEST_POSTGRES_BINDIRS"
        )
    return found[version]


@VERSIONS
async def test_a_server_of_the_user_s(version: str, pg_folder: Path) -> None:
    """From an empty cluster to a served request."""
    with started(binaries_of(version), pg_folder) as dsn:
        with pytest.raises(StoreUnavailable, match="run `sluice migrate`"):
            await Store.connect(dsn)
        await migrations.upgrade(dsn)
        store = await Store.connect(dsn)
        await exercise(store)
        await store.close()


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@VERSIONS
async def test_all_contracts_hold_on_it(version: str) -> None:
    """The tests of the store, its limits, its isolation and the migrations, on this version."""
    environment = os.environ | {"SLUICE_TEST_POSTGRES_BINDIR": str(binaries_of(version))}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "pg", "-p", "no:cacheprovider"]
    pytest_run = await asyncio.create_subprocess_exec(
        *command, *CONTRACTS, env=environment, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await pytest_run.communicate()
    assert pytest_run.returncode == 0, told.decode()[-5000:]
    assert b" passed" in told


async def test_an_owner_without_privileges(postgres_server: str, empty_pg_dsn: str) -> None:
    """As a hosting company hands out databases: it is yours, the server is not."""
    async with owned(empty_pg_dsn) as dsn:
        await migrations.upgrade(dsn)
        store = await Store.connect(dsn)
        await exercise(store)
        assert await store._connections._pool.fetchval("SELECT current_user") == "sluice_app"
        assert await store._connections._pool.fetch("SELECT * FROM tenant") == []
        await store.close()
        connection = await asyncpg.connect(empty_pg_dsn)
        assert await connection.fetchval("SELECT count(*) FROM usage_event") == 2
        await connection.close()


async def test_an_owner_who_may_not_make_roles_is_told_whom_to_ask(pg_folder: Path) -> None:
    binaries = find_binaries()
    assert binaries is not None
    with started(binaries, pg_folder) as dsn:
        await execute(dsn, "CREATE ROLE poor LOGIN", "ALTER SCHEMA public OWNER TO poor")
        with pytest.raises(MigrationRefused, match=r"CREATE ROLE sluice_app; .* TO poor$"):
            await migrations.upgrade(dsn.replace("//postgres@", "//poor@"))


@contextlib.contextmanager
def pooler(dsn: str, folder: Path) -> Iterator[str]:
    """PgBouncer in transaction mode with two connections to the server; its DSN."""
    assert POOLER is not None
    parts = urlsplit(dsn)
    query = dict(pair.split("=", 1) for pair in parts.query.split("&"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={query['host']} port={query['port']} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = any\nauth_file = {folder / 'users.txt'}\nlogfile = {folder / 'log'}\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n"
    )
    # It refuses to run as root, and the server's socket is its account's alone.
    owner = Path(query["host"]).stat()
    shutil.chown(folder, owner.st_uid, owner.st_gid)
    identity: Any = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    child = subprocess.Popen(
        [POOLER, folder / "pgbouncer.ini"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        **identity,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
    finally:
        child.terminate()
        child.wait(60)


@pytest.mark.skipif(POOLER is None, reason="no PgBouncer: apt-get install pgbouncer")
class TestPooler:
    async def test_a_pooler_in_transaction_mode(self, pg_dsn: str, pg_folder: Path) -> None:
        with pooler(pg_dsn, pg_folder) as dsn:
            store = await Store.connect(dsn, is_pooled=True)
            await exercise(store)
            await store.close()

    async def test_tenants_interleave_on_two_sessions(self, pg_dsn: str, pg_folder: Path) -> None:
        """Thirty clients of two workers on two connections: nobody sees what is another's."""
        with pooler(pg_dsn, pg_folder) as dsn:
            workers = [await Store.connect(dsn, is_pooled=True) for _ in range(2)]
            people = [(await make_key(workers[0], f"tenant {n}"))[1] for n in range(3)]

            async def client(number: int) -> None:
                who, worker = people[number % 3], workers[number % 2]
                request = ask(who.key)
                assert (await worker.reserve(request)).state == "running"
                assert [key.id for key in await worker.list_keys(who.tenant.id)] == [who.key.id]
                assert await settle(worker, request, 4)

            await asyncio.gather(*(client(number) for number in range(30)))
            for who in people:
                assert (await usage_totals(workers[1], who.tenant.id)).completion_tokens == 40
            for worker in workers:
                await worker.close()
        aside = await asyncpg.connect(pg_dsn)
        left = (
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE application_name = 'sluice' AND datname = current_database()"
        )
        assert await aside.fetchval(left) <= 2
        await aside.close()

    async def test_without_saying_so_it_is_refused(self, pg_dsn: str, pg_folder: Path) -> None:
        with (
            pooler(pg_dsn, pg_folder) as dsn,
            pytest.raises(StoreUnavailable, match="transaction_pooling"),
        ):
            await Store.connect(dsn)

    async def test_changes_are_heard_past_it(self, pg_dsn: str, pg_folder: Path) -> None:
        heard: asyncio.Queue[Change] = asyncio.Queue()
        with pooler(pg_dsn, pg_folder) as dsn:
            store = await Store.connect(dsn, is_pooled=True)
            _, who = await make_key(store)
            listening = asyncio.create_task(ChangeListener(pg_dsn, heard.put_nowait).run())
            assert await asyncio.wait_for(heard.get(), 30) == Change()
            await store.revoke_key(who.key.public_id)
            change = await asyncio.wait_for(heard.get(), 30)
            assert change.public_id == who.key.public_id
            listening.cancel()
            await store.close()
