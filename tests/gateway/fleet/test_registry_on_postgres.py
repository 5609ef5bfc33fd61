"""The registry as PostgreSQL keeps it: heard of at once, looked for otherwise, and done without."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from engine.client.fleet import Fleet
from gateway.errors import ConfigError
from gateway.fleet import registry
from gateway.fleet.identity import Identity
from gateway.fleet.registry import Registry
from tenants.changes import ChangeListener
from tenants.shared import SharedState
from tenants.store import Store
from tests.attack.serving import own_database
from tests.engine.stand_in import expected_tokens
from tests.gateway.fleet.test_registry import (
    following,
    hosted,
    names,
    quickly,
    read,
    request,
    until,
)

__all__ = ["quickly"]
pytestmark = [pytest.mark.asyncio, pytest.mark.pg]


@contextlib.asynccontextmanager
async def registry_of(dsn: str) -> AsyncIterator[SharedState]:
    store = await Store.connect(dsn, max_size=4)
    try:
        yield store.shared
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def listening(dsn: str, follower: Registry) -> AsyncIterator[None]:
    listener = ChangeListener(dsn, follower.on_change)
    task = asyncio.create_task(listener.run())
    try:
        await until(lambda: listener.num_connects == 1)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def serving(fleet: Fleet) -> set[str]:
    return {engine.name for engine in fleet._serving}


async def test_changes_are_heard_and_what_does_not_fit_is_refused(
    pg_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "RENEW_S", 600.0)
    monkeypatch.setattr(registry, "PATIENCE_S", 600.0)
    async with (
        registry_of(pg_dsn) as shared,
        following(shared) as (fleet, follower),
        listening(pg_dsn, follower),
        hosted(shared) as one,
    ):
        await until(lambda: names(fleet) == {one.id})
        assert await shared.drain_engine(one.id, is_drained=True)
        await until(lambda: serving(fleet) == set())
        await shared.drain_engine(one.id, is_drained=False)
        await until(lambda: serving(fleet) == {one.id})
        with pytest.raises(ConfigError, match="engines of 'ok' are registered that have other"):
            async with hosted(shared, identity=Identity("others", "tokenizer")):
                pass


async def test_without_notifications_it_is_looked_at(pg_dsn: str) -> None:
    async with (
        registry_of(pg_dsn) as shared,
        following(shared) as (fleet, _),
        hosted(shared) as one,
    ):
        await until(lambda: names(fleet) == {one.id})


@pytest.mark.nightly
async def test_while_postgresql_is_away_the_engines_are_remembered() -> None:
    with own_database() as database:
        async with (
            registry_of(database.dsn) as shared,
            following(shared) as (fleet, _),
            hosted(shared) as one,
        ):
            await until(lambda: names(fleet) == {one.id})
            await asyncio.to_thread(database.kill)
            await asyncio.sleep(1.5)  # three leases
            assert names(fleet) == {one.id}
            assert await read(fleet.submit(request("r", 50))) == expected_tokens([7, 8, 9], 50)
            await asyncio.to_thread(database.start)
            async with hosted(shared) as two:
                await until(lambda: names(fleet) == {one.id, two.id})
            await until(lambda: names(fleet) == {one.id})
            assert fleet.moves.num_failed == 0
