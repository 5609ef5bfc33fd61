"""What asyncpg and the server say, in our words."""

from __future__ import annotations

import asyncio
import ssl
from uuid import uuid4

import asyncpg
import pytest

from tenants.connections import Connections, translated
from tenants.errors import InvalidValue, ObjectExists, StoreUnavailable
from tenants.queries import Query


def failure(kind: type[asyncpg.PostgresError], **fields: str) -> asyncpg.PostgresError:
    error = kind("words of the server")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "means", "words"),
    [
        (TimeoutError(), StoreUnavailable, "here does not answer: timed out"),
        (ConnectionRefusedError("refused"), StoreUnavailable, "here does not answer: refused"),
        (asyncpg.CannotConnectNowError("starting"), StoreUnavailable, "does not answer: starting"),
        (asyncpg.DeadlockDetectedError("deadlock"), StoreUnavailable, "does not answer: deadlock"),
        (asyncpg.InvalidPasswordError("wrong"), StoreUnavailable, "here refuses us: wrong"),
        (asyncpg.InsufficientPrivilegeError("no"), StoreUnavailable, "here refuses us: no"),
        (
            asyncpg.UndefinedTableError('relation "usage_event" does not exist'),
            StoreUnavailable,
            'lacks what we need: relation "usage_event" does not exist; run `sluice migrate`',
        ),
        (asyncpg.PostgresIOError("no disk"), StoreUnavailable, "does not answer: no disk"),
        (
            asyncpg.InternalServerError("cache lookup failed for function 24623"),
            StoreUnavailable,
            "does not answer: cache lookup failed",
        ),
        (asyncpg.InvalidCachedStatementError("plan"), StoreUnavailable, "does not answer: plan"),
        (
            asyncpg.InvalidParameterValueError('role "sluice_app" does not exist'),
            StoreUnavailable,
            "run `sluice migrate`",
        ),
        (
            asyncpg.ProtocolViolationError("unsupported startup parameter: role"),
            StoreUnavailable,
            "set tenants.transaction_pooling",
        ),
        (
            asyncpg.ProtocolViolationError("server login has been failing"),
            StoreUnavailable,
            "here does not answer",
        ),
        (asyncpg.InvalidTextRepresentationError("no uuid"), InvalidValue, "value: no uuid"),
        (asyncpg.ClientConfigurationError("sslmode"), InvalidValue, "dsn: sslmode"),
        (
            ssl.SSLCertVerificationError("self-signed certificate"),
            StoreUnavailable,
            "refuses us: .*self-signed certificate.*; sslrootcert and sslcert name",
        ),
        (
            failure(asyncpg.CheckViolationError, constraint_name="tenant_name_check"),
            InvalidValue,
            "tenant_name_check",
        ),
        (
            failure(asyncpg.UniqueViolationError, constraint_name="api_key_public_id_key"),
            ObjectExists,
            "'abc' exists already",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_failures_are_told_in_our_words(
    error: Exception, means: type[Exception], words: str
) -> None:
    with (
        pytest.raises(means, match=words),
        translated("here", {"api_key_public_id_key": ObjectExists("key", "abc")}),
    ):
        raise error


def test_what_is_not_foreseen_stays_as_it_is() -> None:
    with pytest.raises(asyncpg.UndefinedColumnError), translated("here"):
        raise asyncpg.UndefinedColumnError("a bug of ours")


@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("is_pooled", [False, True])
async def test_each_statement_has_its_role(pg_dsn: str, is_pooled: bool) -> None:
    """And nothing of it is left on the only connection."""
    connections = await Connections.open(
        pg_dsn,
        min_size=1,
        max_size=1,
        connect_timeout_s=5,
        command_timeout_s=5,
        is_pooled=is_pooled,
    )
    who = "SELECT current_user::text AS name, current_setting('sluice.tenants', true) AS tenants"
    try:
        for access, role in (
            ("any", "sluice_app"),
            ("operator", "sluice_operator"),
            ("any", "sluice_app"),
        ):
            (row,) = await connections.fetch(Query("Who.", who, access), ())  # type: ignore[arg-type]
            assert (row["name"], row["tenants"] or None) == (role, None)
    finally:
        await connections.close()


@pytest.mark.pg
@pytest.mark.asyncio
async def test_what_a_tenant_asks_for_leaves_connections_to_others(pg_dsn: str) -> None:
    connections = await Connections.open(
        pg_dsn, min_size=1, max_size=4, connect_timeout_s=5, command_timeout_s=600, is_pooled=False
    )
    slow, quick = (
        Query("Waits.", "SELECT pg_sleep(600)", "tenant"),
        Query("One.", "SELECT 1 AS one"),
    )
    tasks: list[asyncio.Task[object]] = []
    try:
        for tenant_id in (uuid4(), uuid4()):
            asked = [connections.fetch_in_turn(slow, (), tenant_id=tenant_id) for _ in range(20)]
            tasks += map(asyncio.create_task, asked)
        await asyncio.sleep(0)  # They come first.
        async with asyncio.timeout(30):
            (row,) = await connections.fetch(quick, ())
        assert row["one"] == 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await connections.close()
