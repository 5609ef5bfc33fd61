"""The revision of a database, and the one that this version of the code needs.

A server and every command check them when they start, without alembic, whose import would take
longer than the check.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import asyncpg

from migrations import source
from tenants.connections import translated
from tenants.dsn import check_dsn, describe
from tenants.errors import SchemaMismatch, StoreUnavailable

FOLDER = Path(__file__).parent
_NAME = re.compile(r"\d{4}_\d\d_\d\d_\d{4}_([^_]+)_")
_CONNECT_TIMEOUT_S = 5.0
_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})


def known() -> list[str]:
    """The revisions of this version of the code, oldest first, from the names of the files."""
    names = sorted(path.name for path in (FOLDER / "versions").glob("*.py"))
    return [found[1] for name in names if (found := _NAME.match(name)) is not None]


def head() -> str:
    """The revision that this version of the code needs."""
    return known()[-1]


async def current(dsn: str) -> str | None:
    """The revision of a database; None if it was never migrated.

    Raises ``InvalidValue`` (the DSN) and ``StoreUnavailable``.
    """
    connection = await connect(dsn)
    try:
        revision: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    except asyncpg.UndefinedTableError:
        return None
    except asyncpg.InsufficientPrivilegeError as error:
        raise StoreUnavailable(
            f"{describe(dsn)} refuses us: {error}; the login must be the one that migrates it, or "
            "one that is granted sluice_app and sluice_operator"
        ) from error
    finally:
        await connection.close()
    return revision


async def check(dsn: str) -> None:
    """Raise ``SchemaMismatch`` unless the database is at ``head`` and has this version's functions.
    The server must not start then."""
    revision = await current(dsn)
    if revision != head():
        raise SchemaMismatch(revision, head())
    connection = await connect(dsn)
    try:
        rows = await connection.fetch(source.FIND_BODIES, list(source.functions()))
    finally:
        await connection.close()
    if differing := source.differing((row["proname"], row["prosrc"]) for row in rows):
        raise SchemaMismatch(revision, head(), differing=differing)


async def connect(dsn: str, settings: Mapping[str, str] = _NO_SETTINGS) -> asyncpg.Connection:
    """Raises ``InvalidValue`` (the DSN) and ``StoreUnavailable``."""
    with translated(describe(check_dsn(dsn))):
        return await asyncpg.connect(
            dsn, timeout=_CONNECT_TIMEOUT_S, server_settings=dict(settings)
        )
