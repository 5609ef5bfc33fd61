from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateway.disconnect import until_disconnect

pytestmark = pytest.mark.asyncio


class Client:
    """An ASGI ``receive`` whose client leaves when told."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_the_result_of_the_work() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert await until_disconnect(Client().receive, work()) == 7


async def test_an_error_of_the_work() -> None:
    async def work() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await until_disconnect(Client().receive, work())


async def test_work_is_cancelled_and_has_ended_when_the_client_leaves() -> None:
    client, ended = Client(), False

    async def work() -> None:
        nonlocal ended
        try:
            client.left.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(ClientDisconnect):
        await until_disconnect(client.receive, work())
    assert ended


async def test_cancelling_cancels_the_work() -> None:
    started, cancelled = asyncio.Event(), False

    async def work() -> None:
        nonlocal cancelled
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled = True
            raise

    task = asyncio.create_task(until_disconnect(Client().receive, work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled
    assert len(asyncio.all_tasks()) == 1


async def test_messages_before_the_end_are_passed_over() -> None:
    messages: list[Message] = [{"type": "http.request"}, {"type": "http.disconnect"}]

    async def receive() -> Message:
        return messages.pop(0)

    with pytest.raises(ClientDisconnect):
        await until_disconnect(receive, asyncio.sleep(60))
