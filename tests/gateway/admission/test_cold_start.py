"""Requests for a model that sleeps: they wake it, and wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from engine.client.fleet import Fleet
from gateway.admission import cold_start
from gateway.admission.cold_start import ColdStart

pytestmark = pytest.mark.asyncio


class Starter:
    """Who starts engines, as far as gateways know of it."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.num_asked = 0

    async def ask(self) -> bool:
        self.num_asked += 1
        await asyncio.sleep(0)
        return self.is_there


def sleeping(starter: Starter, *, wait_s: float = 30.0, max_waiting: int = 100) -> ColdStart:
    return ColdStart(Fleet([], may_sleep=True), starter.ask, wait_s=wait_s, max_waiting=max_waiting)


async def test_all_wait_until_an_engine_serves_and_ask_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cold_start, "ASK_S", 0.05)
    starter = Starter()
    start = sleeping(starter)
    waiting = [asyncio.create_task(start.wait("t")) for _ in range(50)]
    await asyncio.sleep(0.22)
    assert start.num_waiting == 50
    assert 2 <= starter.num_asked <= 6  # again and again, as the first may have been forgotten
    start._engine.serving.set()
    await asyncio.gather(*waiting)
    assert start.num_waiting == 0
    num_asked = starter.num_asked
    await start.wait("t")
    assert starter.num_asked == num_asked


async def test_nobody_waits_in_vain() -> None:
    began = time.monotonic()
    await sleeping(Starter(is_there=False)).wait("t")
    asked = Starter()
    await sleeping(asked, wait_s=0).wait("t")
    assert asked.num_asked == 1  # so that it is there for the next ones
    assert time.monotonic() - began < 5


async def test_waiting_ends_in_time_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "ASK_S", 0.02)
    start = sleeping(Starter(), wait_s=0.5, max_waiting=2)
    waiting = [asyncio.create_task(start.wait("t")) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.wait_for(start.wait("t"), 0.05)  # one too many
    waiting.append(asyncio.create_task(start.wait("another")))  # who has nothing there yet
    await asyncio.sleep(0)
    assert start.num_waiting == 3
    async with asyncio.timeout(20):
        await asyncio.gather(*waiting)
    assert start.num_waiting == 0


async def test_a_client_that_leaves_and_a_shutdown_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_start, "ASK_S", 0.02)
    start = sleeping(Starter())
    gone, other = (asyncio.create_task(start.wait("t")) for _ in range(2))
    await asyncio.sleep(0.05)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert start.num_waiting == 1
    start.end()
    async with asyncio.timeout(20):
        await other
