"""Who was refused and why: the contract, on both twins, and an outage of the store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tenants.errors import StoreUnavailable
from tenants.refused import RefusalLog
from tenants.store import Store
from tests.tenants.samples import make_key

pytestmark = pytest.mark.asyncio


async def test_refusals_are_summed_those_most_often_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, one), (_, two) = await make_key(store, "acme"), await make_key(store, "globex")
    log, began = RefusalLog(store, max_entries=3), datetime.now(UTC)
    for key, code, times in (
        (one.key, "insufficient_quota", 2),
        (two.key, "insufficient_quota", 1),
        (one.key, "rate_limit_exceeded", 5),
        (two.key, "no_room_for_this", 1),
    ):
        for _ in range(times):
            log.note(key, code)
    with monkeypatch.context() as patch:

        async def away(*_: object) -> None:
            raise StoreUnavailable("away")

        patch.setattr(store, "note_refusals", away)
        await log.flush()
    log.note(one.key, "insufficient_quota")
    await log.flush()
    await log.flush()
    log.note(two.key, "insufficient_quota")
    await log.flush()

    week = began - timedelta(days=7)
    found = await store.list_refusals(since=week, limit=9)
    assert [(row.tenant_id, row.key_id, row.code, row.times) for row in found] == [
        (one.tenant.id, one.key.id, "rate_limit_exceeded", 5),
        (one.tenant.id, one.key.id, "insufficient_quota", 3),
        (two.tenant.id, two.key.id, "insufficient_quota", 2),
    ]
    assert all(row.last_at is not None and row.last_at >= began for row in found)
    assert await store.list_refusals(two.tenant.id, since=week, limit=9) == found[2:]
    assert await store.list_refusals(since=week, limit=1) == found[:1]
    later = datetime.now(UTC) + timedelta(hours=2)
    assert await store.list_refusals(since=later, limit=9) == []

    await store.delete_tenant(two.tenant.id)
    log.note(two.key, "invalid_api_key")
    await log.flush()
    assert await store.list_refusals(two.tenant.id, since=week, limit=9) == []
