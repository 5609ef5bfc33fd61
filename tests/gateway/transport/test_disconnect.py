from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateway.transport.disconnect import until_disconnect
from gateway.transport.extensions import Disconnect

pytestmark = pytest.mark.asyncio
T = TypeVar("T")


class Client:
    """An ASGI server whose client leaves when told."""

    def __init__(self, *, says_so: bool) -> None:
        self._left = asyncio.Event()
        self.disconnect = Disconnect() if says_so else None

    def leave(self) -> None:
        self._left.set()
        if self.disconnect is not None:
            self.disconnect.leave()

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def until_left(self, work: Coroutine[Any, Any, T]) -> T:
        return await until_disconnect(self.receive, work, self.disconnect)


@pytest.fixture(params=[False, True], ids=["asked", "told"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(says_so=request.param)


async def test_the_result_of_the_work(client: Client) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await client.until_left(work()) == 7
    client.leave()  # concerns nobody any more
    await asyncio.sleep(0)


@pytest.mark.parametrize("error", [KeyError, TimeoutError])
async def test_an_error_of_the_work(client: Client, error: type[Exception]) -> None:
    async def work() -> None:
        raise error("x")

    with pytest.raises(error):
        await client.until_left(work())


async def test_work_is_cancelled_and_has_ended_when_the_client_leaves(client: Client) -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            client.leave()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(ClientDisconnect):
        await client.until_left(work())
    assert ended


async def test_work_for_a_client_that_has_left_is_not_begun() -> None:
    client, began = Client(says_so=True), False

    async def work() -> None:
        nonlocal began
        began = True

    client.leave()
    with pytest.raises(ClientDisconnect):
        await client.until_left(work())
    assert not began


async def test_cancelling_cancels_the_work(client: Client) -> None:
    started, cancelled = asyncio.Event(), False

    async def work() -> None:
        nonlocal cancelled
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled = True
            raise

    task = asyncio.create_task(client.until_left(work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled
    assert len(asyncio.all_tasks()) == 1


async def test_no_result_is_lost_when_cancelled_as_it_comes(client: Client) -> None:
    """It may hold quota, or a request that runs."""
    num_held = 0

    async def work() -> None:
        nonlocal num_held
        await result
        num_held += 1

    async def use() -> None:
        nonlocal num_held
        await client.until_left(work())
        num_held -= 1

    for turns in range(6):
        result = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        result.set_result(None)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert num_held == 0, turns


async def test_messages_before_the_end_are_passed_over() -> None:
    messages: list[Message] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientDisconnect):
        await until_disconnect(receive, asyncio.sleep(60))
