from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from tenants.authenticator import Authenticator, CacheBounds
from tenants.changes import EVERYTHING, Change, ChangeListener, parse
from tenants.errors import AuthenticationFailed, InvalidValue
from tenants.limits import Limits
from tenants.store import Store
from tests.postgres import execute, with_database
from tests.tenants.samples import PEPPER, make_event, make_key

CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'sluice listen' AND datname = current_database()"
)


def test_payloads() -> None:
    tenant_id = uuid4()
    assert parse("key AAAAAAAAAAAA") == Change(public_id="AAAAAAAAAAAA")
    assert parse(f"tenant {tenant_id}") == Change(tenant_id=tenant_id)
    assert parse(f"request {tenant_id}") == Change(request_id=tenant_id)
    assert parse(f"adapter {tenant_id}") == Change(adapter_id=tenant_id)
    for strange in ("", "request 7", "tenant", "tenant x", "model demo"):
        assert parse(strange) == EVERYTHING


def test_dsn_is_checked_at_once() -> None:
    with pytest.raises(InvalidValue, match="dsn"):
        ChangeListener("sqlite://", lambda change: None)


async def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> float:
    """Seconds until it holds."""
    start = time.monotonic()
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.001)
    return time.monotonic() - start


@asynccontextmanager
async def listening(dsn: str, on_change: Callable[[Change], None]) -> AsyncIterator[ChangeListener]:
    listener = ChangeListener(dsn, on_change, check_interval_s=0.05)
    task = asyncio.create_task(listener.run())
    try:
        await eventually(lambda: listener.num_connects > 0)
        yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.pg
@pytest.mark.asyncio
class TestListener:
    async def test_every_change_of_an_administrator_is_told(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        heard: list[Change] = []
        _, who = await make_key(pg_store)
        tenant, public_id = who.tenant, who.key.public_id
        async with listening(pg_dsn, heard.append):
            for change, expected in [
                (pg_store.revoke_key(public_id), [Change(public_id=public_id)]),
                (pg_store.update_tenant(tenant.id, weight=2.0), [Change(tenant_id=tenant.id)]),
                (
                    pg_store.put_limits(tenant.id, "key", who.key.id, Limits(max_concurrent=1)),
                    [Change(tenant_id=tenant.id)],
                ),
            ]:
                heard.clear()
                await change
                await eventually(lambda expected=expected: heard == expected)  # type: ignore[misc]
            heard.clear()
            text, other = await make_key(pg_store, "other")
            del text
            await pg_store.rotate_key(
                other.key.public_id,
                new_public_id="B" * 12,
                key_hash=bytes(32),
                grace=timedelta(hours=1),
            )
            ids = {other.key.public_id, "B" * 12}
            await eventually(lambda: {change.public_id for change in heard} == ids)

    async def test_requests_tell_nothing(self, pg_dsn: str, pg_store: Store) -> None:
        heard: list[Change] = []
        _, who = await make_key(pg_store)
        await pg_store.put_limits(who.tenant.id, "tenant", who.tenant.id, Limits(max_concurrent=1))
        async with listening(pg_dsn, heard.append):
            heard.clear()
            await pg_store.touch_keys({who.key.id: datetime.now(UTC)})
            await pg_store.record_usage(make_event(who.key))
            await pg_store.revoke_key(who.key.public_id)
            await eventually(lambda: len(heard) > 0)
            assert heard == [Change(public_id=who.key.public_id)]

    async def test_broken_line_is_made_again_and_everything_forgotten(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        heard: list[Change] = []
        _, who = await make_key(pg_store)
        async with listening(pg_dsn, heard.append) as listener:
            for number in range(2, 4):
                heard.clear()
                await execute(pg_dsn, CUT)
                await eventually(lambda number=number: listener.num_connects == number)  # type: ignore[misc]
                assert heard == [EVERYTHING] * 2  # when it broke, and when it was made again
            await pg_store.revoke_key(who.key.public_id)
            await eventually(lambda: heard[-1] == Change(public_id=who.key.public_id))
            await eventually(lambda: listener.age_s < 0.05)

    async def test_a_query_that_meets_the_news_of_the_end_is_a_broken_line(
        self, pg_dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """About one terminated backend in forty is noticed like this."""
        async with listening(pg_dsn, lambda change: None) as listener:

            async def execute(*_: object, **__: object) -> None:
                monkeypatch.undo()
                raise asyncpg.InternalClientError("cannot switch to state 15")

            monkeypatch.setattr(asyncpg.Connection, "execute", execute)
            await eventually(lambda: listener.num_connects == 2)
            await eventually(lambda: listener.age_s < 0.05)

    async def test_age_grows_while_the_line_is_broken(self, postgres_server: str) -> None:
        gone = with_database(postgres_server, "nope")
        assert gone != postgres_server
        listener = ChangeListener(gone, lambda change: None)
        task = asyncio.create_task(listener.run())
        await asyncio.sleep(0.2)
        assert listener.age_s >= 0.2
        assert listener.num_connects == 0
        task.cancel()
        await asyncio.wait([task])

    async def test_an_outage_is_told_once_and_its_end(
        self, postgres_server: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = f"late_{uuid4().hex}"
        dsn = with_database(postgres_server, name)
        listener = ChangeListener(dsn, lambda change: None, max_backoff_s=0.01)
        task = asyncio.create_task(listener.run())
        await eventually(lambda: bool(caplog.records))
        await asyncio.sleep(0.2)  # for many attempts
        await execute(postgres_server, f"CREATE DATABASE {name}")
        await eventually(lambda: "again" in caplog.text)
        task.cancel()
        await asyncio.wait([task])
        await execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")
        began, ended = (record.getMessage() for record in caplog.records)
        assert re.fullmatch(rf'Not listening to .*: database "{name}" does not exist', began)
        assert re.fullmatch(rf"Listening to .*{name}.* again, after \d+\.\d s", ended)

    async def test_no_connection_stays(self, pg_dsn: str) -> None:
        async with listening(pg_dsn, lambda change: None):
            pass
        connection = await asyncpg.connect(pg_dsn)
        counting = CUT.replace("pg_terminate_backend(pid)", "count(*)")
        async with asyncio.timeout(30):
            while await connection.fetchval(counting):  # noqa: ASYNC110 - the server's state
                await asyncio.sleep(0.01)
        await connection.close()


SECOND_S = 10.0
"""A machine with other work may be late; the caches would hold three times as long."""


async def use_until(authenticator: Authenticator, text: str, deadline: float) -> None:
    while time.monotonic() < deadline:
        await authenticator.authenticate(text)
        await asyncio.sleep(0.001)


@pytest.mark.pg
@pytest.mark.asyncio
class TestAuthenticators:
    async def test_revocation_reaches_all_within_a_second(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        """Of several workers, each with a cache that would hold for half a minute."""
        workers = [Authenticator(pg_store, PEPPER, CacheBounds(ttl_s=30)) for _ in range(4)]
        keys = [await make_key(pg_store, f"tenant {number}") for number in range(5)]

        def tell(change: Change) -> None:
            for worker in workers:
                worker.apply(change)

        async with listening(pg_dsn, tell):
            for text, who in keys:
                for worker in workers:
                    await worker.authenticate(text)
                await pg_store.revoke_key(who.key.public_id)
                revoked_at = time.monotonic()
                for worker in workers:
                    with pytest.raises(AuthenticationFailed, match="was revoked"):
                        await use_until(worker, text, revoked_at + SECOND_S)

    async def test_tenant_and_policies_reach_too_and_other_tenants_stay_cached(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        authenticator = Authenticator(pg_store, PEPPER, CacheBounds(ttl_s=30))
        text, who = await make_key(pg_store, "one")
        other_text, other = await make_key(pg_store, "two")
        changes: list[Change] = []

        def tell(change: Change) -> None:
            authenticator.apply(change)
            changes.append(change)

        async with listening(pg_dsn, tell):
            await authenticator.authenticate(text)
            await authenticator.authenticate(other_text)
            await pg_store.put_limits(who.tenant.id, "tenant", who.tenant.id, Limits(priority=7))
            await eventually(lambda: changes[-1] == Change(tenant_id=who.tenant.id))
            assert (await authenticator.authenticate(text)).priority == 7
            assert list(authenticator._known) == [other.key.public_id, who.key.public_id]
            await pg_store.update_tenant(who.tenant.id, disabled=True)
            await eventually(lambda: who.key.public_id not in authenticator._known)
            with pytest.raises(AuthenticationFailed, match="is disabled"):
                await authenticator.authenticate(text)

    async def test_new_key_is_not_hidden_by_what_was_not_there(
        self, pg_dsn: str, pg_store: Store
    ) -> None:
        from tenants import keys

        authenticator = Authenticator(pg_store, PEPPER, CacheBounds(negative_ttl_s=60))
        tenant = await pg_store.create_tenant("acme")
        minted = keys.mint(PEPPER)
        async with listening(pg_dsn, authenticator.apply):
            with pytest.raises(AuthenticationFailed, match="unknown"):
                await authenticator.authenticate(minted.text)
            await pg_store.create_key(
                tenant.id,
                public_id=minted.public_id,
                key_hash=minted.key_hash,
                name="new",
                scopes=["chat"],
            )
            await eventually(lambda: minted.public_id not in authenticator._unknown)
            assert (await authenticator.authenticate(minted.text)).tenant == tenant
