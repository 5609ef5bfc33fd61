"""How a response ends, over the real engine client and an engine double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from gateway.generation.events import Event
from gateway.responses.events import ResponseEvents
from gateway.responses.run import ResponseRun
from tests.gateway.engine_double import Play
from tests.gateway.generating import Bench, bench
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


class Site:
    """A response that runs, and what became of it."""

    def __init__(self, here: Bench) -> None:
        self.double = here.double
        self.stored: list[dict[str, Any]] = []
        self.num_abandoned = 0
        self.store_is_there = asyncio.Event()
        self.store_is_there.set()
        response = {
            "id": "resp_1", "object": "response", "created_at": 0, "status": "in_progress",
            "output": [], "error": None, "incomplete_details": None, "previous_response_id": None,
            "usage": None, "store": True,
        }  # fmt: skip
        self.run = ResponseRun(
            ResponseEvents(response),
            here.begin(),
            tenant_id=uuid4(),
            earlier=(),
            own=(),
            on_end=self._on_end,
            on_abandon=self._on_abandon,
        )

    async def _on_end(self, run: ResponseRun) -> None:
        await self.store_is_there.wait()
        self.stored.append(orjson.loads(run.record().body))

    def _on_abandon(self, run: ResponseRun) -> None:
        self.num_abandoned += 1


@asynccontextmanager
async def site(model_dir: Path, play: Play, **options: Any) -> AsyncIterator[Site]:
    async with bench(model_dir, **options) as here:
        here.double.script = lambda prompt: play
        made = Site(here)
        yield made
        made.run.close()
        await here.generations.drain(5)


def names(events: Sequence[Event]) -> list[str]:
    return [event.type for event in events]


ENDLESS = Play(text="x" * 2000, interval_s=0.001)


async def test_what_its_reader_has_not_read_waits_for_it(model_dir: Path) -> None:
    async with site(model_dir, ENDLESS) as here:
        run = here.run
        reading = run.events()
        assert names(await anext(reading)) == ["response.created", "response.in_progress"]
        assert not run.has_begun
        beat = run.heartbeat()
        assert beat is not None
        assert beat.type == "response.in_progress"
        await anext(reading)
        assert run.has_begun
        ending = asyncio.create_task(run.end())
        await until(lambda: run._is_ending)
        assert run.heartbeat() is None, "it would pass what waits"
        await ending
        (stored,) = here.stored
        assert stored["status"] == run.status == "cancelled"
        assert not run.has_failed
        left = [name async for events in reading for name in names(events)]
        assert left[-2:] == ["response.incomplete", ""]
        assert len(here.stored) == 1


async def test_whoever_ends_it_after_its_reader_has_left_stores_it(model_dir: Path) -> None:
    async with site(model_dir, ENDLESS) as here:
        reading = here.run.events()
        for _ in range(3):
            await anext(reading)
        await reading.aclose()
        assert not here.stored
        await here.run.end()
        (stored,) = here.stored
        assert stored["status"] == "cancelled"
        assert stored["output"][0]["content"][0]["text"].startswith("x")
        await here.run.end()
        assert len(here.stored) == 1


async def test_whoever_ends_it_waits_for_whoever_stores_it(model_dir: Path) -> None:
    async with site(model_dir, ENDLESS) as here:
        reading = here.run.events()
        await anext(reading)
        await reading.aclose()
        here.store_is_there.clear()
        here.run.close()  # whose owner gives it up in a task
        tasks = [asyncio.create_task(work) for work in (here.run.give_up(), here.run.end())]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        here.store_is_there.set()
        await asyncio.gather(*tasks)
        assert len(here.stored) == 1


async def test_one_that_nobody_reads_any_more_is_cancelled(model_dir: Path) -> None:
    async with site(model_dir, ENDLESS, max_unread_tokens=5, stall_timeout_s=0.1) as here:
        reading = here.run.events()
        for _ in range(3):
            await anext(reading)
        await until(lambda: here.double.aborted)
        async for _ in reading:
            pass
        assert [one["status"] for one in here.stored] == ["cancelled"]
        assert here.run.failure is None


async def test_it_is_abandoned_once(model_dir: Path) -> None:
    async with site(model_dir, ENDLESS) as here:
        reading = here.run.events()
        await anext(reading)
        await reading.aclose()
        for _ in range(2):
            here.run.close()
        assert here.num_abandoned == 1


@pytest.mark.parametrize(
    ("play", "status"),
    [(Play(text="done"), "completed"), (Play(error="it broke", error_code="internal"), "failed")],
)
async def test_one_that_has_ended_is_not_abandoned(
    model_dir: Path, play: Play, status: str
) -> None:
    async with site(model_dir, play) as here:
        async for _ in here.run.events():
            pass
        here.run.close()
        assert here.num_abandoned == 0
        assert [one["status"] for one in here.stored] == [here.run.status] == [status]
        assert here.run.has_failed == (status == "failed")
