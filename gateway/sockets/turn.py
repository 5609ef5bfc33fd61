"""One turn of a WebSocket session: its frames in order, and what cancels it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec

from gateway.answers.chat import TurnFrames
from gateway.errors import ApiError
from gateway.generation.delta import Delta
from gateway.generation.generation import Generation
from gateway.generation.reading import Sink
from gateway.generation.text_events import Text, TextSink
from gateway.schemas import ws
from gateway.sockets.outbox import Outbox

_LAST = (b'{"type":"done"', b'{"type":"error"')


class Turn:
    """A turn that runs on a socket."""

    def __init__(self, message: ws.Chat | ws.Resume) -> None:
        self.message = message
        after_seq = message.last_seq if isinstance(message, ws.Resume) else -1
        self.frames = TurnFrames(message.id, after_seq=after_seq)
        self._stop: Callable[[], None] | None = None
        self._cancelled = False

    def on_cancel(self, stop: Callable[[], None]) -> None:
        """Have ``cancel`` call ``stop``, at once if it was called before."""
        self._stop = stop
        if self._cancelled:
            stop()

    def cancel(self) -> None:
        """Stop the turn because the client asked for it."""
        self._cancelled = True
        if self._stop is not None:
            self._stop()


def is_last(frame: bytes) -> bool:
    """Whether ``frame`` ends its turn. Frames begin with their type."""
    return frame.startswith(_LAST)


class TurnSink:
    """A ``Sink`` that sends the deltas of a turn as frames."""

    def __init__(self, frames: TurnFrames, outbox: Outbox) -> None:
        self._frames = frames
        self._outbox = outbox

    @property
    def is_free(self) -> bool:
        return self._outbox.is_free

    def put(self, delta: Delta) -> None:
        self._outbox.put_now(self._frames.delta(delta))

    def text_sink(self, index: int) -> TextSink | None:
        return _TextSink(self._frames, self._outbox)


class _TextSink:
    """A ``TextSink`` that sends content as frames."""

    __slots__ = ("_frames", "_outbox")

    def __init__(self, frames: TurnFrames, outbox: Outbox) -> None:
        self._frames = frames
        self._outbox = outbox

    def put(self, text: Text, now: float) -> bool:
        outbox = self._outbox
        # Asked first, because a frame that is made but not sent would leave a gap in the numbers.
        return outbox.is_free and outbox.offer(self._frames.text(text), now)


async def frames_of(
    generation: Generation,
    frames: TurnFrames,
    *,
    stream_id: str | None = None,
    sink: Sink | None = None,
) -> AsyncGenerator[bytes, None]:
    """All frames of a turn, except those that ``sink`` takes. Raises ``ApiError`` if the request
    fails."""
    admitted = generation.admitted
    yield frames.started(
        request_id=str(admitted.id),
        model=admitted.model,
        created=generation.created,
        prompt_tokens=admitted.num_prompt_tokens,
        stream_id=stream_id,
    )
    reason, compliance = "cancelled", None
    async with aclosing(generation.deltas(sink)) as deltas:
        async for delta in deltas:
            if delta.content or delta.tool_calls or delta.reasoning or delta.logprobs:
                yield frames.delta(delta)
            reason, compliance = delta.finish_reason or reason, delta.compliance
    usage = await generation.usage()
    yield frames.done(msgspec.convert(reason, ws.DoneReason), usage, compliance=compliance)


async def logged_frames_of(
    generation: Generation, frames: TurnFrames, *, stream_id: str, sink: Sink
) -> AsyncGenerator[list[bytes], None]:
    """As ``frames_of``, for the log of a resumable stream, which records an error as well."""
    try:
        body = frames_of(generation, frames, stream_id=stream_id, sink=sink)
        async with aclosing(body) as running:
            async for frame in running:
                yield [frame]
    except ApiError as exc:
        yield [frames.error(exc)]
