"""The processes that decode, with real ones."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import pytest_asyncio

from gateway.errors import Unavailable
from gateway.images import workers as module
from gateway.images.jobs import Look, Pixels, Prepare, Refused, Setup, Size
from gateway.images.workers import Workers
from tests.gateway.images.drawing import picture
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio
SETUP = Setup(max_bytes=2**24, max_pixels=30_000_000, timeout_s=5.0, memory_bytes=2**30)
ONE, OTHER = uuid4(), uuid4()
LOOK = Look(picture(), is_base64=False)


@pytest_asyncio.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers(2, SETUP)
    yield made
    pids = made.pids
    await made.close()
    assert not any(map(psutil.pid_exists, pids))
    with pytest.raises(Unavailable):
        await made.do(LOOK, ONE)


def slow(model: Path) -> Prepare:
    """Takes about a tenth of a second."""
    return Prepare(picture(2400, 2000, "JPEG"), False, str(model), "auto", "")


@pytest.mark.nightly
async def test_one_tenant_does_not_have_them_all(workers: Workers, model_dir: Path) -> None:
    await asyncio.gather(workers.do(LOOK, ONE), workers.do(LOOK, OTHER))
    ends: list[str] = []

    async def work(name: str, count: int) -> None:
        tenant = {"one": ONE, "other": OTHER}[name]
        for done in asyncio.as_completed(
            [workers.do(slow(model_dir), tenant) for _ in range(count)]
        ):
            assert isinstance(await done, Pixels)
            ends.append(name)

    many = asyncio.create_task(work("one", 8))
    await until(lambda: ends)
    await work("other", 1)
    assert ends.count("one") < 5
    await many
    assert len(workers.pids) == 2


async def test_a_worker_that_dies_loses_only_its_job(workers: Workers, model_dir: Path) -> None:
    await workers.start()
    (first,) = workers.pids
    job = asyncio.create_task(workers.do(slow(model_dir), ONE))
    await until(lambda: psutil.Process(first).cpu_times().user > 0.5 or job.done())
    os.kill(first, signal.SIGKILL)
    assert isinstance(await job, Pixels)
    assert await workers.do(LOOK, ONE) == Size(64, 48)
    assert first not in workers.pids


async def test_who_leaves_leaves_no_file(workers: Workers, model_dir: Path, tmp_path: Path) -> None:
    await workers.do(LOOK, ONE)
    file = tmp_path / "pixels"
    job = asyncio.create_task(
        workers.do(Prepare(LOOK.data, False, str(model_dir), "auto", str(file)), ONE)
    )
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: not workers._idle)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)
    os.kill(pid, signal.SIGCONT)
    assert await workers.do(LOOK, ONE) == Size(64, 48)
    assert not os.listdir(tmp_path)


async def test_limits_of_a_job(model_dir: Path) -> None:
    """Of processor time and of memory; either costs a process at most."""
    quick = Setup(max_bytes=2**24, max_pixels=30_000_000, timeout_s=0.04, memory_bytes=2**30)
    small = Setup(max_bytes=2**24, max_pixels=30_000_000, timeout_s=5.0, memory_bytes=2**24)
    for setup, says in ((quick, "too long"), (small, "memory")):
        made = Workers(1, setup)
        try:
            answer = await made.do(slow(model_dir), ONE)
            assert isinstance(answer, Refused)
            assert (answer.code, says in answer.message) == ("image_too_large", True), answer
            assert await made.do(LOOK, ONE) == Size(64, 48)
        finally:
            await made.close()


async def test_one_that_hangs_is_replaced(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WALL_PER_CPU", 0.1)
    await workers.start()
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    assert await workers.do(LOOK, ONE) == module._TOO_LONG
    assert time.monotonic() - began < 10
    monkeypatch.setattr(module, "_WALL_PER_CPU", 20.0)
    assert await workers.do(LOOK, ONE) == Size(64, 48)
    assert pid not in workers.pids
