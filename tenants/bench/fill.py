"""Fills an empty database with tenants, keys, and a ledger of any length, in bulk.

The rows are those that settlements leave, sums included. They are made by PostgreSQL itself, a day
at a time, without triggers and checks, and the indexes of the ledger are built afterwards; so the
login must be a superuser, and the database nobody else's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import asyncpg

INDEXES = {
    "usage_event_tenant_id_created_at_idx": "usage_event (tenant_id, created_at, request_id)",
    "usage_event_created_at_idx": "usage_event (created_at, request_id)",
}
"""Those that are built after the rows. As in the schema, which a test compares."""
OLD_DAYS = 150
"""Age of the rows that the retention is to delete."""


class Size(NamedTuple):
    """How much of everything."""

    tenants: int
    keys: int
    rows: int
    days: int
    old_rows: int
    """Rows older than ``OLD_DAYS``; their ids are not by time, so that they are deleted in
    portions, and not as a partition."""


_TENANTS = (
    "INSERT INTO tenant (id, name) "
    "SELECT gen_random_uuid(), 'tenant ' || to_char(n, 'FM00000000') "
    "FROM generate_series(1, $1::integer) AS n"
)
# Each tenant has one, and a few tenants have most of the others, as in life.
_KEYS = (
    "INSERT INTO api_key (id, tenant_id, public_id, key_hash, name, scopes) "
    "SELECT gen_random_uuid(), t.id, substr(md5(i::text), 1, 12), "
    "decode(md5(i::text) || md5(i::text), 'hex'), 'bench', '{chat}' "
    "FROM (SELECT i, CASE WHEN i <= $2::integer THEN i "
    "ELSE 1 + floor($2 * random() ^ 3)::integer END AS owner "
    "FROM generate_series(1, $1::integer) AS i) AS drawn "
    "JOIN (SELECT id, row_number() OVER () AS n FROM tenant) AS t ON t.n = drawn.owner"
)
_NUMBERED = (
    "CREATE TEMPORARY TABLE numbered_key AS "
    "SELECT row_number() OVER (ORDER BY public_id) AS n, id, tenant_id FROM api_key"
)
_LIMITS = (
    "INSERT INTO limit_policy (scope_id, scope_kind, tenant_id, requests_per_minute, "
    "tokens_per_minute, max_concurrent, monthly_tokens) "
    "SELECT id, 'tenant', id, 1000000, 2000000000, 1000, 1000000000000000 FROM tenant",
    "INSERT INTO limit_state (scope_id, tenant_id) SELECT id, id FROM tenant",
)
# A day's requests in the order of time: $1 rows from $2 on, of keys drawn at random.
_ROWS = (
    "INSERT INTO usage_event (request_id, tenant_id, key_id, model, status, prompt_tokens, "
    "cached_tokens, completion_tokens, created_at, cost_micro) "
    "SELECT CASE WHEN $4 THEN (substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7' "
    "|| substr(gen_random_uuid()::text, 16))::uuid ELSE gen_random_uuid() END, "
    "k.tenant_id, k.id, CASE WHEN i % 4 = 0 THEN 'small' ELSE 'large' END, 'stop', "
    "200 + i % 800, i % 200, 50 + i % 400, at, 7 FROM (SELECT i, at, "
    "lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') AS h, "
    "1 + floor(random() * $3::integer)::bigint AS key FROM (SELECT i, $2::timestamptz "
    "+ i * (interval '1 day' / ($1 + 1)) AS at FROM generate_series(1, $1::integer) AS i) AS moment"
    ") AS drawn JOIN numbered_key AS k ON k.n = drawn.key"
)
_SEEN = (
    "INSERT INTO usage_seen (request_id, tenant_id, created_at) SELECT request_id, tenant_id, "
    "created_at FROM usage_event WHERE created_at >= $1 AND created_at < $1 + interval '1 day' "
    "ORDER BY request_id"
)
_SUMS = "count(*), {0}(prompt_tokens), {0}(cached_tokens), {0}(completion_tokens), {0}(cost_micro)"
_HOURS = (
    "INSERT INTO usage_rollup (hour, tenant_id, key_id, model, requests, prompt_tokens, "
    "cached_tokens, completion_tokens, cost_micro) "
    "SELECT date_trunc('hour', created_at, 'UTC'), tenant_id, key_id, model, "
    + _SUMS.format("sum")
    + " FROM usage_event WHERE created_at >= $1 AND created_at < $1 + interval '1 day' "
    "GROUP BY 1, 2, 3, 4 ORDER BY 1"
)
_DAYS = (
    "INSERT INTO usage_daily (day, tenant_id, key_id, model, requests, prompt_tokens, "
    "cached_tokens, completion_tokens, cost_micro) "
    "SELECT (hour AT TIME ZONE 'UTC')::date, tenant_id, key_id, model, sum(requests), "
    "sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens), sum(cost_micro) "
    "FROM usage_rollup WHERE hour >= $1 AND hour < $1 + interval '1 day' GROUP BY 1, 2, 3, 4",
    "INSERT INTO usage_daily_tenant (day, tenant_id, model, requests, prompt_tokens, "
    "cached_tokens, completion_tokens, cost_micro) "
    "SELECT day, tenant_id, model, sum(requests), sum(prompt_tokens), sum(cached_tokens), "
    "sum(completion_tokens), sum(cost_micro) FROM usage_daily "
    "WHERE day = ($1::timestamptz AT TIME ZONE 'UTC')::date GROUP BY 1, 2, 3",
)


async def fill(dsn: str, size: Size) -> None:
    """Fill a migrated, empty database."""
    connection = await asyncpg.connect(dsn, server_settings={"timezone": "UTC"})
    try:
        await connection.execute("SET work_mem = '256MB'; SET maintenance_work_mem = '512MB'")
        await connection.execute(_TENANTS, size.tenants)
        await connection.execute(_KEYS, size.keys, size.tenants)
        await connection.execute(_NUMBERED)
        await connection.execute("CREATE INDEX ON numbered_key (n); ANALYZE numbered_key")
        for statement in _LIMITS:
            await connection.execute(statement)
        await _fill_ledger(connection, size)
        await connection.execute("VACUUM (ANALYZE)")
    finally:
        await connection.close()


async def _fill_ledger(connection: asyncpg.Connection, size: Size) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = today - timedelta(days=size.days)
    old = today - timedelta(days=OLD_DAYS)
    for start, months in ((first, size.days // 28 + 2), (old, 1)):
        await connection.fetch("SELECT usage_add_partitions($1, $2)", start.date(), months)
    await connection.execute("SET session_replication_role = replica")
    for name in INDEXES:
        await connection.execute(f"DROP INDEX {name}")
    days = [first + timedelta(days=number) for number in range(size.days)]
    for day in days:
        await connection.execute(_ROWS, size.rows // size.days, day, size.keys, True)
        await _add_up(connection, day)
    if size.old_rows:
        await connection.execute(_ROWS, size.old_rows, old, size.keys, False)
        await connection.execute(_SEEN, old)
    for name, columns in INDEXES.items():
        await connection.execute(f"CREATE INDEX {name} ON {columns}")
    await connection.execute("SET session_replication_role = DEFAULT")


async def _add_up(connection: asyncpg.Connection, day: datetime) -> None:
    for statement in (_SEEN, _HOURS, *_DAYS):
        await connection.execute(statement, day)
