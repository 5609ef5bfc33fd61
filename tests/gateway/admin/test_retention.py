from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from gateway.admin.retention import Retention
from tenants.errors import StoreUnavailable
from tenants.memory import MemoryStore
from tenants.memory_shared import MemoryShared
from tests.gateway.serving import until


class Shared(MemoryShared):
    """Away at first."""

    num_calls = 0

    async def delete_expired(self) -> int:
        self.num_calls += 1
        if self.num_calls < 4:
            raise StoreUnavailable("away")
        return await super().delete_expired()


@pytest.mark.asyncio
async def test_what_has_expired_goes_also_after_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    shared = Shared(store._now, ())
    await shared.register_worker("w", "here", timedelta(days=-1))
    running = asyncio.create_task(Retention(shared, interval_s=0.01).run())
    await until(lambda: not shared._workers)
    await until(lambda: "deleted again" in caplog.text)
    running.cancel()
    assert len(caplog.records) == 2, "when it began, and when it ended"
