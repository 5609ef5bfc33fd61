"""What only the real server shows: its checks, its failures, its connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

import migrations
from tenants.embedded import EmbeddedPostgres
from tenants.errors import InvalidValue, StoreUnavailable
from tenants.limits import Limits
from tenants.store import Store
from tenants.types import UsageFilter
from tenants.usage import Ledger
from tests.ledger import usage_totals
from tests.postgres import FAST, execute, owned, with_database
from tests.tenants.reserving import ask, limited
from tests.tenants.samples import make_event, make_key

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]


@pytest.fixture
def pg_dsn(own_pg_dsn: str) -> str:
    """These tests change tables."""
    return own_pg_dsn


@pytest.fixture
def own_server(pg_folder: Path) -> Iterator[EmbeddedPostgres]:
    """A server this test may stop and start."""
    server = EmbeddedPostgres(pg_folder, settings=FAST)
    server.start()
    yield server
    server.stop()


class TestConnect:
    @pytest.mark.parametrize(
        "dsn",
        [
            "mysql://u:secret@h/d",
            "postgresql://h/d?sslmode=nonsense",
            "postgresql://u:secret@h/d?sslmode=verify-full&sslrootcert=/nowhere.crt",
            "x",
        ],
    )
    async def test_bad_dsn(self, dsn: str) -> None:
        with pytest.raises(InvalidValue, match="dsn") as caught:
            await Store.connect(dsn)
        assert "secret" not in str(caught.value)

    async def test_nobody_there(self, tmp_path: Path) -> None:
        for dsn in (
            "postgresql://u:secret@127.0.0.1:1/sluice",
            f"postgresql://u:secret@/sluice?host={tmp_path}",
        ):
            with pytest.raises(
                StoreUnavailable, match=r"PostgreSQL at .* does not answer"
            ) as caught:
                await Store.connect(dsn)
            assert "secret" not in str(caught.value)

    async def test_server_that_says_nothing(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            dsn = f"postgresql://u@127.0.0.1:{server.getsockname()[1]}/x?sslmode=disable"
            with pytest.raises(StoreUnavailable, match="timed out"):
                await Store.connect(dsn, connect_timeout_s=0.2)

    async def test_no_such_database(self, postgres_server: str) -> None:
        with pytest.raises(StoreUnavailable, match='refuses us: database "nope" does not exist'):
            await Store.connect(with_database(postgres_server, "nope"))

    async def test_no_such_user(self, postgres_server: str) -> None:
        dsn = postgres_server.replace("//postgres@", "//nobody_we_know@")
        with pytest.raises(StoreUnavailable, match="refuses us"):
            await Store.connect(dsn)

    async def test_closed_store_is_unavailable(self, pg_store: Store) -> None:
        await pg_store.close()
        with pytest.raises(StoreUnavailable):
            await pg_store.ping()

    async def test_unmigrated_database_is_told_with_its_mend(self, postgres_server: str) -> None:
        store = await Store.connect(postgres_server)
        with pytest.raises(StoreUnavailable, match="run `sluice migrate`"):
            await store.list_tenants()
        await store.close()


class TestFailures:
    async def test_statement_that_hangs_times_out(self, pg_dsn: str) -> None:
        store = await Store.connect(pg_dsn, command_timeout_s=1.0)
        await store.create_tenant("acme")
        blocker = await asyncpg.connect(pg_dsn)
        async with blocker.transaction():
            await blocker.execute("LOCK TABLE tenant IN ACCESS EXCLUSIVE MODE")
            async with asyncio.timeout(30):
                with pytest.raises(StoreUnavailable):
                    await store.get_tenant("acme")
        await blocker.close()
        assert (await store.get_tenant("acme")).name == "acme"
        await store.close()

    async def test_lost_connections_are_replaced(self, pg_dsn: str) -> None:
        store = await Store.connect(pg_dsn)
        await asyncio.gather(*(store.ping() for _ in range(8)))
        lost = [one._con for one in store._connections._pool._holders if one.is_connected()]
        aside = await asyncpg.connect(pg_dsn)
        await aside.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'sluice' AND datname = current_database()"
        )
        await aside.close()
        async with asyncio.timeout(30):
            while not all(one.is_closed() for one in lost):  # noqa: ASYNC110 - asyncpg's state
                await asyncio.sleep(0.01)
        await asyncio.gather(*(store.ping() for _ in range(8)))
        await store.close()

    async def test_python_and_the_database_agree_on_what_is_possible(self, pg_dsn: str) -> None:
        """Each check of ``tenants.names`` is backed by a constraint of its own name."""
        tenant_id, key_id = uuid4(), uuid4()
        key_columns = "id, tenant_id, public_id, key_hash, name, scopes"
        event_columns = (
            "request_id, tenant_id, key_id, model, status, "
            "prompt_tokens, cached_tokens, completion_tokens, created_at"
        )

        def key(public_id: str, num_bytes: int, name: str, scopes: str) -> str:
            return (
                f"INSERT INTO api_key ({key_columns}) VALUES ('{key_id}', '{tenant_id}', "
                f"'{public_id}', decode(repeat('00', {num_bytes}), 'hex'), '{name}', '{scopes}')"
            )

        def event(model: str, status: str, prompt: int, cached: int, completion: int) -> str:
            return (
                f"INSERT INTO usage_event ({event_columns}) VALUES (gen_random_uuid(), "
                f"'{tenant_id}', '{key_id}', '{model}', '{status}', {prompt}, {cached}, "
                f"{completion}, now())"
            )

        def tenant(name: str, weight: str) -> str:
            return (
                f"INSERT INTO tenant (id, name, weight) VALUES "
                f"(gen_random_uuid(), '{name}', '{weight}')"
            )

        def project(name: str) -> str:
            return f"INSERT INTO project (tenant_id, name) VALUES ('{tenant_id}', '{name}')"

        await execute(
            pg_dsn,
            f"INSERT INTO tenant (id, name) VALUES ('{tenant_id}', 'acme')",
            key("A" * 12, 32, "x", "{chat,admin}"),
            event("demo", "stop", 1, 1, 0),
        )
        for constraint, statement in [
            ("tenant_name_key", tenant("acme", "1")),
            ("tenant_name_check", tenant("", "1")),
            ("tenant_name_check", tenant("x" * 201, "1")),
            ("tenant_weight_check", tenant("a", "0")),
            ("tenant_weight_check", tenant("b", "NaN")),
            ("tenant_weight_check", tenant("c", "Infinity")),
            ("api_key_public_id_check", key("short", 32, "x", "{chat}")),
            ("api_key_public_id_check", key("A" * 12 + "\n", 32, "x", "{chat}")),
            ("api_key_key_hash_check", key("B" * 12, 31, "x", "{chat}")),
            ("api_key_name_check", key("B" * 12, 32, "", "{chat}")),
            ("api_key_scopes_check", key("B" * 12, 32, "x", "{}")),
            ("api_key_scopes_check", key("B" * 12, 32, "x", "{root}")),
            ("api_key_pkey", key("B" * 12, 32, "x", "{chat}")),
            ("usage_event_model_check", event("", "stop", 1, 1, 1)),
            ("usage_event_status_check", event("m", "paid", 1, 1, 1)),
            ("usage_event_prompt_tokens_check", event("m", "stop", -1, -1, 1)),
            ("usage_event_cached_tokens_check", event("m", "stop", 1, 2, 1)),
            ("usage_event_completion_tokens_check", event("m", "stop", 1, 1, -1)),
            ("project_name_check", project("")),
            ("project_tenant_id_name_key", project("default")),
        ]:
            with pytest.raises(asyncpg.IntegrityConstraintViolationError) as caught:
                await execute(pg_dsn, statement)
            allowed = {constraint}
            if constraint == "usage_event_prompt_tokens_check":
                allowed.add("usage_event_cached_tokens_check")
            assert caught.value.constraint_name in allowed, statement

    async def test_a_limit_of_a_newer_version_locks_nobody_out(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        _, who = await make_key(pg_store)
        limits = Limits(max_concurrent=3, priority=2, weight=1.5, max_cached_blocks=9)
        await pg_store.put_limits(who.tenant.id, "tenant", who.tenant.id, limits)
        await execute(pg_dsn, "ALTER TABLE limit_policy ADD dreams_per_minute integer DEFAULT 5")
        found = await pg_store.find_key(who.key.public_id)
        assert found is not None
        (policy,) = found.principal.policies
        assert policy.limits == limits

    async def test_ledger_is_append_only(self, pg_dsn: str, pg_store: Store) -> None:
        _, principal = await make_key(pg_store)
        await pg_store.record_usage(make_event(principal.key))
        for statement in (
            "UPDATE usage_event SET completion_tokens = 0",
            "DELETE FROM usage_event",
            f"DELETE FROM usage_event_{datetime.now(UTC):%Y_%m}",
            "TRUNCATE usage_event",
        ):
            with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
                await execute(pg_dsn, statement)
        assert (await usage_totals(pg_store, principal.tenant.id)).completion_tokens == 20

    async def test_a_reservation_knows_the_endpoint_for_its_row(self, pg_store: Store) -> None:
        """Alone, and in a block."""
        key = await limited(pg_store, max_concurrent=3, max_queued=1)
        asked = [ask(key, endpoint=f"/v1/{number}", lease=timedelta()) for number in range(3)]
        await pg_store.reserve(asked[0])
        await asyncio.gather(*map(pg_store.reserve, asked[1:]))
        while await pg_store.reap():
            pass
        now = datetime.now(UTC)
        wanted = UsageFilter(start=now - timedelta(hours=1), end=now + timedelta(hours=1))
        rows = await pg_store.list_usage(wanted)
        assert {row.request_id: row.endpoint for row in rows} == {
            one.request_id: one.endpoint for one in asked
        }

    async def test_ledger_is_kept_by_month(self, pg_dsn: str, pg_store: Store) -> None:
        _, principal = await make_key(pg_store)
        now = datetime.now(UTC)
        for at in (now, now.replace(year=2001, day=1)):
            await pg_store.record_usage(make_event(principal.key, created_at=at))
        connection = await asyncpg.connect(pg_dsn)
        rows = await connection.fetch("SELECT tableoid::regclass::text FROM usage_event ORDER BY 1")
        assert [row[0] for row in rows] == [f"usage_event_{now:%Y_%m}", "usage_event_default"]
        await connection.execute("SELECT usage_add_partitions('2040-12-31', 2)")
        for day in (datetime(2040, 12, 1, tzinfo=UTC), datetime(2041, 1, 31, 23, tzinfo=UTC)):
            await pg_store.record_usage(make_event(principal.key, created_at=day))
        assert await connection.fetchval("SELECT count(*) FROM usage_event_2040_12") == 1
        assert await connection.fetchval("SELECT count(*) FROM usage_event_2041_01") == 1
        await connection.close()

    async def test_a_month_that_a_wrong_clock_has_begun_stays_where_it_is(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        """When it comes, its rows have no partition of their own, and the next month has."""
        _, principal = await make_key(pg_store)
        early, late = (datetime(2050, 3, day, tzinfo=UTC) for day in (1, 31))
        assert await pg_store.record_usage(make_event(principal.key, created_at=early))
        connection = await asyncpg.connect(pg_dsn)
        added = await connection.fetchval("SELECT usage_add_partitions('2050-03-01', 2)")
        assert added == 3, "both months of ids, and one of the ledger"
        assert await pg_store.record_usage(make_event(principal.key, created_at=late))
        rows = await connection.fetch("SELECT tableoid::regclass::text FROM usage_event")
        assert [row[0] for row in rows] == ["usage_event_default"] * 2
        assert await connection.fetchval("SELECT to_regclass('usage_event_2050_04') IS NOT NULL")
        await connection.close()
        assert (await usage_totals(pg_store, principal.tenant.id)).requests == 2

    async def test_old_months_are_dropped_and_their_sums_stay(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        _, principal = await make_key(pg_store)
        now = datetime.now(UTC)
        connection = await asyncpg.connect(pg_dsn)
        await connection.execute("SELECT usage_add_partitions('2020-01-01', 2)")
        old = make_event(principal.key, created_at=datetime(2020, 1, 31, tzinfo=UTC))
        older = make_event(principal.key, created_at=datetime(2019, 1, 31, tzinfo=UTC))
        events = [old, older, make_event(principal.key, created_at=now)]
        for event in events:
            assert await pg_store.record_usage(event)
        await pg_store.maintain()
        assert await connection.fetchval("SELECT count(*) FROM usage_event") == 3
        await pg_store.maintain(usage_retention_months=1)
        rows = await connection.fetch("SELECT tableoid::regclass::text FROM usage_event ORDER BY 1")
        # Also what came with a strange clock, and had no month of its own to go with.
        assert [row[0] for row in rows] == [f"usage_event_{now:%Y_%m}"]
        assert await connection.fetchval("SELECT to_regclass('usage_event_2020_01')") is None
        assert await connection.fetchval("SELECT count(*) FROM usage_seen") == 1
        assert (await usage_totals(pg_store, principal.tenant.id)).requests == 3
        assert not await pg_store.record_usage(events[2])
        await connection.close()

    async def test_a_month_without_a_partition_goes_when_it_is_due(self, empty_pg_dsn: str) -> None:
        """By itself, also for an owner who is no superuser; and the ledger is append-only again."""
        async with owned(empty_pg_dsn) as dsn:
            await migrations.upgrade(dsn)
            store = await Store.connect(dsn)
            _, principal = await make_key(store)
            now = datetime.now(UTC)
            ages = [timedelta(days=0), timedelta(days=75), *[timedelta(days=500)] * 3]
            for age in ages:
                await store.record_usage(make_event(principal.key, created_at=now - age))
            # As by several workers, which must not stand in each other's way.
            await asyncio.gather(*(store.maintain(usage_retention_months=12) for _ in range(4)))
            assert (await usage_totals(store, principal.tenant.id)).requests == 5
            await store.close()
        connection = await asyncpg.connect(empty_pg_dsn)
        rows = await connection.fetch("SELECT created_at FROM usage_event ORDER BY 1 DESC")
        assert [(now - row[0]).days for row in rows] == [0, 75]
        with pytest.raises(asyncpg.RestrictViolationError, match="append-only"):
            await connection.execute("DELETE FROM usage_event_default")
        await connection.close()

    async def test_a_clock_years_ahead_drops_nothing(
        self,
        pg_dsn: str,
        pg_store: Store,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        connection = await asyncpg.connect(pg_dsn)
        await connection.execute("SELECT usage_add_partitions('2020-01-01', 1)")
        # This host lives before that month ended, so the server's clock is the one that is wrong.
        there = datetime(2020, 1, 20, tzinfo=UTC).timestamp()
        monkeypatch.setattr("tenants.postgres_upkeep.time.time", lambda: there)
        await pg_store.maintain(usage_retention_months=1)
        monkeypatch.undo()
        assert await connection.fetchval("SELECT to_regclass('usage_event_2020_01') IS NOT NULL")
        assert "hours ahead of this host's" in caplog.text
        await pg_store.maintain(usage_retention_months=1)
        assert await connection.fetchval("SELECT to_regclass('usage_event_2020_01') IS NULL")
        await connection.close()

    async def test_requests_cannot_drop_anything(self, pg_store: Store) -> None:
        pool = pg_store._connections._pool
        for statement in (
            "SELECT usage_drop_partition('usage_event', '2040-01-01')",
            "SELECT usage_add_partitions('2040-01-01', 1)",
            "DELETE FROM usage_seen",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await pool.execute(statement)


class TestOutage:
    async def test_ledger_outlives_a_restart_of_the_server(
        self, own_server: EmbeddedPostgres
    ) -> None:
        dsn = own_server.start()
        await migrations.upgrade(dsn)
        store = await Store.connect(dsn)
        _, principal = await make_key(store)
        ledger = Ledger(store, backoff_s=0.02, max_backoff_s=0.1)
        events = [make_event(principal.key) for _ in range(40)]

        for event in events[:10]:
            assert await ledger.settle(event)
        stopping = asyncio.create_task(asyncio.to_thread(own_server.stop))
        settling = [asyncio.create_task(ledger.settle(event)) for event in events[10:30]]
        await stopping
        settling += [asyncio.create_task(ledger.settle(event)) for event in events[30:]]
        assert all(await asyncio.gather(*settling))
        with pytest.raises(StoreUnavailable):
            await usage_totals(store, principal.tenant.id)
        assert ledger.num_pending >= 10

        await asyncio.to_thread(own_server.start)
        assert await ledger.drain(10.0) == 0
        totals = await usage_totals(store, principal.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (40, 800)
        assert not any([await ledger.settle(event) for event in events])
        await store.close()

    async def test_ledger_outlives_tables_that_are_not_there(self, pg_dsn: str) -> None:
        """While an operator restores a dump under gateways that run."""
        store = await Store.connect(pg_dsn)
        _, principal = await make_key(store)
        ledger = Ledger(store, backoff_s=0.02, max_backoff_s=0.1)
        events = [make_event(principal.key) for _ in range(6)]
        assert await ledger.settle(events[0])  # its statement is prepared
        await execute(pg_dsn, "ALTER TABLE usage_event RENAME TO usage_away")
        assert all([await ledger.settle(event) for event in events[1:]])
        assert ledger.num_pending == 5

        await execute(pg_dsn, "ALTER TABLE usage_away RENAME TO usage_event")
        assert await ledger.drain(10.0) == 0
        totals = await usage_totals(store, principal.tenant.id)
        assert (totals.requests, totals.completion_tokens) == (6, 120)
        await store.close()

    async def test_ledger_outlives_a_change_of_what_its_connections_know(self, pg_dsn: str) -> None:
        """A migration under load: a prepared statement's plan may not return other types."""
        store = await Store.connect(pg_dsn)
        _, principal = await make_key(store)
        ledger = Ledger(store, backoff_s=0.02, max_backoff_s=0.1)
        for number in range(3):
            assert await ledger.settle(make_event(principal.key))
            await store.list_tenants()
            await execute(pg_dsn, f"ALTER TABLE usage_event ADD COLUMN later_{number} text")
            await execute(pg_dsn, f"ALTER TABLE tenant ADD COLUMN later_{number} text")
        assert await ledger.settle(make_event(principal.key))
        assert await ledger.drain(10.0) == 0
        assert (await usage_totals(store, principal.tenant.id)).requests == 4
        await store.close()
