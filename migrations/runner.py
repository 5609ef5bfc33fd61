"""Migrates a database forward to this version's schema and functions.

asyncpg makes the connection, and SQLAlchemy borrows it. So DSNs mean the same for the store and for
migrations, Unix sockets included.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from migrations import revisions, source
from tenants.dsn import describe
from tenants.errors import MigrationRefused, SchemaMismatch, StoreUnavailable

LOCK_ID = 0x51_1C_E0
"""Key of the advisory lock: one migration at a time per database."""
INSUFFICIENT_PRIVILEGE = "42501"
_BUSY = ("55P03", "40P01")
"""SQLSTATEs of a lock that was not given in time, and of a deadlock."""
_ERRORS = (DBAPIError, asyncpg.PostgresError)
"""Raised by statements that SQLAlchemy runs, and by scripts that asyncpg runs itself."""
_MISSING_ROLES = (
    "SELECT name FROM unnest('{sluice_app,sluice_operator}'::text[]) AS name "
    "WHERE name NOT IN (SELECT rolname FROM pg_roles)"
)
_LOCK_POLL_S = 0.05
_RETRY_S = 0.1
_SETTINGS = {
    "application_name": "sluice migrate",
    "timezone": "UTC",
    # A migration that waits for a table makes all later statements on it wait, too; and while it
    # has one table and waits for another, a worker that has the other may wait for the first. So it
    # gives up before PostgreSQL looks for deadlocks (``deadlock_timeout``, 1 s), because that might
    # end the worker's statement, and tries again.
    "lock_timeout": "100ms",
}


async def upgrade(dsn: str, revision: str = "head", *, lock_timeout_s: float = 60.0) -> str | None:
    """Migrate up to ``revision``, if the database is not there yet, and make its functions as their
    files say. Workers may go on meanwhile. Returns the revision that it was at; None if it was
    never migrated.

    Concurrent calls wait for each other, and for tables that are in use, at most for
    ``lock_timeout_s`` each. If a migration fails, the database stays at the one before. Raises
    ``InvalidValue`` (the DSN), ``StoreUnavailable``, ``SchemaMismatch`` (a newer version of the
    code has migrated the database), ``MigrationRefused``.
    """
    async with _connect(dsn) as connection:
        await _lock(connection, lock_timeout_s, describe(dsn))
        # Left by closing the connection: the lock is the session's.
        try:
            found = await connection.run_sync(_revision_of)
            if found is not None and found not in revisions.known():
                raise SchemaMismatch(found, revisions.head())
            await connection.commit()

            def migrate(sync: Connection) -> None:
                command.upgrade(_config(sync), revision)
                source.replace_functions(sync)
                sync.commit()

            await _retried(connection, migrate, lock_timeout_s, describe(dsn))
        except _ERRORS as error:
            if _sqlstate(error) != INSUFFICIENT_PRIVILEGE:
                raise
            await connection.rollback()
            missing = await connection.scalars(text(_MISSING_ROLES))
            mend = "".join(f"CREATE ROLE {role}; " for role in missing)
            owner = await connection.scalar(text("SELECT quote_ident(current_user)"))
            reason = str(getattr(error, "orig", error)).rstrip(".")
            raise MigrationRefused(
                f"{describe(dsn)} refuses us: {reason}. Migrate as the "
                "database's owner; if it may not make or grant roles, let an administrator run: "
                f"{mend}GRANT sluice_app, sluice_operator TO {owner}"
            ) from error
        return found


def create(message: str) -> Path:
    """Write an empty migration with the next number on top of ``head``; return its file."""
    number = int(_scripts().get_current_head() or "0") + 1
    script = command.revision(_config(), message, rev_id=f"{number:04d}")
    assert isinstance(script, Script)
    return Path(script.path)


async def _retried(
    connection: AsyncConnection, step: Callable[[Connection], None], timeout_s: float, where: str
) -> None:
    """Run ``step`` again as long as tables are in use, from the first migration that failed on."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await connection.run_sync(step)
            return
        except _ERRORS as error:
            if _sqlstate(error) not in _BUSY:
                raise
            await connection.rollback()
            if time.monotonic() >= deadline:
                raise StoreUnavailable(
                    f"{where}: a table has been in use for {timeout_s:g} s "
                    f"({getattr(error, 'orig', error)}); end the "
                    "transaction that uses it, then run this one again"
                ) from None
        await asyncio.sleep(_RETRY_S)


def _sqlstate(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", error), "sqlstate", None)


def _revision_of(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


async def _lock(connection: AsyncConnection, timeout_s: float, where: str) -> None:
    """Poll for the lock.

    A session that waits in ``pg_advisory_lock`` holds a snapshot. If the migration that it waits
    for runs CREATE INDEX CONCURRENTLY, that would wait for the snapshot, a deadlock.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await connection.scalar(
                text("SELECT pg_try_advisory_lock(:id)"), {"id": LOCK_ID}
            ):
                await connection.commit()
                await asyncio.sleep(_LOCK_POLL_S)
        await connection.commit()
    except TimeoutError:
        raise StoreUnavailable(
            f"{where}: another migration has been running for {timeout_s:g} s; "
            "wait for it to end, then run this one again"
        ) from None


@asynccontextmanager
async def _connect(dsn: str) -> AsyncIterator[AsyncConnection]:
    raw = await revisions.connect(dsn, _SETTINGS)

    async def lend(*_: object, **__: object) -> asyncpg.Connection:
        return raw

    # NullPool takes one connection and closes it with its own.
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lend, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            yield connection
    finally:
        await engine.dispose()


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(revisions.FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option(
        "file_template",
        "%%(year)d_%%(month).2d_%%(day).2d_%%(hour).2d%%(minute).2d_%%(rev)s_%%(slug)s",
    )
    config.attributes["connection"] = connection
    return config
