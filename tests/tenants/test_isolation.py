"""Row-level security, from inside: what statements see when they are given another tenant's ids."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from tenants import queries
from tenants.batch_queue import NewBatch, NewLine
from tenants.connections import Connections
from tenants.conversations import Bounds, StoredItem
from tenants.errors import ObjectNotFound, TenantsError
from tenants.limits import Limits
from tenants.request_ids import new_request_id
from tenants.store import Store
from tenants.types import Principal, Refused
from tests.ledger import usage_totals
from tests.tenants.reserving import ask
from tests.tenants.samples import make_event, make_key
from tests.tenants.test_chats import make_chat
from tests.tenants.test_shared import make_response, make_stream

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]


@pytest_asyncio.fixture
async def superuser(pg_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Sees everything: what the tests compare with."""
    connection = await asyncpg.connect(pg_dsn)
    yield connection
    await connection.close()


async def furnish(store: Store, name: str) -> Principal:
    """A tenant with something in every table."""
    _, who = await make_key(store, name)
    project = await store.create_project(who.tenant.id, "second")
    for kind, scope_id in (("tenant", who.tenant.id), ("project", project.id), ("key", who.key.id)):
        limits = Limits(requests_per_minute=1000, max_concurrent=50, monthly_tokens=10**9)
        await store.put_limits(who.tenant.id, kind, scope_id, limits)  # type: ignore[arg-type]
    await store.reserve(ask(who.key))
    await store.record_usage(make_event(who.key, request_id=new_request_id()))
    await store.roll_up()
    await store.record_usage(make_event(who.key))
    await store.create_adapter(
        who.tenant.id,
        adapter_id=uuid4(),
        name="support",
        parent="model",
        path=f"{name}/support",
        base_model=None,
        rank=8,
        digest="d",
    )
    await store.allow_mcp_server(who.tenant.id, f"https://example.com/{name.replace(' ', '-')}")
    day = timedelta(days=1)
    await store.shared.put_response(make_response(who.tenant, f"resp_{name}"), day)
    await store.shared.put_stream(make_stream(who.tenant, f"stream_{name}"), day)
    conversations, conversation = store.conversations, f"conv_{name}"
    await conversations.create(who.tenant.id, conversation, b"{}", max_bytes=10**6)
    item = StoredItem(f"msg_{name}", b"{}")
    await conversations.add(who.tenant.id, conversation, [item], Bounds(9, 10**6, 10**6))
    file_id = f"file-{name}"
    await store.files.begin(who.tenant.id, file_id)
    await store.files.append(who.tenant.id, file_id, name.encode(), max_bytes=10**6)
    await store.files.complete(who.tenant.id, file_id, name, "batch", None)
    new = NewBatch(f"batch_{name}", who.key.public_id, "/v1/x", file_id, "24h", day, b"{}", day)
    assert await store.batch_queue.create(who.tenant.id, new)
    batch = await store.batch_queue.step(day)
    assert batch is not None
    await store.batch_queue.put_lines(batch, [NewLine(1, name, 0, len(name), None)])
    await store.batch_queue.begin(batch, 1, 0, b"[]")
    await store.chats.put(who.tenant.id, make_chat(1, id=f"chatcmpl_{name}"), day)
    await store.shared.claim(
        who.tenant.id, bytes(32), body_hash=b"b", answer_id=f"answer_{name}", retention=day
    )
    await store.webhooks.test(
        (await store.webhooks.create(who.tenant.id, "https://receiver.example", ())).id
    )
    await store.note_refusals([Refused(who.tenant.id, who.key.id, "insufficient_quota", 3)])
    return who


async def tables(connection: asyncpg.Connection) -> dict[str, str]:
    """Every table that belongs to tenants, and the column that says to whom."""
    rows = await connection.fetch(
        """
        SELECT c.relname, CASE c.relname WHEN 'tenant' THEN 'id' ELSE 'tenant_id' END
        FROM pg_class AS c
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND (
            c.relname = 'tenant' OR EXISTS (
                SELECT FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'tenant_id'
            )
        )
        """
    )
    return {row[0]: row[1] for row in rows}


async def snapshot(connection: asyncpg.Connection, tenant_id: UUID) -> dict[str, list[str]]:
    """All that the database holds of a tenant."""
    found = {}
    for table, column in (await tables(connection)).items():
        rows = await connection.fetch(
            f"SELECT t::text FROM {table} AS t WHERE {column} = $1 ORDER BY 1", tenant_id
        )
        found[table] = [row[0] for row in rows]
    return found


async def test_every_table_of_tenants_is_forced(superuser: asyncpg.Connection) -> None:
    found = await tables(superuser)
    assert {"tenant", "api_key", "usage_event", "usage_event_default", "reservation"} <= set(found)
    for table in found:
        flags = await superuser.fetchrow(
            "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = $1::regclass",
            table,
        )
        assert tuple(flags) == (True, True), table


async def test_the_roles_are_neither_owners_nor_exempt(superuser: asyncpg.Connection) -> None:
    rows = await superuser.fetch(
        "SELECT rolname, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolcanlogin "
        "FROM pg_roles WHERE rolname LIKE 'sluice%'"
    )
    assert {tuple(row) for row in rows} == {("sluice_app", False), ("sluice_operator", False)}
    owned = await superuser.fetchval(
        "SELECT count(*) FROM pg_class WHERE relowner::regrole::text LIKE 'sluice%'"
    )
    assert owned == 0
    assert not await superuser.fetchval(
        "SELECT pg_has_role('sluice_app', 'sluice_operator', 'MEMBER')"
    )


async def test_two_functions_see_more_than_who_calls_them(superuser: asyncpg.Connection) -> None:
    rows = await superuser.fetch(
        "SELECT proname FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace "
        "AND has_function_privilege('sluice_app', oid, 'EXECUTE')"
    )
    assert {row[0] for row in rows} == {"key_lookup", "webhook_event"}
    pinned = await superuser.fetch(
        "SELECT proconfig FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace"
    )
    assert pinned
    assert all("search_path=public, pg_temp" in row[0] for row in pinned)


async def test_the_store_works_as_the_app(pg_store: Store) -> None:
    pool = pg_store._connections._pool
    assert await pool.fetchval("SELECT current_user") == "sluice_app"


async def test_without_a_tenant_no_row_is_seen(
    pg_store: Store, superuser: asyncpg.Connection
) -> None:
    await furnish(pg_store, "acme")
    pool = pg_store._connections._pool
    for table in await tables(superuser):
        if table.startswith(("usage_event_", "usage_seen_")):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await pool.fetch(f"SELECT * FROM {table}")
        else:
            assert await superuser.fetchval(f"SELECT count(*) FROM {table}") > 0, table
            assert await pool.fetch(f"SELECT * FROM {table}") == [], table


async def test_a_row_cannot_be_written_for_another_tenant(pg_store: Store) -> None:
    one, two = await furnish(pg_store, "one"), await furnish(pg_store, "two")
    pool = pg_store._connections._pool
    async with pool.acquire() as connection, connection.transaction():
        await connection.fetch("SELECT sluice_enter($1)", one.tenant.id)
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(
                "INSERT INTO project (tenant_id, name) VALUES ($1, 'x')", two.tenant.id
            )


class Values:
    """For each parameter of a statement something of the other tenant's, of its type."""

    def __init__(self, other: Principal, ids: Sequence[UUID], seed: int) -> None:
        self._other = other
        self._ids = ids
        self._draw = random.Random(seed)

    def make(self, kind: str) -> Any:
        if kind.endswith("[]"):
            return [self.make(kind[:-2]) for _ in range(2)]
        numbers = {"int2": 1, "int4": 5, "int8": 7, "float8": 1.5}
        match kind:
            case "uuid":
                return self._draw.choice(self._ids)
            case "text" | "varchar":
                name = self._other.tenant.name
                names = (
                    name,
                    f"resp_{name}",
                    f"stream_{name}",
                    f"conv_{name}",
                    f"msg_{name}",
                    f"answer_{name}",
                    self._other.key.public_id,
                    "key",
                    "tenant",
                    "stop",
                )
                return self._draw.choice(names)
            case "timestamptz":
                return datetime.now(UTC) + timedelta(hours=self._draw.choice((-9, 9)))
            case "interval":
                return timedelta(seconds=30)
            case "bytea":
                return bytes(32)
            case "bool":
                return True
            case "jsonb":
                return "{}"
        return numbers[kind]


async def test_no_statement_reaches_another_tenant(
    pg_dsn: str, pg_store: Store, superuser: asyncpg.Connection
) -> None:
    """All that the request path may send, with another's ids in every place but the entered one."""
    one, two = await furnish(pg_store, "one"), await furnish(pg_store, "two")
    before = await snapshot(superuser, two.tenant.id)
    assert {table for table, rows in before.items() if rows} >= {
        "tenant", "project", "api_key", "limit_policy", "limit_state", "reservation",
        "usage_event", "usage_seen", "usage_delta", "usage_rollup", "usage_daily",
        "usage_daily_tenant", "response", "ended_stream", "idempotency_key", "adapter",
        "conversation", "conversation_item", "mcp_server", "chat_completion",
    }  # fmt: skip
    # By table and place: the ids themselves are other ones in each run.
    ids = dict.fromkeys(
        UUID(word)
        for rows in before.values()
        for row in rows
        for word in row.strip("()").replace('"', "").replace("{", "").replace("}", "").split(",")
        if len(word) == 36 and word.count("-") == 4
    )
    assert len(ids) > 5
    texts = {str(some) for some in ids} | {two.key.public_id, "two", "resp_two", "stream_two"}
    texts |= {"conv_two", "msg_two", "chatcmpl_two"}
    connections = await Connections.open(
        pg_dsn,
        min_size=1,
        max_size=1,
        connect_timeout_s=5,
        command_timeout_s=5,
        is_pooled=False,
    )
    num_calls = num_errors = 0
    try:
        for name, query in queries.load().items():
            # The operators' see all rows by design; a lookup is by a whole public id; addresses of
            # workers are no tenant's.
            if query.access == "operator" or name in (
                "find_key",
                "find_worker",
                "list_workers",
            ):
                continue
            prepared = await superuser.prepare(query.sql)
            kinds = [parameter.name for parameter in prepared.get_parameters()]
            for seed in range(30):
                values = [Values(two, list(ids), seed * 7 + n).make(k) for n, k in enumerate(kinds)]
                if (enters := re.search(r"sluice_enter\(\$(\d+)\)", query.sql)) is not None:
                    values[int(enters[1]) - 1] = one.tenant.id
                # Their second array says whose each row is.
                if name.endswith("_many") or name == "record_usage":
                    values[1] = [one.tenant.id] * 2
                entered = one.tenant.id if query.access == "tenant" else None
                num_calls += 1
                try:
                    rows = await connections.fetch(query, values, tenant_id=entered)
                except (TenantsError, asyncpg.PostgresError):
                    num_errors += 1
                    continue
                seen = " ".join(str(value) for row in rows for value in dict(row).values())
                assert not [text for text in texts if text in seen.split()], name
    finally:
        await connections.close()
    assert await snapshot(superuser, two.tenant.id) == before
    assert num_calls > 300
    assert num_errors < num_calls * 0.9


async def test_tenants_interleave_on_one_connection(pg_dsn: str) -> None:
    store = await Store.connect(pg_dsn, max_size=1)
    try:
        people = [await furnish(store, f"tenant {number}") for number in range(3)]

        async def look(who: Principal) -> None:
            for _ in range(5):
                keys = await store.list_keys(who.tenant.id)
                assert [key.id for key in keys] == [who.key.id]
                await store.reserve(ask(who.key))
                totals = await usage_totals(store, who.tenant.id)
                assert totals.requests == 2

        await asyncio.gather(*(look(who) for who in people * 3))
        assert await store._connections._pool.fetch("SELECT * FROM tenant") == []
    finally:
        await store.close()


async def test_ids_of_others_are_not_found(pg_store: Store) -> None:
    one, two = await furnish(pg_store, "one"), await furnish(pg_store, "two")
    with pytest.raises(ObjectNotFound, match="project"):
        await pg_store.create_key(
            one.tenant.id,
            public_id="A" * 12,
            key_hash=bytes(32),
            name="x",
            scopes=["chat"],
            project_id=two.key.project_id,
        )
    with pytest.raises(ObjectNotFound, match="to limit"):
        await pg_store.put_limits(one.tenant.id, "key", two.key.id, Limits())
    with pytest.raises(ObjectNotFound, match="key"):
        await pg_store.record_usage(make_event(two.key, tenant_id=one.tenant.id))
    assert not await pg_store.release(one.tenant.id, uuid4())


async def test_a_deleted_tenant_leaves_its_bill_and_nothing_it_said(
    pg_store: Store, superuser: asyncpg.Connection
) -> None:
    """Nothing in any table, but the sums and rows of the ledger, who changed what, and the rows
    that these refer to. What requests under way still store goes, too."""
    gone, stays = await furnish(pg_store, "gone"), await furnish(pg_store, "stays")
    await pg_store.webhooks.test(
        (await pg_store.webhooks.create(gone.tenant.id, "https://gone.example", ())).id
    )
    await pg_store.record_usage(make_event(gone.key))  # not yet in the sums
    before, others = [await snapshot(superuser, who.tenant.id) for who in (gone, stays)]
    ledger = {"usage_event", "usage_seen", "usage_delta", "usage_rollup", "usage_daily"}
    ledger |= {"usage_daily_tenant"}
    bills = {table for table in before if table in ledger or table.startswith("usage_")}
    kept = bills | {"audit_log", "tenant", "project", "api_key", "reservation"}
    assert {table for table, rows in before.items() if rows} >= {*ledger, "conversation_item"}

    await pg_store.delete_tenant(gone.tenant.id)
    after = await snapshot(superuser, gone.tenant.id)
    assert {table for table, rows in after.items() if rows} <= kept
    assert {table: after[table] for table in bills} == {table: before[table] for table in bills}
    assert await snapshot(superuser, stays.tenant.id) == others

    for search in (gone.tenant.id, "gone"):
        with pytest.raises(ObjectNotFound):
            await pg_store.get_tenant(search)
    assert [one.name for one in await pg_store.list_tenants()] == ["stays"]
    with pytest.raises(ObjectNotFound):
        await pg_store.update_tenant(gone.tenant.id, disabled=False)
    with pytest.raises(ObjectNotFound):
        await pg_store.delete_tenant(gone.tenant.id)
    record = await pg_store.find_key(gone.key.public_id)
    assert record is not None
    assert record.principal.key.revoked_at is not None
    assert record.principal.tenant.disabled_at is not None
    assert (await usage_totals(pg_store, gone.tenant.id)).requests == 3
    assert (await pg_store.create_tenant("gone")).id != gone.tenant.id

    await pg_store.shared.put_response(make_response(gone.tenant, "resp_late"), timedelta(days=9))
    await pg_store.record_usage(make_event(gone.key))
    # What an interrupted deletion has left goes at once; a day later what requests under way have
    # stored, once.
    day = timedelta(days=1)
    for purge_at in day, None:
        while await pg_store.shared.delete_expired():
            pass
        assert not (await snapshot(superuser, gone.tenant.id))["response"]
        wait = "SELECT purge_at - deleted_at FROM tenant WHERE id = $1"
        assert await superuser.fetchval(wait, gone.tenant.id) == purge_at
        await pg_store.shared.put_response(make_response(gone.tenant, "resp_later"), 9 * day)
        later = (
            "UPDATE tenant SET deleted_at = deleted_at - $2::interval, "
            "purge_at = purge_at - $2::interval WHERE id = $1"
        )
        await superuser.execute(later, gone.tenant.id, day)
