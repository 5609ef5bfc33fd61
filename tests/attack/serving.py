"""A deployment to attack: ``sluice serve`` in processes of its own, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import psutil

import migrations
from engine.demo import MODEL_DIR
from gateway import secrets
from gateway.admin.provisioning import make_key
from gateway.commands.database import Address
from tenants.embedded import EmbeddedPostgres
from tenants.limits import Limits
from tenants.store import Store
from tenants.types import Scope, Tenant, UsageSum
from tests.e2e.server_process import ServerProcess, command_of
from tests.gateway.serving import until
from tests.ledger import usage_totals
from tests.postgres import FAST, run_aside
from tests.tenants.samples import make_event

ROOT = Path(__file__).parents[2]
MODEL = "demo"
NO_LIMITS = Limits()
Settings = Mapping[str, Mapping[str, Any]]

SETTINGS: Settings = {
    "engine": {
        "model": str(MODEL_DIR),
        "num_threads": 1,
        "kv_cache_memory_bytes": 64 * 2**20,
        "max_num_seqs": 64,
    },
    "server": {"port": 0, "shutdown_timeout_s": 5},
    "models": {"served_model_name": MODEL},
}


@dataclass(frozen=True)
class Member:
    """A tenant, and a key of it for chats, responses and usage."""

    tenant: Tenant
    key: str


class Deployment(ServerProcess):
    """Use it as a context manager. At its end nothing of it may be left: no process, no file."""

    model = MODEL

    def __init__(
        self,
        dsn: str,
        *,
        num_workers: int = 2,
        replay_tokens_per_s: float | None = None,
        settings: Settings | None = None,
        max_files: int | None = None,
    ) -> None:
        """replay_tokens_per_s: the rate at which each stream gets its tokens from an engine
        without a model; None for the bundled model. settings: by section, laid over ``SETTINGS``.
        max_files: the hard limit on open files of each process."""
        self.dsn, self.num_workers = dsn, num_workers
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-test-"))
        self._pepper = secrets.create(self._folder / "secrets.json").key_pepper
        self._temporary = self._folder / "tmp"
        self._temporary.mkdir()
        where = {"tenants": {"dsn": dsn, "secrets_file": "secrets.json"}}
        self.config_file = self._folder / "sluice.toml"
        self.config_file.write_text(_toml(_merged(SETTINGS, where, settings or {})))
        program = ["-m", "gateway"]
        if replay_tokens_per_s is not None:
            program = ["-m", "tests.attack.replaying", str(replay_tokens_per_s)]
        super().__init__(
            *(*program, "serve", "--config", str(self.config_file), "--workers", str(num_workers)),
            output=self._folder / "log",
            env={"PYTHONPATH": str(ROOT), "TMPDIR": str(self._temporary)},
            max_files=max_files,
        )

    def __enter__(self) -> Deployment:
        try:
            # A worker says so, too, before the others serve.
            all_of_them = f" with {self.num_workers} workers" if self.num_workers > 1 else ""
            ready = rf"serving on (http://\S+){all_of_them}"
            while (told := re.search(ready, self.output())) is None:
                self.is_starting()
        except BaseException as error:
            self.__exit__(error)
            raise
        self.url = told[1]
        self.look()
        return self

    def __exit__(self, *raised: object) -> None:
        """Raises ``AssertionError`` for what is left, unless the block has failed already."""
        failed = any(raised)
        try:
            if not failed:
                assert self.stop() == 0, self.output()
                assert self.survivors() == []
                left = [*self._temporary.iterdir()]
                assert left == [], f"files are left: {left}"
        finally:
            super().__exit__()
            shutil.rmtree(self._folder)

    def command(self, *words: str) -> str:
        """What `sluice` says with this deployment's settings. Raises ``AssertionError`` if it
        fails."""
        ran = subprocess.run(
            (sys.executable, "-m", "gateway", *words, "--config", self._folder / "sluice.toml"),
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "250"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    # -- where it is

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/chat"

    def address(self, key: str) -> Address:
        """For the clients of ``gateway.bench``."""
        return Address(self.url, key)

    @property
    def journal(self) -> Path:
        return self._folder / "journal"

    # -- its processes

    def workers(self) -> list[psutil.Process]:
        """The gateway's processes that serve now, in the order of their pids."""
        if self.num_workers == 1:
            return [psutil.Process(self.process.pid)]
        found = [each for each in self.look() if "gateway.processes.worker" in command_of(each)]
        return sorted(found, key=lambda each: each.pid)

    def memory(self) -> dict[int, int]:
        """The resident bytes of each worker and of the engine, by pid."""
        return {each.pid: each.memory_info().rss for each in [*self.workers(), self.engine()]}

    def num_files(self) -> dict[int, int]:
        """The open files of each worker, by pid."""
        return {each.pid: each.num_fds() for each in self.workers()}

    # -- its tenants

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        store = await Store.connect(self.dsn, max_size=2)
        try:
            yield store
        finally:
            await store.close()

    def member(self, name: str, limits: Limits = NO_LIMITS, *more: Scope) -> Member:
        """A new tenant with a key; its name gets an ending of its own, as a test may be run once
        more. ``more``: scopes of the key beside the usual ones."""

        async def make() -> Member:
            async with self.store() as store:
                tenant = await store.create_tenant(f"{name} {uuid4()}")
                await store.put_limits(tenant.id, "tenant", tenant.id, limits)
                scopes: list[Scope] = ["chat", "responses", "usage", *more]
                _, key = await make_key(store, self._pepper, tenant.id, name=name, scopes=scopes)
                return Member(tenant, key)

        made: Member = run_aside(make())
        return made

    def key(self, member: Member, *scopes: Scope, **options: Any) -> str:
        """Another key of a tenant. ``options``: as for ``Store.create_key``."""

        async def make() -> str:
            async with self.store() as store:
                options.setdefault("name", "another")
                return (
                    await make_key(store, self._pepper, member.tenant.id, scopes=scopes, **options)
                )[1]

        made: str = run_aside(make())
        return made

    # -- its books

    async def settled(self, member: Member, num_requests: int = 0) -> UsageSum:
        """What the ledger has of a tenant, once nothing of it is reserved and at least
        ``num_requests`` are in it. Its counters agree with it."""
        async with self.store() as store:

            async def is_settled() -> bool:
                running = await store.list_running()
                if any(each.tenant_id == member.tenant.id for each in running):
                    return False
                return (await usage_totals(store, member.tenant.id)).requests >= num_requests

            await until(is_settled, within_s=90)
            totals = await usage_totals(store, member.tenant.id)
        connection = await asyncpg.connect(self.dsn)
        try:
            row = await connection.fetchrow(
                "SELECT num_running, num_queued, month_tokens FROM limit_state WHERE scope_id = $1",
                member.tenant.id,
            )
        finally:
            await connection.close()
        if row is not None:
            assert (row["num_running"], row["num_queued"]) == (0, 0), row
            assert row["month_tokens"] == totals.prompt_tokens + totals.completion_tokens, row
        return totals


async def fill_ledger(deployment: Deployment, member: Member, num_rows: int) -> None:
    """As if the member had made so many requests."""
    async with deployment.store() as store:
        (key,) = await store.list_keys(member.tenant.id)
        events = [make_event(key) for _ in range(num_rows)]
        await asyncio.gather(*map(store.record_usage, events))


class Database:
    """A PostgreSQL of a test's own, which may be killed, stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # What it has acknowledged must be there when it was killed, as with anybody's server.
        settings = {**FAST, "synchronous_commit": "on"}
        self._server = EmbeddedPostgres(folder, settings=settings)
        self.dsn = self._server.start()
        run_aside(migrations.upgrade(self.dsn))

    def processes(self) -> list[psutil.Process]:
        """The postmaster and its children."""
        for process in psutil.process_iter():
            if str(self._folder / "data") in command_of(process):
                return [process, *process.children(recursive=True)]
        return []

    def signal(self, number: signal.Signals) -> None:
        """To all of its processes: they stop, go on or die together."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        killed = self.processes()
        self.signal(signal.SIGKILL)
        psutil.wait_procs(killed, timeout=10)

    def start(self) -> None:
        """Again, after ``kill``: with the same DSN."""
        self._server.stop()
        assert self._server.start() == self.dsn

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self._server.stop()


@contextmanager
def own_database() -> Iterator[Database]:
    """Not below pytest's ``tmp_path``, which only its owner may enter: as root, PostgreSQL runs
    under another account."""
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
        Path(folder).chmod(0o755)
        database = Database(Path(folder) / "pg")
        try:
            yield database
        finally:
            database.stop()


def assert_memory_is_back(
    deployment: Deployment, before: Mapping[int, int], *, within_bytes: int, patience_s: float = 30
) -> None:
    """Each process that still runs is within so many bytes of what it had ``before``, soon."""
    deadline = time.monotonic() + patience_s
    while True:
        now = deployment.memory()
        more = {pid: now[pid] - was for pid, was in before.items() if pid in now}
        if all(growth <= within_bytes for growth in more.values()):
            return
        assert time.monotonic() < deadline, f"bytes kept, by pid: {more}"
        time.sleep(0.5)


def _merged(*layers: Settings) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, values in layer.items():
            merged.setdefault(section, {}).update(values)
    return merged


def _toml(document: Settings) -> str:
    lines = []
    for section, values in document.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{json.dumps(k)} = {_toml_value(v)}" for k, v in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return json.dumps(value)  # text, numbers and booleans are written the same in both
