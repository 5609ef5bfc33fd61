"""A fleet whose engines are replaced one after the other, while requests run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from engine.client.client import EngineClient
from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from gateway.fleet import registry, roll
from gateway.fleet.registry import Registry
from gateway.fleet.roll import Roll, RollFailed
from gateway.processes.engine_host import EngineHost
from tenants.errors import StoreUnavailable
from tenants.shared import SharedState
from tests.engine.stand_in import StandInProcess, expected_tokens
from tests.gateway.fleet.test_registry import (
    CONFIG,
    IDENTITY,
    KEYS,
    following,
    hosted,
    names,
    quickly,
    read,
    request,
    until,
)
from tests.memory_store.store import MemoryStore

__all__ = ["quickly"]
pytestmark = pytest.mark.asyncio


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll, "SETTLE_S", 0.5)
    monkeypatch.setattr(roll, "POLL_S", 0.05)
    monkeypatch.setattr(registry, "DRAINED_RENEW_S", 0.1)


@contextlib.asynccontextmanager
async def own_engines(shared: SharedState, num_engines: int) -> AsyncIterator[Fleet]:
    """A gateway's own."""
    fleet = Fleet(
        [
            EngineClient(CONFIG.engine, transport=StandInProcess, name=str(number))
            for number in range(num_engines)
        ]
    )
    follower = Registry(shared, Fleets({CONFIG.model_name: fleet}), CONFIG, KEYS)
    follower._identities[CONFIG.model_name] = IDENTITY
    await fleet.start()
    running = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(30):
            while len(await shared.list_engines()) < num_engines:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield fleet
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await fleet.close()


class Restarting:
    """A registry that is away whenever it is asked for the first time since it answered."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._is_away = False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **options: Any) -> Any:
            self._is_away = not self._is_away
            if self._is_away:
                raise StoreUnavailable("it is restarted")
            return await getattr(self._shared, name)(*args, **options)

        return ask


async def test_a_gateways_own_engines_are_replaced_and_nothing_fails() -> None:
    """Though PostgreSQL is restarted again and again meanwhile."""
    shared = MemoryStore().shared
    async with own_engines(shared, 2) as fleet:
        pids = [engine.info.pid for engine in fleet.engines]
        is_over, num_done = asyncio.Event(), 0

        async def ask(client: int) -> None:
            nonlocal num_done
            for turn in itertools.count():
                if is_over.is_set():
                    return
                got = await read(fleet.submit(request(f"{client} {turn}", 300)))
                assert got == expected_tokens([7, 8, 9], 300)
                num_done += 1

        asking = [asyncio.create_task(ask(client)) for client in range(6)]
        said: list[str] = []
        restarting = cast("SharedState", Restarting(shared))
        await Roll(restarting, timeout_s=30, say=said.append).run()
        is_over.set()
        await asyncio.gather(*asking)
        assert num_done > 6
        assert all(engine.info.pid not in pids for engine in fleet.engines)
        assert fleet.moves.num_moved > 0
        assert fleet.moves.num_failed == 0
        assert [one.condition for one in await shared.list_engines()] == ["ready", "ready"]
        assert said[-1] == "Replaced 2 engines."


def has_left(fleet: Fleet, host: EngineHost) -> bool:
    """Whether an engine is drained, and has nothing left."""
    drained = {engine.name for engine in fleet.engines if fleet.is_drained(engine)}
    return host.id in drained and not host.engine.stats.num_running


async def test_engines_of_other_hosts_are_waited_for() -> None:
    shared = MemoryStore().shared
    async with (
        contextlib.AsyncExitStack() as old,
        following(shared) as (fleet, _),
        hosted(shared) as two,
    ):
        one = await old.enter_async_context(hosted(shared))
        await until(lambda: names(fleet) == {one.id, two.id})
        stream = fleet.submit(request("r", 3000))
        rolling = asyncio.create_task(Roll(shared, timeout_s=30, say=print).run())
        for host in sorted((one, two), key=lambda host: host.id):
            await until(partial(has_left, fleet, host))
            # What its supervisor does.
            host._begin_epoch()
            host.engine.lose("it is restarted")
        await rolling
        assert await read(stream) == expected_tokens([7, 8, 9], 3000)
        assert [e.condition for e in await shared.list_engines()] == ["ready", "ready"]


async def test_what_cannot_be_rolled_is_named() -> None:
    shared = MemoryStore().shared
    with pytest.raises(RollFailed, match="no engine is ready"):
        await Roll(shared, timeout_s=5, say=print).run()
    async with own_engines(shared, 1):
        with pytest.raises(RollFailed, match="is the only engine of 'ok'"):
            await Roll(shared, timeout_s=5, say=print).run()
        (engine,) = await shared.list_engines()
        assert not engine.is_drained
    async with hosted(shared), hosted(shared):
        with pytest.raises(RollFailed, match="is not back after 1 s; it stays drained"):
            await Roll(shared, timeout_s=1, say=print).run()
