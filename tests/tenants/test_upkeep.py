from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tenants import upkeep
from tenants.errors import StoreUnavailable
from tests.memory_store.store import MemoryStore

pytestmark = pytest.mark.asyncio


class CountingStore(MemoryStore):
    """Its chores are counted; it is away for the first ones."""

    def __init__(self) -> None:
        super().__init__()
        self.months: list[int | None] = []
        self.num_roll_ups = 0

    async def maintain(self, *, usage_retention_months: int | None = None) -> None:
        self.months.append(usage_retention_months)

    async def roll_up(self) -> None:
        self.num_roll_ups += 1
        if self.num_roll_ups < 4:
            raise StoreUnavailable("away")


async def test_each_chore_is_repeated_also_after_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = CountingStore()
    await store.shared.register_worker("w", "here", timedelta(days=-1))
    running = asyncio.create_task(
        upkeep.run(
            store, usage_retention_months=7, roll_up_s=0.001, expire_s=0.001, maintain_s=0.001
        )
    )
    async with asyncio.timeout(30):
        while store.num_roll_ups < 6 or len(store.months) < 3:  # noqa: ASYNC110 - another's state
            await asyncio.sleep(0.001)
    assert not store.shared._workers
    assert set(store.months) == {7}
    running.cancel()
    await asyncio.wait([running])
    began, ended = (record.getMessage() for record in caplog.records)
    assert began == "Sums of usage: waits for the store: away"
    assert ended.startswith("Sums of usage: goes on again, after ")


async def test_a_chore_that_hangs_holds_up_no_other() -> None:
    store = CountingStore()
    store.num_roll_ups = 4
    hang = asyncio.Event()

    async def maintain(*, usage_retention_months: int | None = None) -> None:
        await hang.wait()

    store.maintain = maintain  # type: ignore[method-assign]
    running = asyncio.create_task(upkeep.run(store, roll_up_s=0.001))
    async with asyncio.timeout(30):
        while store.num_roll_ups < 20:  # noqa: ASYNC110 - another's state
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait([running])
