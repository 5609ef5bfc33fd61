"""A change ends what runs under the keys it concerns, all of it, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.admin.revocations import SWEEP_S, Revocations
from gateway.errors import ApiError, InvalidApiKey, PermissionDenied
from gateway.generation.generation import Generations
from gateway.lifecycle import Session
from tenants.authenticator import Authenticator
from tenants.changes import EVERYTHING, Change
from tenants.types import Principal
from tests.gateway.engine_double import Play
from tests.gateway.generating import Bench, bench, read
from tests.gateway.serving import until
from tests.tenants.authenticating import WatchedStore
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio


class OpenSession:
    """A WebSocket's session, and why it was closed."""

    def __init__(self, principal: Principal | None) -> None:
        self.principal = principal
        self.refusals: list[ApiError] = []

    def drain(self) -> None:
        raise AssertionError("the server goes on")

    def refuse(self, error: ApiError) -> None:
        self.refusals.append(error)
        self.principal = None  # it is closed


class Site:
    """Revocations over a store that can be away, and sessions under its keys."""

    def __init__(
        self, generations: Generations, now: Callable[[], datetime], num_checks: int
    ) -> None:
        self.store = WatchedStore()
        self.sessions: set[Session] = set()
        self.deleted: list[object] = []
        self.revocations = Revocations(
            Authenticator(self.store, PEPPER, now=now),
            generations=generations,
            sessions=self.sessions,
            num_checks=num_checks,
            on_adapter_deleted=self.deleted.append,
        )

    async def open(
        self, tenant_name: str, expires_at: datetime | None = None
    ) -> tuple[OpenSession, Principal]:
        """A session under a new key of a new tenant."""
        _, principal = await make_key(self.store, tenant_name, expires_at=expires_at)
        session = OpenSession(principal)
        self.sessions.add(session)
        return session, principal


@asynccontextmanager
async def running(
    model_dir: Path,
    *,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    num_checks: int = 8,
) -> AsyncIterator[tuple[Site, Bench]]:
    async with bench(model_dir) as here:
        site = Site(here.generations, now, num_checks)
        task = asyncio.create_task(site.revocations.run())
        try:
            yield site, here
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_revoked_key_ends_its_sessions_and_no_others(model_dir: Path) -> None:
    async with running(model_dir) as (site, _):
        session, principal = await site.open("acme")
        second = OpenSession(principal)
        stranger, _ = await site.open("globex")
        unknown = OpenSession(None)  # has not said yet who it is
        site.sessions |= {second, unknown}
        await site.store.revoke_key(principal.key.public_id)
        site.revocations.on_change(Change(public_id=principal.key.public_id))
        await until(lambda: session.refusals and second.refusals)
        assert isinstance(session.refusals[0], InvalidApiKey)
        assert site.store.lookups == [principal.key.public_id]
        assert not stranger.refusals
        assert not unknown.refusals


async def test_a_change_that_harms_nobody_ends_nothing(model_dir: Path) -> None:
    """It only says where to look: one sent twice, or for a key that is still good."""
    async with running(model_dir) as (site, _):
        session, principal = await site.open("acme")
        for change in (Change(tenant_id=principal.tenant.id), EVERYTHING, EVERYTHING):
            site.revocations.on_change(change)
        site.revocations.on_change(Change(public_id="of-nobody"))
        await until(lambda: site.store.lookups)
        await asyncio.sleep(0.05)
        assert not session.refusals


async def test_of_a_disabled_tenant_all_keys_end(model_dir: Path) -> None:
    async with running(model_dir) as (site, _):
        session, principal = await site.open("acme")
        stranger, _ = await site.open("globex")
        await site.store.update_tenant(principal.tenant.id, disabled=True)
        site.revocations.on_change(Change(tenant_id=principal.tenant.id))
        await until(lambda: session.refusals)
        assert not stranger.refusals


async def test_what_changed_while_nobody_listened_is_found(model_dir: Path) -> None:
    async with running(model_dir, num_checks=2) as (site, _):
        sites = [await site.open(f"tenant-{number}") for number in range(7)]
        for _, principal in sites[::2]:
            await site.store.revoke_key(principal.key.public_id)
        site.revocations.on_change(EVERYTHING)
        await until(lambda: all(session.refusals for session, _ in sites[::2]))
        await until(lambda: len(site.store.lookups) == 7)
        assert not any(session.refusals for session, _ in sites[1::2])


async def test_no_more_keys_are_looked_up_at_once_than_told(model_dir: Path) -> None:
    async with running(model_dir, num_checks=3) as (site, _):
        for number in range(8):
            await site.open(f"tenant-{number}")
        site.store.gate = asyncio.Event()
        site.revocations.on_change(EVERYTHING)
        await until(lambda: len(site.store.lookups) == 3)
        await asyncio.sleep(0.05)
        assert len(site.store.lookups) == 3
        site.store.gate.set()
        await until(lambda: len(site.store.lookups) == 8)


async def test_a_store_that_is_away_delays_the_end_and_forgets_none(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.admin.revocations.RETRY_S", 0.01)
    monkeypatch.setattr("tenants.authenticator.RETRY_S", 0.01)
    async with running(model_dir) as (site, _):
        opened = [await site.open(f"tenant-{number}") for number in range(3)]
        for _, principal in opened:
            await site.store.revoke_key(principal.key.public_id)
        site.store.away = True
        site.revocations.on_change(EVERYTHING)
        await until(lambda: len(site.store.lookups) > 6)  # tried again and again
        assert not any(session.refusals for session, _ in opened)
        site.store.away = False
        await until(lambda: all(session.refusals for session, _ in opened))
        await until(lambda: "Keys in use are checked again" in caplog.text)
        assert caplog.text.count("Keys in use are not checked") == 1


async def test_a_key_ends_when_its_time_is_over_without_any_change(model_dir: Path) -> None:
    moment = datetime.now(UTC)
    async with running(model_dir, now=lambda: moment) as (site, _):
        session, _ = await site.open("acme", expires_at=moment + timedelta(hours=1))
        stranger, _ = await site.open("globex")
        await asyncio.sleep(SWEEP_S / 4)
        assert not session.refusals
        moment += timedelta(hours=2)
        await until(lambda: session.refusals)
        assert not stranger.refusals


async def test_what_runs_ends_with_its_key_and_a_request_by_its_name(model_dir: Path) -> None:
    async with running(model_dir) as (site, here):
        here.double.script = lambda prompt: Play(text="x" * 100, interval_s=0.5)
        first, second, third = (here.begin() for _ in range(3))
        site.revocations.on_change(Change(request_id=uuid4()))
        site.revocations.on_change(Change(request_id=second.admitted.id))
        with pytest.raises(PermissionDenied, match="administrator ended"):
            await read(second)
        second.close()
        assert len(here.generations) == 2
        # The store of these revocations has never heard of the key.
        site.revocations.on_change(Change(public_id=here.principal.key.public_id))
        for generation in (first, third):
            with pytest.raises(InvalidApiKey):
                await read(generation)
            generation.close()


async def test_a_deleted_adapter_is_the_engines_to_forget(model_dir: Path) -> None:
    async with running(model_dir) as (site, _):
        session, _ = await site.open("acme")
        adapter_id = uuid4()
        site.revocations.on_change(Change(adapter_id=adapter_id))
        assert site.deleted == [adapter_id]
        await asyncio.sleep(0.02)
        assert site.store.lookups == []
        assert not session.refusals
