"""Workers, engines and PostgreSQL are killed at random, clients leave at random: the books balance.

What the engines reported is written down beside the gateway, token by token. At the end every
request is in the ledger once, with exactly those tokens; the limits' counters agree with the
ledger; nothing is reserved any more. A kill may fall between counting a report and writing it down:
so much, one report per killed worker, may be missing from the record.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
import httpx
import psutil
import pytest

import migrations
from engine.demo import MODEL_DIR
from gateway import secrets
from tenants import keys
from tenants.embedded import EmbeddedPostgres
from tenants.errors import StoreUnavailable
from tenants.journal import Journal
from tenants.limits import Limits
from tenants.store import Store
from tenants.usage import Ledger

pytestmark = [pytest.mark.pg, pytest.mark.asyncio]

ROOT = Path(__file__).parents[2]
START_S = 240.0
ENDED_BETWEEN_KILLS = 8
REPLAYED_PER_S = "300"
"""Tokens of each stream of an engine without a model, which starts in a fraction of the time."""
SETTINGS = """
[engine]
model = "{model}"
num_threads = 1
kv_cache_memory_bytes = 67108864
max_num_seqs = 32
[server]
port = 0
flush_interval_ms = 0
shutdown_timeout_s = 20
log_level = "error"
[models]
served_model_name = "demo"
[tenants]
dsn = "{dsn}"
secrets_file = "secrets.json"
"""


@dataclass
class Worker:
    """A gateway worker that is started again whenever it is killed."""

    folder: Path
    name: str
    has_model: bool
    process: subprocess.Popen[bytes] | None = None
    num_lives: int = 0
    reports: list[Path] = field(default_factory=list)

    @property
    def ready_file(self) -> Path:
        return self.folder / f"{self.name}.{self.num_lives}.url"

    def start(self) -> None:
        self.num_lives += 1
        self.reports.append(self.folder / f"{self.name}.{self.num_lives}.reports")
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.e2e.chaos_worker"),
                    *(self.folder / "sluice.toml", self.ready_file, self.reports[-1]),
                    *(() if self.has_model else (REPLAYED_PER_S,)),
                ],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stderr=log,
            )

    @property
    def url(self) -> str | None:
        """None while it does not serve yet."""
        return self.ready_file.read_text() if self.ready_file.exists() else None

    def engines(self) -> list[psutil.Process]:
        assert self.process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def kill(self) -> None:
        """And its engine, which would notice a moment later."""
        assert self.process is not None
        engines = self.engines()
        self.process.kill()
        self.process.wait()
        for engine in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.kill()

    def kill_engine(self) -> None:
        for engine in self.engines():
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.kill()

    async def ready(self) -> None:
        """Return when this life serves."""
        async with asyncio.timeout(START_S):
            while self.url is None:  # noqa: ASYNC110 - another process's file
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(self.process.wait, 60) == 0


@dataclass
class Site:
    """Workers on one database, and the keys of their clients."""

    postgres: EmbeddedPostgres
    dsn: str
    folder: Path
    workers: list[Worker]
    store: Store
    api_keys: list[str]
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def num_ended(self) -> int:
        """Requests that need not be asked again."""
        return sum(self.outcomes[how] for how in ("done", "left", "error event"))

    async def urls(self) -> list[str]:
        """Of the workers that serve; waits until there is one."""
        async with asyncio.timeout(START_S):
            while True:
                if urls := [url for one in self.workers if (url := one.url) is not None]:
                    return urls
                await asyncio.sleep(0.1)

    def kill_postgres(self) -> None:
        """The postmaster; its children see that and go."""
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if str(self.folder / "pg" / "data") in command:
                process.kill()


@contextlib.asynccontextmanager
async def site(
    folder: Path, *, num_workers: int, num_tenants: int, has_model: bool
) -> AsyncIterator[Site]:
    postgres = EmbeddedPostgres(folder / "pg")
    dsn = await asyncio.to_thread(postgres.start)
    await migrations.upgrade(dsn)
    made = secrets.create(folder / "secrets.json")
    (folder / "sluice.toml").write_text(SETTINGS.format(model=MODEL_DIR, dsn=dsn))
    store = await Store.connect(dsn, connect_timeout_s=5, command_timeout_s=10)
    api_keys = []
    for number in range(num_tenants):
        tenant = await store.create_tenant(f"tenant {number}")
        minted = keys.mint(made.key_pepper)
        await store.create_key(
            tenant.id,
            public_id=minted.public_id,
            key_hash=minted.key_hash,
            name="chaos",
            scopes=["chat"],
        )
        limits = Limits(tokens_per_minute=10**8, max_concurrent=500, monthly_tokens=10**12)
        await store.put_limits(tenant.id, "tenant", tenant.id, limits)
        api_keys.append(minted.text)
    workers = [Worker(folder, f"worker {number}", has_model) for number in range(num_workers)]
    try:
        for worker in workers:
            worker.start()
        yield Site(postgres, dsn, folder, workers, store, api_keys)
    finally:
        for worker in workers:
            worker.kill()
        await store.close()
        await asyncio.to_thread(postgres.stop)


async def ask(here: Site, client: httpx.AsyncClient, draw: random.Random) -> str:
    """One request of a client with its own mind; how it ended."""
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Tell me a story about {draw.random()}."}],
        "stream": True,
        # Now and then one that outgrows what is reserved for it at first.
        "max_tokens": draw.randint(1, 48) if draw.random() < 0.97 else 320,
        "ignore_eos": True,
    }
    leaves_after = draw.randint(0, 12) if draw.random() < 0.3 else None
    headers = {"authorization": f"Bearer {draw.choice(here.api_keys)}"}
    url = draw.choice(await here.urls()) + "/v1/chat/completions"
    try:
        async with client.stream("POST", url, json=body, headers=headers) as answer:
            if answer.status_code != 200:
                return f"status {answer.status_code}"
            num_lines, last = 0, ""
            async for line in answer.aiter_lines():
                num_lines += 1
                last = line or last
                if num_lines == leaves_after:
                    return "left"
            return "done" if last == "data: [DONE]" else "error event"
    except httpx.TransportError:
        return "broken"


async def clients(here: Site, num_requests: int, num_clients: int, seed: int) -> None:
    """All requests, each until it was answered, to its end or not."""
    numbers = iter(range(num_requests))

    async def run(client: httpx.AsyncClient) -> None:
        for number in numbers:
            while True:
                outcome = await ask(here, client, random.Random(seed * 100_003 + number))
                here.outcomes[outcome] += 1
                if outcome not in ("broken", "status 503"):
                    break
                await asyncio.sleep(0.3)

    limits = httpx.Limits(max_connections=num_clients)
    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        await asyncio.gather(*(run(client) for _ in range(num_clients)))


async def killer(
    here: Site, draw: random.Random, pause_s: tuple[float, float], enough: asyncio.Event
) -> None:
    """Kills something every few seconds, and sees that it comes back. Each kind comes early."""
    kinds = ["worker", "engine", "postgres"]
    draw.shuffle(kinds)
    num_ended = 0
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough.wait(), draw.uniform(*pause_s))
            return
        serving = [worker for worker in here.workers if worker.url is not None]
        # On a slow machine nobody would ever come up again, or get on between two deaths.
        if not serving or here.num_ended < num_ended + ENDED_BETWEEN_KILLS:
            continue
        num_ended = here.num_ended
        kind = kinds.pop() if kinds else draw.choice(["worker", "engine", "postgres"])
        worker = draw.choice(serving)
        here.outcomes[f"killed {kind}"] += 1
        if kind == "worker":
            worker.kill()
            worker.start()
        elif kind == "engine":
            worker.kill_engine()
        else:
            here.kill_postgres()
            await asyncio.sleep(draw.uniform(0, 2))
            await asyncio.to_thread(here.postgres.stop)
            await asyncio.to_thread(here.postgres.start)


async def supervise(here: Site) -> None:
    """As an init system does: a worker whose engine died while it started has ended by itself."""
    while True:
        for worker in here.workers:
            assert worker.process is not None
            if worker.process.poll() is not None:
                worker.start()
        await asyncio.sleep(0.1)


async def settle_the_rest(here: Site) -> None:
    """What dead workers left in their files, and reservations whose lease runs out."""
    journal = Journal(here.folder / "journal")
    ledger = Ledger(here.store, journal=journal)
    ledger.replay()
    assert await ledger.drain(60) == 0
    journal.close()
    async with asyncio.timeout(300):
        while True:
            try:
                while await here.store.reap() is not None:
                    pass
                if not await here.store.list_running():
                    return
            except StoreUnavailable:
                pass  # connections from before the last kill
            await asyncio.sleep(0.2)


def reported(here: Site) -> tuple[dict[UUID, int], int]:
    """Tokens by request, and how many there may be more of: one report per killed worker."""
    tokens: collections.Counter[UUID] = collections.Counter()
    largest = 0
    for worker in here.workers:
        for file in worker.reports:
            lines = file.read_text().split("\n")[:-1] if file.exists() else []
            for line in lines:
                name, count = line.split()
                tokens[UUID(name.rpartition("-")[0])] += int(count)
                largest = max(largest, int(count))
    return dict(tokens), largest


async def check_the_books(here: Site) -> int:
    """The tokens in the ledger."""
    tokens, largest = reported(here)
    connection = await asyncpg.connect(here.dsn)
    try:
        rows = await connection.fetch("SELECT request_id, completion_tokens FROM usage_event")
        ledger = {row[0]: row[1] for row in rows}
        assert len(ledger) == len(rows), "a request is there twice"
        assert await connection.fetchval("SELECT count(*) FROM usage_seen") == len(rows)
        assert await connection.fetchval("SELECT count(*) FROM reservation") == 0
        lost = {request_id for request_id, count in tokens.items() if count} - ledger.keys()
        assert not lost, "requests that the ledger does not know"
        differing = {
            request_id: (tokens.get(request_id, 0), count)
            for request_id, count in ledger.items()
            if count != tokens.get(request_id, 0)
        }
        assert len(differing) <= here.outcomes["killed worker"], differing
        for was, is_ in differing.values():
            assert 0 < is_ - was <= largest, differing
        for row in await connection.fetch(
            "SELECT t.name, s.num_running, s.num_queued, s.month_tokens, "
            "(SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM usage_event u "
            "WHERE u.tenant_id = t.id) AS ledger, (SELECT coalesce(sum(prompt_tokens "
            "+ completion_tokens), 0) FROM (SELECT tenant_id, prompt_tokens, completion_tokens "
            "FROM usage_daily UNION ALL SELECT tenant_id, prompt_tokens, completion_tokens "
            "FROM usage_delta) r WHERE r.tenant_id = t.id) AS sums "
            "FROM limit_state s JOIN tenant t ON t.id = s.scope_id"
        ):
            assert (row["num_running"], row["num_queued"]) == (0, 0), row
            assert row["month_tokens"] == row["ledger"] == row["sums"], row
        return sum(ledger.values())
    finally:
        await connection.close()


async def chaos(
    folder: Path,
    num_requests: int,
    *,
    num_clients: int,
    pause_s: tuple[float, float],
    seed: int,
    has_model: bool,
) -> collections.Counter[str]:
    async with site(folder, num_workers=2, num_tenants=3, has_model=has_model) as here:
        began = time.monotonic()
        await here.urls()
        enough = asyncio.Event()
        killing = asyncio.create_task(killer(here, random.Random(seed), pause_s, enough))
        supervising = asyncio.create_task(supervise(here))
        await clients(here, num_requests, num_clients, seed)
        enough.set()
        await killing
        for worker in here.workers:
            await worker.ready()
        supervising.cancel()
        await asyncio.gather(supervising, return_exceptions=True)
        for worker in here.workers:
            await worker.stop()
        await settle_the_rest(here)
        total = await check_the_books(here)
        elapsed = time.monotonic() - began
        print(f"{num_requests} requests, {total} tokens in {elapsed:.0f} s: {dict(here.outcomes)}")
        assert here.num_ended == num_requests
        assert here.outcomes["done"] > num_requests / 4
        assert total > num_requests
        return here.outcomes


@pytest.mark.timeout(900)  # 15 s on a quiet machine; each kill costs a busy one a start of programs
async def test_eighty_requests(open_folder: Path) -> None:
    outcomes = await chaos(
        open_folder / "80", 80, num_clients=12, pause_s=(0.2, 0.6), seed=7, has_model=False
    )
    assert sum(count for what, count in outcomes.items() if what.startswith("killed")) >= 2


@pytest.mark.nightly
@pytest.mark.timeout(1200)
async def test_two_thousand_requests(open_folder: Path) -> None:
    outcomes = await chaos(
        open_folder / "2000", 2000, num_clients=32, pause_s=(0.4, 2.0), seed=11, has_model=True
    )
    for kind in ("worker", "engine", "postgres"):
        assert outcomes[f"killed {kind}"] > 0
