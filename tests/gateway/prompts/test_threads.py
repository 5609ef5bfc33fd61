from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest
import pytest_asyncio

from gateway.prompts.threads import HUGE_CHARS, LONG_CHARS, NUM_THREADS, PromptThreads

pytestmark = pytest.mark.asyncio


class Busy:
    """Work that takes until it is let go."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began: asyncio.Queue[str] = asyncio.Queue()

    def work(self, name: str) -> Callable[[], str]:
        loop = asyncio.get_running_loop()

        def run() -> str:
            loop.call_soon_threadsafe(self.began.put_nowait, name)
            assert self.gate.wait(10)
            return name

        return run

    async def have_begun(self, *names: str) -> None:
        """These and no others since the last time."""
        async with asyncio.timeout(5):
            assert [await self.began.get() for _ in names] == list(names)
        assert self.began.empty()


@pytest_asyncio.fixture
async def busy() -> AsyncIterator[Busy]:
    made = Busy()
    yield made
    made.gate.set()


@pytest.fixture
def threads() -> Iterator[PromptThreads]:
    made = PromptThreads()
    yield made
    made.close()


async def test_one_tenants_long_texts_leave_room_for_another(
    threads: PromptThreads, busy: Busy
) -> None:
    flooding, other = uuid4(), uuid4()
    flood = [
        asyncio.create_task(threads.run(busy.work(name), tenant=flooding, size=LONG_CHARS))
        for name in "abc"
    ]
    await busy.have_begun("a")
    assert await threads.run(lambda: "b", tenant=other, size=LONG_CHARS) == "b"
    busy.gate.set()
    assert await asyncio.gather(*flood) == ["a", "b", "c"]


async def test_one_tenants_short_texts_do_not_queue_up_before_anothers(
    threads: PromptThreads, busy: Busy
) -> None:
    flooding, order = uuid4(), list[str]()

    async def short(tenant: UUID, name: str) -> None:
        await threads.run(lambda: order.append(name), tenant=tenant, size=0)

    held = [
        asyncio.create_task(threads.run(busy.work(str(i)), tenant=uuid4(), size=0))
        for i in range(NUM_THREADS)
    ]
    await busy.have_begun(*map(str, range(NUM_THREADS)))
    flood = [asyncio.create_task(short(flooding, f"flood {i}")) for i in range(20)]
    await asyncio.sleep(0)
    other = asyncio.create_task(short(uuid4(), "other"))
    await asyncio.sleep(0)
    busy.gate.set()
    await asyncio.gather(*held, *flood, other)
    assert order.index("other") <= NUM_THREADS


async def test_short_texts_wait_for_no_long_ones(threads: PromptThreads, busy: Busy) -> None:
    long = [
        asyncio.create_task(threads.run(busy.work(str(i)), tenant=uuid4(), size=LONG_CHARS))
        for i in range(NUM_THREADS + 1)
    ]
    await busy.have_begun(*map(str, range(NUM_THREADS)))
    assert await threads.run(lambda: "short", tenant=uuid4(), size=LONG_CHARS - 1) == "short"
    busy.gate.set()
    await asyncio.gather(*long)


async def test_short_texts_go_on_while_the_loop_is_busy(threads: PromptThreads) -> None:
    """A thread takes the next one by itself, also of the same tenant."""
    tenant, done = uuid4(), list[int]()
    work = [
        asyncio.create_task(threads.run(lambda i=i: done.append(i), tenant=tenant, size=0))  # type: ignore[misc]
        for i in range(20)
    ]
    await asyncio.sleep(0)  # They begin, and nothing else gets its turn until all are done.
    deadline = time.monotonic() + 10
    while len(done) < 20 and time.monotonic() < deadline:
        time.sleep(0.001)  # noqa: ASYNC251 (the loop is to be busy)
    assert sorted(done) == list(range(20))
    await asyncio.gather(*work)


async def test_who_leaves_before_its_turn_has_no_work_done(
    threads: PromptThreads, busy: Busy
) -> None:
    tenant = uuid4()
    held = [
        asyncio.create_task(threads.run(busy.work(str(i)), tenant=tenant, size=0))
        for i in range(NUM_THREADS)
    ]
    await busy.have_begun(*map(str, range(NUM_THREADS)))
    left = asyncio.create_task(threads.run(busy.work("left"), tenant=tenant, size=0))
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    busy.gate.set()
    await asyncio.gather(*held, threads.run(lambda: None, tenant=tenant, size=0))
    assert busy.began.empty()


async def test_who_leaves_keeps_its_turn_as_long_as_its_thread(
    threads: PromptThreads, busy: Busy
) -> None:
    tenant = uuid4()
    left = asyncio.create_task(threads.run(busy.work("left"), tenant=tenant, size=LONG_CHARS))
    await busy.have_begun("left")
    waited = asyncio.create_task(threads.run(busy.work("waited"), tenant=tenant, size=LONG_CHARS))
    back = asyncio.create_task(threads.run(busy.work("back"), tenant=tenant, size=LONG_CHARS))
    await asyncio.sleep(0.02)
    for task in (left, waited):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.sleep(0.02)
    assert busy.began.empty()
    busy.gate.set()
    assert await back == "back"
    await busy.have_begun("back")  # what nobody waits for is not done


@pytest.mark.parametrize("size", [0, LONG_CHARS])
async def test_errors_for_a_client_that_left_are_nobodys(
    threads: PromptThreads, busy: Busy, size: int
) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))

    wait = busy.work("fail")

    def fail() -> None:
        wait()
        raise ValueError("no")

    tenant = uuid4()
    left = asyncio.create_task(threads.run(fail, tenant=tenant, size=size))
    await busy.have_begun("fail")
    left.cancel()
    await asyncio.wait([left])
    del left
    busy.gate.set()
    assert await threads.run(lambda: "next", tenant=tenant, size=size) == "next"
    gc.collect()
    assert not unheard


@pytest.mark.parametrize("size", [0, LONG_CHARS])
async def test_errors_are_the_callers(threads: PromptThreads, size: int) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.run(fail, tenant=uuid4(), size=size)


async def test_what_a_huge_text_took_is_given_back(threads: PromptThreads) -> None:
    """Of a tokenizer's memory, the C library would keep the most that was ever in use."""
    libc, process = ctypes.CDLL(None), psutil.Process()
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

    def work() -> int:
        blocks = [libc.malloc(60_000) for _ in range(2_000)]  # too small to be mapped one by one
        for block in blocks:
            ctypes.memset(block, 1, 60_000)
        last, peak = libc.malloc(60_000), process.memory_info().rss
        for block in blocks:
            libc.free(block)
        kept.append(last)  # without which the end of the heap would be given back at once
        return peak

    kept: list[int] = []
    peak = await threads.run(work, tenant=uuid4(), size=HUGE_CHARS)
    assert process.memory_info().rss < peak - 100_000_000
    libc.free(kept.pop())
