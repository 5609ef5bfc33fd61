from __future__ import annotations

import asyncio
import gc

import pytest

from gateway.concurrency.owned_tasks import OwnedTasks

pytestmark = pytest.mark.asyncio


async def test_work_goes_on_when_its_caller_is_cancelled() -> None:
    tasks, gate, done = OwnedTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await gate.wait()
        done.set()

    async def call() -> None:
        await asyncio.shield(tasks.start(work(), name="work"))

    caller = asyncio.create_task(call())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    del caller
    gc.collect()
    assert len(tasks) == 1
    gate.set()
    assert await tasks.wait() == 0
    assert done.is_set()


async def test_waiting_ends_with_the_time_and_says_who_is_left() -> None:
    tasks, gate = OwnedTasks(), asyncio.Event()
    assert await tasks.wait(0) == 0, "nothing to wait for"

    async def wait_for_gate() -> None:
        await gate.wait()

    async def end() -> None:
        return

    left = tasks.start(wait_for_gate(), name="left")
    tasks.start(end(), name="short")
    assert await tasks.wait(0.01) == 1
    assert not left.done()
    gate.set()
    assert await tasks.wait(5) == 0


async def test_a_failure_is_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = OwnedTasks()

    async def fail() -> None:
        raise OSError("the disk is full")

    task = tasks.start(fail(), name="settle 7")
    assert await tasks.wait() == 0
    (record,) = caplog.records
    assert record.getMessage() == "settle 7 failed"
    assert record.exc_info is not None
    assert record.exc_info[1] is task.exception()


async def test_a_cancelled_task_is_not_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    tasks = OwnedTasks()
    task = tasks.start(asyncio.sleep(60), name="asleep")
    task.cancel()
    assert await tasks.wait() == 0
    assert not caplog.records
