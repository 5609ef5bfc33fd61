"""Connections of the store: roles, row-level security, and the translation of errors.

    any        as ``sluice_app`` with no tenant entered: sees no tenant's row by itself
    tenant     as ``sluice_app`` in a transaction that has entered one tenant
    operator   as ``sluice_operator`` in a transaction: sees all rows

The login of the DSN must be a member of both roles, or a superuser. What a transaction sets ends
with it, so that the next one on the connection is not affected.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import MappingProxyType
from typing import Any
from uuid import UUID

import asyncpg

from tenants.audit import actor
from tenants.dsn import check_dsn, describe
from tenants.errors import InvalidValue, StoreUnavailable, TenantsError
from tenants.lanes import Lanes
from tenants.queries import Query

Violations = Mapping[str, TenantsError]
"""Constraint name to the error it means."""
Row = Mapping[str, Any]

NO_VIOLATIONS: Violations = MappingProxyType({})

# Errors after which a retry may succeed: the server is away, starting, stopping, full, or a replica
# after a failover; or the statement timed out, or waited too long for a lock.
_TRANSIENT = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    # Raised on a connection that the server closed in the middle of a statement.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,
    asyncpg.LockNotAvailableError,
    asyncpg.ReadOnlySQLTransactionError,
    # Its disk, or what it keeps in mind of functions that a dump has replaced.
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    # What the connection knew of tables has changed. It asks anew the next time.
    asyncpg.InvalidCachedStatementError,
)
# While a dump is restored.
_MISSING = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedTableError,
)
# Configuration errors: wrong password, database or rights.
_REFUSED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)
_APP = "SET LOCAL ROLE sluice_app"
_OPERATOR = "SET LOCAL ROLE sluice_operator"
_TENANTS_PART = 4
_ENTER = "SELECT set_config('sluice.tenants', $1, true), set_config('sluice.actor', $2, true)"


class Connections:
    """A pool whose statements run as one of our roles. Made by ``open``."""

    def __init__(self, pool: asyncpg.Pool, where: str, *, is_pooled: bool) -> None:
        self._pool = pool
        self._lanes = Lanes(max(1, pool.get_max_size() // _TENANTS_PART))
        self._where = where
        self._is_pooled = is_pooled

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        min_size: int,
        max_size: int,
        connect_timeout_s: float,
        command_timeout_s: float,
        is_pooled: bool,
    ) -> Connections:
        """Open a pool. is_pooled: whether the DSN leads to a pooler in transaction mode, where
        sessions are shared.

        Raises ``InvalidValue`` (the DSN), ``StoreUnavailable``.
        """
        where = describe(check_dsn(dsn))
        settings = {"application_name": "sluice", "timezone": "UTC"}
        if not is_pooled:
            settings |= _session_settings(command_timeout_s)
        with translated(where):
            pool = await asyncpg.create_pool(
                dsn,
                min_size=min_size,
                max_size=max_size,
                timeout=connect_timeout_s,
                command_timeout=command_timeout_s,
                server_settings=settings,
                # With a pooler each transaction may get another session.
                statement_cache_size=0 if is_pooled else 100,
                # Sessions need no reset, which would cost a round trip: see above.
                reset=_nothing,
            )
        return cls(pool, where, is_pooled=is_pooled)

    async def fetch(
        self,
        query: Query,
        values: Sequence[object],
        *,
        tenant_id: UUID | None = None,
        violations: Violations = NO_VIOLATIONS,
    ) -> Sequence[Row]:
        """Run one statement in a transaction of its own.

        Raises ``StoreUnavailable``, ``InvalidValue``, and the errors in ``violations``.
        """
        assert (tenant_id is not None) == (query.access == "tenant"), query.sql
        with translated(self._where, violations):
            if query.access == "any" and not self._is_pooled:
                rows: Sequence[Row] = await self._pool.fetch(query.sql, *values)
                return rows
            async with self._transaction(query, tenant_id) as connection:
                rows = await connection.fetch(query.sql, *values)
                return rows

    async def fetch_in_turn(
        self,
        query: Query,
        values: Sequence[object],
        *,
        tenant_id: UUID,
        violations: Violations = NO_VIOLATIONS,
    ) -> Sequence[Row]:
        """As ``fetch``, for what a tenant asks for as often as it likes, and which may take long: a
        quarter of the connections work for one tenant at a time."""
        turn = await self._lanes.turn(tenant_id)
        try:
            return await self.fetch(query, values, tenant_id=tenant_id, violations=violations)
        finally:
            turn.leave()

    @asynccontextmanager
    async def _transaction(
        self, query: Query, tenant_id: UUID | None
    ) -> AsyncIterator[asyncpg.Connection]:
        async with self._pool.acquire() as connection, connection.transaction():
            if query.access == "operator" or self._is_pooled:
                await connection.execute(_OPERATOR if query.access == "operator" else _APP)
            if query.access != "any":
                entered = "" if tenant_id is None else str(tenant_id)
                await connection.fetch(_ENTER, entered, actor())
            yield connection

    async def close(self) -> None:
        """Wait for statements under way, then close all connections. Idempotent."""
        await self._pool.close()


def _session_settings(command_timeout_s: float) -> dict[str, str]:
    return {
        "role": "sluice_app",
        # Every statement finds its rows by an index, so that no plan depends on a value.
        "plan_cache_mode": "force_generic_plan",
        "statement_timeout": str(int(command_timeout_s * 1000)),
        "lock_timeout": str(int(command_timeout_s * 500)),
        "idle_in_transaction_session_timeout": "10000",
    }


async def _nothing(connection: asyncpg.Connection) -> None:
    pass


@contextmanager
def translated(where: str, violations: Violations = NO_VIOLATIONS) -> Iterator[None]:
    """Translate errors of asyncpg into ``TenantsError``. ``where``: the server, for messages."""
    try:
        yield
    except asyncpg.IntegrityConstraintViolationError as error:
        if error.constraint_name in violations:
            raise violations[error.constraint_name] from None
        raise InvalidValue(error.constraint_name or "value", str(error)) from error
    except asyncpg.InvalidParameterValueError as error:
        if 'role "sluice_app"' in str(error):
            raise StoreUnavailable(
                f"{where} has no role sluice_app yet; run `sluice migrate`"
            ) from error
        raise InvalidValue("value", str(error)) from error
    except asyncpg.ProtocolViolationError as error:
        raise StoreUnavailable(f"{where} {_protocol_reason(str(error))}") from error
    except asyncpg.DataError as error:
        raise InvalidValue("value", str(error)) from error
    except asyncpg.ClientConfigurationError as error:
        raise InvalidValue("dsn", str(error)) from error
    except ssl.SSLError as error:
        raise StoreUnavailable(
            f"{where} refuses us: {_reason(error)}; sslrootcert and sslcert name the certificates"
        ) from error
    except _TRANSIENT as error:
        raise StoreUnavailable(f"{where} does not answer: {_reason(error)}") from error
    except _REFUSED as error:
        raise StoreUnavailable(f"{where} refuses us: {_reason(error)}") from error
    except _MISSING as error:
        raise StoreUnavailable(
            f"{where} lacks what we need: {_reason(error)}; run `sluice migrate`"
        ) from error


def _protocol_reason(message: str) -> str:
    """The meaning of a protocol error. PgBouncer sends these while its server is away, and for
    settings that it does not pass on."""
    if "startup parameter" in message:
        return f"is a pooler ({message}); set tenants.transaction_pooling and tenants.direct_dsn"
    return f"does not answer: {message}"


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    return str(error) or type(error).__name__
