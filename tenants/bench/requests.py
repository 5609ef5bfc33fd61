"""``python -m tenants.bench``: measures what tenancy costs, on a durable PostgreSQL of its own.

It measures the authentication of cached keys, then requests from reservation to durable settlement:
of many tenants, and of one tenant, in one worker and in several processes. Every scope has limits
on requests, tokens and concurrency. The last line leaves the reservations out, which is how fast
workers would be that had leased quota in advance.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import uvloop
from rich.console import Console
from rich.table import Table

import migrations
from tenants import keys
from tenants.authenticator import Authenticator, CacheBounds
from tenants.embedded import EmbeddedPostgres
from tenants.limits import Limits
from tenants.quota import Hold, Quota
from tenants.request_ids import new_request_id
from tenants.store import Store
from tenants.types import Principal, UsageEvent
from tenants.usage import Ledger

T = TypeVar("T")

PEPPER = b"a pepper for the benchmark, as long as any"
NUM_PROMPT_TOKENS = 500
NUM_COMPLETION_TOKENS = 100
AMPLE = Limits(
    requests_per_minute=10**7,
    tokens_per_minute=2**31 - 1,
    max_concurrent=10**6,
    monthly_tokens=10**15,
)


@dataclass(frozen=True)
class Measured:
    """One line of the result."""

    what: str
    per_s: float
    p50_ms: float
    p99_ms: float


class Bench:
    """One worker, as a gateway has it: one store, one quota, one ledger."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds
        self._quota = Quota(store)
        self._ledger = Ledger(store)
        self._authenticator = Authenticator(store, PEPPER, CacheBounds(ttl_s=600))
        self._texts: list[str] = []

    async def furnish(self, num_tenants: int) -> list[Principal]:
        """Create tenants with a key each, and limits on both."""
        self._texts = []
        people = []
        for _ in range(num_tenants):
            tenant = await self._store.create_tenant(str(new_request_id()))
            minted = keys.mint(PEPPER)
            key = await self._store.create_key(
                tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name="bench",
                scopes=["chat"],
            )
            await self._store.put_limits(tenant.id, "tenant", tenant.id, AMPLE)
            await self._store.put_limits(tenant.id, "key", key.id, AMPLE)
            people.append(await self._authenticator.authenticate(minted.text))
            self._texts.append(minted.text)
        return people

    async def authentication(self) -> Measured:
        """From the text of a key to its principal, all of them cached."""
        authenticator = self._authenticator
        latencies: list[float] = []
        began = time.perf_counter()
        while time.perf_counter() - began < min(1.0, self._seconds):
            for text in self._texts:
                at = time.perf_counter()
                await authenticator.authenticate(text)
                latencies.append(time.perf_counter() - at)
        return _measured("authentication from cache", latencies, time.perf_counter() - began)

    async def paced(self, what: str, per_s: float) -> Measured:
        """Requests of all tenants at a fixed rate. The latency is what tenancy adds to the time to
        the first token: looking up the key, and the reservation."""
        latencies: list[float] = []

        async def request(text: str) -> None:
            at = time.perf_counter()
            who = await self._authenticator.authenticate(text)
            hold = await self._reserve(who)
            latencies.append(time.perf_counter() - at)
            await self._ledger.settle(_event(who, hold.request_id))
            await hold.close()

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(int(per_s * self._seconds)):
                group.create_task(request(self._texts[number % len(self._texts)]))
                await asyncio.sleep(began + (number + 1) / per_s - time.perf_counter())
        return _measured(what, latencies, time.perf_counter() - began)

    async def _reserve(self, who: Principal) -> Hold:
        return await self._quota.reserve(
            who,
            request_id=new_request_id(),
            model="bench",
            prompt_tokens=NUM_PROMPT_TOKENS,
            max_tokens=NUM_COMPLETION_TOKENS,
        )

    async def pairs(self, what: str, people: Sequence[Principal], num_clients: int) -> Measured:
        """Clients that each reserve, settle durably, and start over. The latency is the
        reservation's: what tenancy adds to the time to the first token."""
        began = time.perf_counter()
        latencies = await self.latencies(people, num_clients)
        return _measured(what, latencies, time.perf_counter() - began)

    async def latencies(
        self, people: Sequence[Principal], num_clients: int, *, reserves: bool = True
    ) -> list[float]:
        """The latency of each pair. Without ``reserves`` only the settlements, which then charge
        the same, and their latency."""
        latencies: list[float] = []
        until = time.perf_counter() + self._seconds

        async def client(number: int) -> None:
            while time.perf_counter() < until:
                who = people[number % len(people)]
                number += num_clients
                at = time.perf_counter()
                hold = await self._reserve(who) if reserves else None
                waited = time.perf_counter() - at
                request_id = hold.request_id if hold else new_request_id()
                await self._ledger.settle(_event(who, request_id))
                if hold is not None:
                    await hold.close()
                latencies.append(waited if reserves else time.perf_counter() - at)

        await asyncio.gather(*(client(number) for number in range(num_clients)))
        assert self._ledger.num_pending == 0
        return latencies


def _event(who: Principal, request_id: object) -> UsageEvent:
    return UsageEvent(
        request_id=request_id,  # type: ignore[arg-type]
        tenant_id=who.tenant.id,
        key_id=who.key.id,
        model="bench",
        status="stop",
        prompt_tokens=NUM_PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=NUM_COMPLETION_TOKENS,
        created_at=datetime.now(UTC),
    )


def _measured(what: str, latencies: list[float], elapsed: float) -> Measured:
    return Measured(what, len(latencies) / elapsed, *_quantiles(latencies))


def _quantiles(latencies: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(latencies, n=100)
    return cuts[49] * 1000, cuts[98] * 1000


@dataclass(frozen=True)
class Share:
    """The work of one of several processes, for one tenant."""

    dsn: str
    public_id: str
    num_clients: int
    seconds: float
    reserves: bool


def work_alone(share: Share) -> list[float]:
    """Run a worker in this process; returns the latencies of its pairs."""

    async def work() -> list[float]:
        store = await Store.connect(share.dsn)
        try:
            found = await store.find_key(share.public_id)
            assert found is not None
            bench = Bench(store, share.seconds)
            people = [found.principal]
            return await bench.latencies(people, share.num_clients, reserves=share.reserves)
        finally:
            await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


async def hot_tenant(what: str, share: Share, num_workers: int) -> Measured:
    """Run several workers for the same tenant. Rates are those of the measured seconds."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        loop = asyncio.get_running_loop()
        shares = [loop.run_in_executor(pool, work_alone, share) for _ in range(num_workers)]
        latencies = [one for found in await asyncio.gather(*shares) for one in found]
    return _measured(what, latencies, share.seconds)


async def run(
    dsn: str, *, num_tenants: int, num_clients: int, num_workers: int, seconds: float
) -> list[Measured]:
    """All measurements on a migrated database."""
    store = await Store.connect(dsn)
    try:
        bench = Bench(store, seconds)
        people = await bench.furnish(num_tenants)
        results = [
            await bench.authentication(),
            await bench.paced("100 requests/s", 100),
            await bench.paced("500 requests/s", 500),
            await bench.pairs(f"{num_tenants:,} tenants", people, num_clients),
            await bench.pairs("one tenant", people[:1], num_clients),
        ]
        public_id = people[0].key.public_id
        share = Share(dsn, public_id, -(-num_clients // num_workers), seconds, reserves=True)
        where = f"one tenant, {num_workers} processes"
        results.append(await hot_tenant(where, share, num_workers))
        share = replace(share, reserves=False)
        results.append(await hot_tenant(f"{where}, settling alone", share, num_workers))
        return results
    finally:
        await store.close()


async def on_own_server(work: Callable[[str], Awaitable[T]], kept: Path | None = None) -> T:
    """Run ``work`` on an embedded server, in the folder ``kept`` or in one that is removed."""
    folder = kept or Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    server = EmbeddedPostgres(folder)
    try:
        dsn = await asyncio.to_thread(server.start)
        await migrations.upgrade(dsn)
        return await work(dsn)
    finally:
        await asyncio.to_thread(server.stop)
        if kept is None:
            shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tenants.bench", description=__doc__)
    parser.add_argument("--dsn", help="a migrated database to fill; by default an own server")
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=256, help="requests at once")
    parser.add_argument("--workers", type=int, default=4, help="processes of the last two lines")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    given = parser.parse_args()

    async def work(dsn: str) -> list[Measured]:
        return await run(
            dsn,
            num_tenants=given.tenants,
            num_clients=given.clients,
            num_workers=given.workers,
            seconds=given.seconds,
        )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results = runner.run(work(given.dsn) if given.dsn else on_own_server(work))
    table = Table("", title="reserve + durable settle, latency of the reservation")
    for title in ("per second", "p50 ms", "p99 ms"):
        table.add_column(title, justify="right")
    for one in results:
        table.add_row(one.what, f"{one.per_s:,.0f}", f"{one.p50_ms:.3f}", f"{one.p99_ms:.3f}")
    Console().print(table)
