"""Several clients on one engine process, over the real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from engine.client.attached import AttachedEngine
from engine.client.client import EngineClient
from engine.client.transport import private_socket_path
from engine.config import EngineConfig
from engine.errors import EngineDead
from engine.messages import GenerateRequest
from engine.sampling_params import SamplingParams
from tests.engine.stand_in import StandInProcess, Trap, expected_tokens

CONFIG = EngineConfig(model="ok", max_num_seqs=8)


@contextlib.asynccontextmanager
async def engine_at(path: Path) -> AsyncIterator[EngineClient]:
    owner = EngineClient(CONFIG, transport=partial(StandInProcess, shared_address=f"ipc://{path}"))
    await owner.start()
    try:
        yield owner
    finally:
        await owner.close()


@contextlib.asynccontextmanager
async def attached_to(path: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(CONFIG, transport=partial(AttachedEngine, address=f"ipc://{path}"))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture
async def path() -> AsyncIterator[Path]:
    folder, path = private_socket_path("shared")
    yield path
    shutil.rmtree(folder)


def request(name: str, first: int, num_tokens: int) -> GenerateRequest:
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=[first, first + 1],
        params=SamplingParams(max_tokens=num_tokens),
    )


async def tokens(client: EngineClient, name: str, first: int, num_tokens: int) -> list[int]:
    stream = client.submit(request(name, first, num_tokens))
    return [token async for output in stream for token in output.new_token_ids]


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await done():  # noqa: ASYNC110 - what another process does sets no event here
            await asyncio.sleep(0.01)


async def until_idle(owner: EngineClient) -> None:
    async def idle() -> bool:
        stats = await owner.fetch_stats()
        return stats.num_running + stats.num_waiting == 0

    await until(idle)


@pytest.mark.asyncio
async def test_clients_share_an_engine_and_hear_only_their_own(path: Path) -> None:
    async with engine_at(path), attached_to(path) as one, attached_to(path) as two:
        assert one.info == two.info
        answers = await asyncio.gather(
            *(tokens(one, f"one {i}", 10 * i + 1, 50) for i in range(5)),
            *(tokens(two, f"two {i}", 1000 * i + 1, 50) for i in range(5)),
        )
        assert answers[:5] == [expected_tokens([10 * i + 1, 10 * i + 2], 50) for i in range(5)]
        assert answers[5:] == [expected_tokens([1000 * i + 1, 1000 * i + 2], 50) for i in range(5)]


@pytest.mark.asyncio
async def test_a_client_may_come_before_the_engine(path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        attaching = asyncio.create_task(stack.enter_async_context(attached_to(path)))
        await asyncio.sleep(0.2)
        assert not attaching.done()
        await stack.enter_async_context(engine_at(path))
        client = await asyncio.wait_for(attaching, 30)
        assert await tokens(client, "r", 5, 3) == expected_tokens([5, 6], 3)


@pytest.mark.asyncio
async def test_a_client_that_leaves_takes_its_requests_along(path: Path) -> None:
    async with engine_at(path) as owner, attached_to(path) as stays:
        async with attached_to(path) as leaves:
            stream = leaves.submit(request("left", 1, 1_000_000))
            await anext(stream)
            going_on = asyncio.create_task(tokens(stays, "stays", 1, 200))
        assert await going_on == expected_tokens([1, 2], 200)
        await until_idle(owner)


@pytest.mark.asyncio
async def test_a_client_that_leaves_takes_along_what_waits_for_its_word(path: Path) -> None:
    async with engine_at(path) as owner:

        def parked(number: int) -> Callable[[], Awaitable[bool]]:
            async def done() -> bool:
                return (await owner.fetch_stats()).num_parked == number

            return done

        async with attached_to(path) as leaves:
            leaves.submit(request("unread", 1, 1_000_000))
            await until(parked(1))
        await until(parked(0))  # though the engine has nothing to tell it


@pytest.mark.asyncio
async def test_clients_outlive_the_death_of_the_engine(path: Path) -> None:
    async with engine_at(path) as owner, attached_to(path) as client:
        stream = client.submit(request("r", 1, 1_000_000))
        await anext(stream)
        os.kill(owner.info.pid, signal.SIGKILL)
        with pytest.raises(EngineDead, match="connection"):
            async for _ in stream:
                pass

        async def ready() -> bool:
            return client.ready

        await until(ready)
        assert await tokens(client, "again", 5, 3) == expected_tokens([5, 6], 3)


@pytest.mark.asyncio
async def test_an_engine_that_raises_ends_the_streams_of_all(path: Path) -> None:
    async with engine_at(path), attached_to(path) as one, attached_to(path) as two:
        stream = one.submit(request("one", 1, 1_000_000))
        await anext(stream)
        with pytest.raises(EngineDead):
            await tokens(two, "two", Trap.RAISE, 5)
        with pytest.raises(EngineDead):
            async for _ in stream:
                pass


@pytest.mark.asyncio
async def test_aborts_and_stats_work_from_every_client(path: Path) -> None:
    async with engine_at(path) as owner, attached_to(path) as client:
        stream = client.submit(request("r", 1, 1_000_000))
        await anext(stream)
        assert (await client.fetch_stats()).num_running == 1
        await client.abort("r")
        assert stream.finish_reason == "abort"
        await until_idle(owner)
