from __future__ import annotations

import asyncio
import random

import pytest

from tests.gateway.departures.late_store import late_store

pytestmark = pytest.mark.asyncio


async def test_who_is_cancelled_does_not_know_whether_it_acted() -> None:
    store = late_store(random.Random(1), 0.02)
    outcomes = set()
    for number in range(40):
        creating = asyncio.create_task(store.create_tenant(f"t{number}"))
        await asyncio.sleep(0.006)
        creating.cancel()
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        is_known = f"t{number}" in {tenant.name for tenant in store._tenants.values()}
        outcomes.add((isinstance(outcome, asyncio.CancelledError), is_known))
    assert {(True, False), (True, True)} <= outcomes


async def test_without_a_wait_it_is_the_store() -> None:
    store = late_store(random.Random(1), 0.0)
    assert (await store.create_tenant("acme")).name == "acme"
