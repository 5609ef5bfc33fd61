from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from tenants.authenticator import Authenticator
from tenants.errors import AuthenticationFailed, StoreUnavailable
from tenants.last_used import LastUsed
from tenants.store import Store
from tests.memory_store.store import MemoryStore
from tests.tenants.samples import PEPPER, make_key

pytestmark = pytest.mark.asyncio

START = datetime(2031, 1, 1, tzinfo=UTC)


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Mapping[UUID, datetime]] = []
        self.away = False

    async def touch_keys(self, last_used: Mapping[UUID, datetime]) -> None:
        if self.away:
            raise StoreUnavailable("away")
        self.writes.append(last_used)
        await super().touch_keys(last_used)


async def last_use(store: Store, public_id: str) -> datetime | None:
    record = await store.find_key(public_id)
    assert record is not None
    return record.principal.key.last_used_at


async def test_authenticated_uses_reach_the_store(store: Store) -> None:
    text, principal = await make_key(store)
    last_used = LastUsed(store, now=lambda: START)
    authenticator = Authenticator(store, PEPPER, last_used=last_used)
    await authenticator.authenticate(text)
    assert await last_use(store, principal.key.public_id) is None
    await last_used.flush()
    assert await last_use(store, principal.key.public_id) == START


async def test_refused_keys_are_not_used() -> None:
    store = CountingStore()
    text, principal = await make_key(store)
    last_used = LastUsed(store)
    authenticator = Authenticator(store, b"another pepper, as long", last_used=last_used)
    with pytest.raises(AuthenticationFailed, match="unknown"):
        await authenticator.authenticate(text)
    await last_used.flush()
    assert store.writes == []
    assert await last_use(store, principal.key.public_id) is None


async def test_many_uses_are_one_write_of_the_latest() -> None:
    store = CountingStore()
    _, principal = await make_key(store)
    times = iter(START + timedelta(seconds=second) for second in range(100))
    last_used = LastUsed(store, now=lambda: next(times))
    for _ in range(100):
        last_used.note(principal.key.id)
    await last_used.flush()
    await last_used.flush()
    assert store.writes == [{principal.key.id: START + timedelta(seconds=99)}]


async def test_outage_keeps_what_was_noted(caplog: pytest.LogCaptureFixture) -> None:
    store = CountingStore()
    _, principal = await make_key(store)
    last_used = LastUsed(store, now=lambda: START)
    last_used.note(principal.key.id)
    store.away = True
    await last_used.flush()
    await last_used.flush()
    store.away = False
    await last_used.flush()
    assert await last_use(store, principal.key.public_id) == START
    began, ended = (record.getMessage() for record in caplog.records)
    assert began == "1 last uses of keys not written: away"
    assert ended.startswith("Last uses of keys are written again, after ")


async def test_memory_is_bounded() -> None:
    store = CountingStore()
    last_used = LastUsed(store, max_keys=2, now=lambda: START)
    ids = [uuid4() for _ in range(3)]
    for key_id in (*ids, ids[0]):
        last_used.note(key_id)
    await last_used.flush()
    assert store.writes == [dict.fromkeys(ids[:2], START)]


async def test_run_writes_at_its_end_too() -> None:
    store = CountingStore()
    _, principal = await make_key(store)
    last_used = LastUsed(store, interval_s=0.01)
    task = asyncio.create_task(last_used.run())
    last_used.note(principal.key.id)
    async with asyncio.timeout(30):
        while not store.writes:  # noqa: ASYNC110 - the condition is another object's state
            await asyncio.sleep(0.005)
    last_used.note(principal.key.id)
    task.cancel()
    await asyncio.wait([task])
    assert len(store.writes) == 2
