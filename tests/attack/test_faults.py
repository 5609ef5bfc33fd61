"""Something of a deployment dies or stands still in the middle of its work, or its disk is full.

Who is not concerned notices nothing. Who is concerned waits or is told, and no answer ends as if
it were complete. Afterwards all of it serves again, and the ledger has every request once, with
what the clients were told.

Kills at random, many times over, are in ``tests/e2e/test_chaos.py``; open files that run out are in
``tests/e2e/test_open_files.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tenants.limits import Limits
from tests.attack.neighbour import Neighbour, Watch
from tests.attack.serving import MODEL, Database, Deployment, Member, own_database
from tests.gateway.serving import until

pytestmark = [pytest.mark.pg, pytest.mark.nightly, pytest.mark.asyncio]

HANG_S = 6.0
AWAY_S = 5.0
NUM_CLIENTS = 16
MAX_TOKENS = 120
FAR = Limits(tokens_per_minute=10**8, max_concurrent=500, monthly_tokens=10**12)
SETTINGS = {"server": {"worker_hang_timeout_s": HANG_S, "engine_hang_timeout_s": HANG_S}}
faults = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])


@dataclass
class Site:
    database: Database
    deployment: Deployment
    member: Member


@contextmanager
def site(**settings: Any) -> Iterator[Site]:
    with (
        own_database() as database,
        Deployment(
            database.dsn, replay_tokens_per_s=20, settings=SETTINGS | settings
        ) as deployment,
    ):
        yield Site(database, deployment, deployment.member("concerned", FAR))


@dataclass
class Outcome:
    """Of one stream."""

    status: int = 0
    num_chunks: int = 0
    """Those with text."""
    num_tokens: int | None = None
    """What its usage says; None if it had none."""
    error: str | None = None
    """The code of its error event."""
    is_done: bool = False
    """Whether it ended as a complete answer does."""


async def ask(here: Site, outcome: Outcome, max_tokens: int = MAX_TOKENS) -> None:
    """Fill the outcome as far as the stream comes."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Tell me about foxes."}],
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"authorization": f"Bearer {here.member.key}"}
    url = f"{here.deployment.url}/v1/chat/completions"
    async with (
        httpx.AsyncClient(timeout=90) as client,
        client.stream("POST", url, json=body, headers=headers) as answer,
    ):
        outcome.status = answer.status_code
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                outcome.is_done = True
            elif line.startswith("data: {"):
                chunk = json.loads(line[6:])
                outcome.error = chunk.get("error", {}).get("code")
                if usage := chunk.get("usage"):
                    outcome.num_tokens = usage["completion_tokens"]
                choices = chunk.get("choices")
                outcome.num_chunks += bool(choices and choices[0]["delta"].get("content"))


@asynccontextmanager
async def streaming(here: Site) -> AsyncIterator[list[Outcome]]:
    """Streams at all workers; the block begins in the middle of them, and ends with the last."""
    outcomes = [Outcome() for _ in range(NUM_CLIENTS)]
    tasks = [asyncio.create_task(ask(here, outcome)) for outcome in outcomes]
    try:
        await until(lambda: all(outcome.num_chunks > 10 for outcome in outcomes))
        yield outcomes
    finally:
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome, end in zip(outcomes, ends, strict=True):
        assert end is None or isinstance(end, httpx.TransportError), end
        if end is not None:
            assert not outcome.is_done
        assert outcome.is_done == (outcome.num_tokens is not None), outcome


async def serves_again(here: Site, num_workers: int = 2) -> None:
    async def is_served() -> bool:
        outcome = Outcome()
        try:
            await ask(here, outcome, 1)
        except httpx.TransportError:
            return False
        return outcome.is_done and len(here.deployment.workers()) == num_workers

    await until(is_served, within_s=90)


async def check_the_books(here: Site, outcomes: Sequence[Outcome]) -> None:
    """Those that ended by themselves are in the ledger as their clients were told, the others with
    at least what was seen of them."""
    async with here.deployment.store() as store:
        await store.put_limits(here.member.tenant.id, "tenant", here.member.tenant.id, FAR)
    booked = await here.deployment.settled(here.member, len(outcomes))
    told = sum(outcome.num_tokens or 0 for outcome in outcomes)
    cut = [outcome for outcome in outcomes if outcome.num_tokens is None]
    assert booked.requests >= len(outcomes)
    extra = booked.requests - len(outcomes)  # of ``serves_again``, which gets one token each
    assert told + sum(each.num_chunks for each in cut) <= booked.completion_tokens - extra
    assert booked.completion_tokens - extra <= told + MAX_TOKENS * len(cut)


async def felt_by_neighbour(
    here: Site, what: Callable[[], object], *, max_tokens: int = 400
) -> tuple[Watch, Watch]:
    """A neighbour that asks nothing new meanwhile: before, and while this happens."""
    member = here.deployment.member("calm")
    async with Neighbour(here.deployment, member.key, max_tokens=max_tokens) as neighbour:
        calm = await neighbour.watch_for(4)
        async with neighbour.watch() as attacked:
            what()
            await asyncio.sleep(AWAY_S)
    return calm, attacked


@faults
async def test_a_database_that_is_gone_stops_no_stream(how: signal.Signals) -> None:
    with site() as here:
        async with streaming(here) as outcomes:
            calm, attacked = await felt_by_neighbour(here, lambda: here.database.signal(how))
            if how is signal.SIGSTOP:
                here.database.signal(signal.SIGCONT)
            else:
                await asyncio.to_thread(here.database.start)
        attacked.assert_unharmed(calm)
        assert all(outcome.is_done for outcome in outcomes)
        await serves_again(here)
        await check_the_books(here, outcomes)


@faults
async def test_a_worker_that_is_gone_takes_only_its_own_streams(how: signal.Signals) -> None:
    with site() as here:
        deployment = here.deployment
        async with streaming(here) as outcomes:
            victim, other = deployment.workers()
            victim.send_signal(how)
            await until(lambda: not victim.is_running(), within_s=60)
        assert other.is_running()
        num_cut = sum(not outcome.is_done for outcome in outcomes)
        assert 0 < num_cut < NUM_CLIENTS
        await serves_again(here)
        await check_the_books(here, outcomes)


@faults
async def test_an_engine_that_is_gone_is_a_pause_for_all_streams(how: signal.Signals) -> None:
    with site() as here:
        engine = here.deployment.engine()
        workers = here.deployment.workers()
        async with streaming(here) as outcomes:
            engine.send_signal(how)
        assert all(outcome.is_done for outcome in outcomes)
        assert {outcome.num_tokens for outcome in outcomes} == {MAX_TOKENS}
        await serves_again(here)
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
        assert here.deployment.workers() == workers
        await check_the_books(here, outcomes)


@contextmanager
def small_disk(num_bytes: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", folder]
        try:
            done = subprocess.run(mount, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("no mount on the PATH")
        if done.returncode:
            pytest.skip(f"may not mount a tmpfs: {done.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    """Until nothing more fits."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert os.statvfs(folder).f_bfree == 0
    return filler


async def test_a_full_disk_stops_no_stream_and_loses_no_token() -> None:
    """The folder of the journal is full while the database is away: what ends meanwhile is kept in
    memory, and written when there is room or a database again."""
    with small_disk(4 * 2**20) as folder, site(tenants={"journal_dir": str(folder)}) as here:
        async with streaming(here) as outcomes:
            filler = fill(folder)
            calm, attacked = await felt_by_neighbour(here, here.database.kill)
        attacked.assert_unharmed(calm)
        assert all(outcome.is_done for outcome in outcomes)
        assert len(here.deployment.workers()) == 2
        await asyncio.to_thread(here.database.start)
        filler.unlink()
        await serves_again(here)
        await check_the_books(here, outcomes)


async def test_a_server_without_room_for_its_journal_says_so(database: str) -> None:
    with small_disk(2**20) as folder:
        filler = fill(folder)
        deployment = Deployment(database, settings={"tenants": {"journal_dir": str(folder)}})
        with pytest.raises(AssertionError, match="usage cannot be kept here"), deployment:
            pytest.fail("it serves")
        assert [*folder.iterdir()] == [filler]
