"""The order of a response's events on their way to a reader that is slow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import cast

import pytest
from starlette.types import Message

from gateway import context
from gateway.answers.event_stream import EventStream
from gateway.generation.answer import Answer
from gateway.generation.delta import Delta
from gateway.generation.events import Channel, Event
from gateway.responses.events import ResponseEvents
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


class ScriptedAnswer:
    """What ``EventStream`` needs of an ``Answer``; says a word when it is told to."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self._events = ResponseEvents({"id": "resp_1", "status": "in_progress", "output": []})

    async def events(self, channel: Channel) -> AsyncGenerator[list[Event], None]:
        yield self._events.opening()
        await self.goes_on.wait()
        yield self._events.delta(Delta(0, "word"))

    def heartbeat(self) -> Event | None:
        return self._events.heartbeat()

    def close(self) -> None:
        pass


class SlowReader:
    """Takes what comes while it ``reads``."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.sent.append(message.get("body", b""))

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def test_no_heartbeat_passes_an_event_that_waits_for_the_reader() -> None:
    run, reader, loop = ScriptedAnswer(), SlowReader(), asyncio.get_running_loop()
    response = EventStream(cast(Answer, run), heartbeat_s=60.0)
    scope = {"type": "http", "method": "POST", "asgi": {"version": "3.0", "spec_version": "2.4"}}
    context.attach(scope, reader.send)
    sending = asyncio.create_task(response(scope, reader.receive, reader.send))
    await until(lambda: len(reader.sent) == 2)  # the head and the opening

    def beat() -> None:
        """In every turn of the loop: also in that in which the reader has caught up."""
        response._beat()
        if not sending.done():
            loop.call_soon(beat)

    reader.reads.clear()
    response._beat()
    run.goes_on.set()
    await asyncio.sleep(0.01)  # the word has its number, and waits for the heartbeat
    loop.call_soon(beat)
    reader.reads.set()
    async with asyncio.timeout(10):
        await sending
    said = b"".join(reader.sent)
    assert b'"delta":"word"' in said
    numbers = [int(number) for number in re.findall(rb'"sequence_number":(\d+)', said)]
    assert numbers == list(range(len(numbers)))
