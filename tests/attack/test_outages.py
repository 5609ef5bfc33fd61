"""A tenant that asks for all it can get while PostgreSQL is dead: its limits hold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

import migrations
from tenants.embedded import EmbeddedPostgres
from tenants.errors import QuotaExceeded, StoreUnavailable
from tenants.quota import Hold, Quota
from tenants.standby import Standby
from tenants.store import Store
from tenants.types import Principal
from tenants.usage import Ledger
from tests.ledger import usage_totals
from tests.postgres import FAST, pg_folder
from tests.tenants.quotas import make, more
from tests.tenants.samples import make_event

__all__ = ["pg_folder"]
pytestmark = [pytest.mark.asyncio, pytest.mark.pg]

PROMPT = 10


class Worker:
    """What a gateway's worker has of quota and ledger, with connections of its own."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.ledger = Ledger(store, backoff_s=0.05, max_backoff_s=0.1)
        standby = Standby(worker_id=name, is_pending=self.ledger.is_pending)
        self.quota = Quota(store, standby=standby)

    async def ask(self, who: Principal, tokens: int) -> Hold | None:
        try:
            request_id = make_event(who.key).request_id
            return await self.quota.reserve(
                who, request_id=request_id, model="demo", prompt_tokens=PROMPT, max_tokens=tokens
            )
        except (QuotaExceeded, StoreUnavailable):
            return None

    async def settle(self, who: Principal, hold: Hold) -> None:
        """All that was allowed has been generated."""
        hold.watch(lambda: hold.allowed)
        await hold.stop()
        event = make_event(
            who.key,
            request_id=hold.request_id,
            prompt_tokens=PROMPT,
            cached_tokens=0,
            completion_tokens=hold.generated,
        )
        await self.ledger.settle(event)
        await hold.close()

    async def is_back(self) -> bool:
        with contextlib.suppress(StoreUnavailable):
            await self.quota.refresh()
        return not self.quota._standby.is_away and not self.ledger.num_pending


@pytest_asyncio.fixture
async def server(pg_folder: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A server this test may stop and kill, which then has all that was committed."""
    server = EmbeddedPostgres(pg_folder, settings={**FAST, "synchronous_commit": "on"})
    await migrations.upgrade(await asyncio.to_thread(server.start))
    yield server
    await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def workers(server: EmbeddedPostgres, number: int) -> AsyncIterator[Sequence[Worker]]:
    async with contextlib.AsyncExitStack() as stack:
        made: list[Worker] = []
        for index in range(number):
            dsn = await asyncio.to_thread(server.start)
            store = await Store.connect(dsn, command_timeout_s=0.5, connect_timeout_s=0.5)
            stack.push_async_callback(store.close)
            made.append(Worker(store, f"worker-{index}"))
            stack.push_async_callback(made[-1].ledger.close)
            address = ("unix:/nowhere", timedelta(days=1))
            await store.shared.register_worker(f"worker-{index}", *address)
        yield made


@contextlib.asynccontextmanager
async def dead(server: EmbeddedPostgres, how: signal.Signals) -> AsyncIterator[None]:
    """Without the server's processes, which are stopped or killed."""
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    family = [postmaster, *postmaster.children(recursive=True)]
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
    try:
        yield
    finally:
        if how is signal.SIGSTOP:
            for process in family:
                process.send_signal(signal.SIGCONT)
        else:
            postmaster.wait(30)
            await asyncio.to_thread(server.restart_if_ended)


async def until_back(all_workers: Sequence[Worker]) -> None:
    for _ in range(600):
        if all([await worker.is_back() for worker in all_workers]):
            return
        await asyncio.sleep(0.05)
    pytest.fail("the workers do not ask the store again")


async def known(all_workers: Sequence[Worker], who: Principal) -> None:
    for worker in all_workers:
        worker.quota._standby.ask(who)
        await worker.quota.refresh()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_month_a_rate_and_slots_hold_without_the_database(
    server: EmbeddedPostgres, how: signal.Signals
) -> None:
    async with workers(server, 2) as (one, two):
        store = one.store
        month = await make(store, monthly_tokens=100)
        rate = await make(store, requests_per_minute=1)
        slots = await make(store, max_concurrent=1)
        refused = await make(store, requests_per_minute=1)
        assert await two.ask(refused, 10) is not None
        for who in (month, rate, slots, refused):
            await known((one, two), who)
        held: dict[str, list[tuple[Worker, Hold]]] = {"month": [], "rate": [], "slots": []}
        async with dead(server, how):
            for _ in range(6):
                for worker in (two, one):
                    for name, who in (("month", month), ("rate", rate), ("slots", slots)):
                        if (hold := await worker.ask(who, 1000)) is not None:
                            held[name].append((worker, hold))
                    assert await worker.ask(refused, 1) is None
            for worker, hold in held["month"]:
                assert await more(hold) == hold.allowed, worker
                await worker.settle(month, hold)
        assert [hold.allowed for _, hold in held["month"]] == [40, 40]
        assert len(held["rate"]) == len(held["slots"]) == 1
        await until_back((one, two))
        assert await one.ask(month, 1) is None
        assert await two.ask(slots, 1) is None
        (running,) = await store.list_running(slots.tenant.id)
        totals = await usage_totals(store, month.tenant.id)
        (balance,) = await store.balances([month.tenant.id])
        assert (totals.requests, balance.month_tokens, balance.num_running) == (2, 100, 0)
        assert totals.prompt_tokens + totals.completion_tokens == 100
        assert running.request_id == held["slots"][0][1].request_id


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
async def test_one_worker_exceeds_nothing_over_many_outages(
    server: EmbeddedPostgres, seed: int
) -> None:
    draw, budget = random.Random(seed), 4000
    async with workers(server, 1) as (worker,):
        who = await make(worker.store, monthly_tokens=budget, max_concurrent=3)
        await known((worker,), who)
        running: list[Hold] = []

        async def act() -> None:
            choice = draw.random()
            if choice < 0.5 and (hold := await worker.ask(who, draw.randrange(1, 400))) is not None:
                running.append(hold)
            elif choice < 0.7 and running:
                await more(draw.choice(running), draw.randrange(1, 100))
            elif running:
                await worker.settle(who, running.pop(draw.randrange(len(running))))
            assert len(running) <= 3

        for _ in range(6):
            for _ in range(draw.randrange(1, 10)):
                await act()
            async with dead(server, draw.choice([signal.SIGSTOP, signal.SIGKILL])):
                for _ in range(draw.randrange(1, 15)):
                    await act()
            if draw.random() < 0.7:
                await until_back((worker,))
        for hold in running:
            await worker.settle(who, hold)
        await until_back((worker,))
        # Reservations whose answer was lost would end with their leases.
        for lost in await worker.store.list_running(who.tenant.id):
            await worker.store.release(who.tenant.id, lost.request_id)
        totals = await usage_totals(worker.store, who.tenant.id)
        (balance,) = await worker.store.balances([who.tenant.id])
        assert balance.month_tokens == totals.prompt_tokens + totals.completion_tokens <= budget
        assert balance.num_running == 0
