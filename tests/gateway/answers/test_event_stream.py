"""The event stream against ASGI itself: no server, so that every moment can be chosen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from sse_starlette.sse import EventSourceResponse
from starlette.datastructures import Headers
from starlette.types import Message

from gateway import context
from gateway.answers.chat import ChatEncoder
from gateway.answers.chunks import Head
from gateway.answers.event_stream import EventStream, FollowingEventStream
from gateway.errors import EngineUnavailable
from gateway.generation.answer import Answer, Delivery
from gateway.generation.delta import Delta
from gateway.generation.generation import Generation, usage_of
from gateway.schemas.common import Usage
from gateway.streams.archive import ArchivedReader
from tests.gateway.loop_clock import LoopClock
from tests.gateway.serving import until

pytestmark = pytest.mark.asyncio


@dataclass
class ScriptedGeneration:
    """What ``EventStream`` needs of a ``Generation``."""

    script: list[Delta | float | Exception]
    closed: int = 0
    left: bool = False

    async def deltas(self, sink: Delivery | None) -> AsyncGenerator[Delta, None]:
        """Through ``sink`` as long as it is free, as a ``Generation`` does it."""
        assert sink is not None
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif step.finish_reason is None and sink.is_free:
                    sink.put(step)
                else:
                    yield step
        finally:
            self.left = True

    async def usage(self) -> Usage:
        return usage_of(prompt_tokens=1, cached_tokens=0, completion_tokens=1)

    def close(self) -> None:
        self.closed += 1


@dataclass
class Connection:
    """Both ends of ASGI. ``stall_after``: the client reads so many chunks, then leaves amid one."""

    stall_after: int | None = None
    leave_after: int | None = None
    sent: list[bytes] = field(default_factory=list)
    ended: bool = False
    left: asyncio.Event = field(default_factory=asyncio.Event)

    head: Message | None = None

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            assert not self.sent
            self.head = message
            return
        if self.stall_after is not None and len(self.sent) >= self.stall_after:
            self.left.set()
            await asyncio.sleep(60)
        self.sent.append(message["body"])
        self.ended = not message["more_body"]
        if self.leave_after is not None and len(self.sent) >= self.leave_after:
            self.left.set()
        await asyncio.sleep(0)

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    def scope(self, spec: str) -> dict[str, Any]:
        scope: dict[str, Any] = {
            "type": "http",
            "method": "POST",
            "asgi": {"version": "3.0", "spec_version": spec},
        }
        context.attach(scope, self.send)
        return scope


@pytest.fixture(params=["2.3", "2.4"])
def spec(request: pytest.FixtureRequest) -> str:
    return cast(str, request.param)


async def run(
    generation: ScriptedGeneration,
    connection: Connection,
    spec: str,
    *,
    heartbeat_s: float = 60.0,
) -> bytes:
    chunks = ChatEncoder(Head("c", 1, "m"))
    response = EventStream(Answer(cast(Generation, generation), chunks), heartbeat_s=heartbeat_s)
    async with asyncio.timeout(30):
        await response(connection.scope(spec), connection.receive, connection.send)
    assert generation.closed == 1
    await asyncio.sleep(0)
    assert "outlet" not in {task.get_name() for task in asyncio.all_tasks()}, "it still sends"
    return b"".join(connection.sent)


STOP = Delta(0, "", (), "stop")


async def test_a_whole_stream(spec: str) -> None:
    generation, connection = ScriptedGeneration([Delta(0, "a"), Delta(0, "b"), STOP]), Connection()
    body = await run(generation, connection, spec)
    assert connection.ended
    assert connection.head is not None
    assert connection.head["status"] == 200
    assert dict(connection.head["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"\nid:" not in body
    assert b"retry:" not in body
    assert b"\n:" not in body


async def test_headers_are_those_of_the_library() -> None:
    response = FollowingEventStream(ArchivedReader("stream_1", [], 0), heartbeat_s=9)
    ours = response.raw_headers
    EventSourceResponse.init_headers(response, Headers(raw=ours[:-1]))
    assert response.raw_headers == ours
    assert dict(ours)[b"x-sluice-stream-id"] == b"stream_1"


async def test_an_error_is_the_last_event(spec: str) -> None:
    generation = ScriptedGeneration([Delta(0, "a"), EngineUnavailable("gone")])
    body = await run(generation, Connection(), spec)
    assert b"[DONE]" not in body
    assert body.split(b"\n\n")[-2].startswith(b'data: {"error":{')


async def test_leaving_while_the_engine_works(spec: str) -> None:
    generation = ScriptedGeneration([Delta(0, "a"), 60.0, STOP])
    connection = Connection(leave_after=2)
    await run(generation, connection, spec)
    assert generation.left
    assert not connection.ended


async def test_leaving_before_anything_was_sent(spec: str) -> None:
    connection = Connection()
    connection.left.set()
    generation = ScriptedGeneration([60.0])
    await run(generation, connection, spec)
    assert not connection.ended


async def test_leaving_while_a_chunk_is_being_sent(spec: str) -> None:
    generation = ScriptedGeneration([Delta(0, "a"), Delta(0, "b"), STOP])
    connection = Connection(stall_after=1)
    await run(generation, connection, spec)
    assert generation.left


async def test_leaving_while_a_heartbeat_is_being_sent(spec: str) -> None:
    generation = ScriptedGeneration([Delta(0, "a"), 60.0])
    connection = Connection(stall_after=2)
    await run(generation, connection, spec, heartbeat_s=0.05)
    assert generation.left


async def test_heartbeats_only_in_silence(spec: str) -> None:
    steps: list[Delta | float | Exception] = []
    for _ in range(10):
        steps += [Delta(0, "a"), 0.02]
    generation = ScriptedGeneration([*steps, 1.3, STOP])
    body = await run(generation, Connection(), spec, heartbeat_s=0.5)
    beats = [i for i, e in enumerate(body.split(b"\n\n")) if b'"delta":{"content":""}' in e]
    assert 1 <= len(beats) <= 3
    assert min(beats) > 10


async def test_whatever_is_sent_puts_the_next_heartbeat_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delta that is put, one that is yielded, and a heartbeat."""
    clock, connection = LoopClock(monkeypatch), Connection()
    steps: asyncio.Queue[Delta] = asyncio.Queue()

    class Told(ScriptedGeneration):
        async def deltas(self, sink: Delivery | None) -> AsyncGenerator[Delta, None]:
            assert sink is not None
            while True:
                step = await steps.get()
                if step.content == "put":
                    sink.put(step)
                else:
                    yield step

    def num_beats() -> int:
        return b"".join(connection.sent).count(b'"delta":{"content":""}')

    running = asyncio.create_task(run(Told([]), connection, "2.4", heartbeat_s=2.0))
    await clock.go_on(0.0)
    await clock.go_on(1.0)
    for content in ("put", "yielded"):
        steps.put_nowait(Delta(0, content))
        await clock.go_on(0.0)
        await clock.go_on(1.8)
        assert num_beats() == 0
    await clock.go_on(0.3)
    assert num_beats() == 1
    await clock.go_on(1.8)
    assert num_beats() == 1
    await clock.go_on(0.3)
    assert num_beats() == 2
    connection.left.set()
    await running
    await clock.go_on(100.0)
    assert num_beats() == 2, "nothing is sent once it is over"


async def test_nothing_passes_a_chunk_that_waits_for_its_turn() -> None:
    """A slow reader has taken what was put at last; what was yielded meanwhile is next."""
    stalled, go_on = asyncio.Event(), asyncio.Event()
    sinks: list[Delivery] = []

    class Slow(Connection):
        async def send(self, message: Message) -> None:
            if b'"put"' in message.get("body", b""):
                stalled.set()
                await go_on.wait()
            await super().send(message)

    class Yielding(ScriptedGeneration):
        async def deltas(self, sink: Delivery | None) -> AsyncGenerator[Delta, None]:
            assert sink is not None
            sinks.append(sink)
            await asyncio.sleep(0)
            sink.put(Delta(0, "put"))
            yield Delta(0, "yielded")
            yield STOP

    connection = Slow()
    running = asyncio.create_task(run(Yielding([]), connection, "2.4"))
    await stalled.wait()
    await asyncio.sleep(0)
    go_on.set()
    while b"yielded" not in b"".join(connection.sent):
        assert not sinks[0].is_free
        await asyncio.sleep(0)
    body = await running
    assert body.index(b'"put"') < body.index(b"yielded")


async def test_what_was_cancelled_ends_in_a_word_that_clients_know(spec: str) -> None:
    generation = ScriptedGeneration([Delta(0, "a"), Delta(0, "", (), "cancelled")])
    body = await run(generation, Connection(), spec)
    assert b'"finish_reason":"stop"' in body
    assert body.endswith(b"data: [DONE]\n\n")


class SlowlyBeating(ArchivedReader):
    """Of a stream that says nothing."""

    def __init__(self) -> None:
        super().__init__("stream_1", [], 0)
        self.num_begun = self.num_cancelled = 0
        self.heard = asyncio.Event()
        self.silent = asyncio.Event()

    async def __anext__(self) -> Sequence[bytes]:
        await self.silent.wait()
        raise StopAsyncIteration

    async def beat(self) -> None:
        self.num_begun += 1
        try:
            await self.heard.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise


async def test_a_stream_that_is_followed_is_asked_for_one_beat_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, connection, reader = LoopClock(monkeypatch), Connection(), SlowlyBeating()
    response = FollowingEventStream(reader, heartbeat_s=10.0)
    running = asyncio.create_task(
        response(connection.scope("2.4"), connection.receive, connection.send)
    )
    await clock.go_on(0.0)
    for _ in range(3):
        await clock.go_on(10.5)
    assert reader.num_begun == 1, "the worker that has it does not answer"
    reader.heard.set()
    await clock.go_on(0.0)
    reader.heard.clear()
    await clock.go_on(10.5)
    assert (reader.num_begun, reader.num_cancelled) == (2, 0)
    reader.silent.set()
    await running
    await asyncio.sleep(0)
    assert reader.num_cancelled == 1
    assert connection.ended


async def test_cancelling_the_request_closes_the_generation(spec: str) -> None:
    generation, connection = ScriptedGeneration([Delta(0, "a"), 60.0]), Connection()
    task = asyncio.create_task(run(generation, connection, spec))
    await until(lambda: len(connection.sent) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert generation.closed == 1
    assert generation.left
