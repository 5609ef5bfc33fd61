"""One WebSocket of ``/v1/chat`` after its handshake; the protocol is in ``schemas.ws``."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from starlette.websockets import WebSocket

from gateway.admission.admission import Admission
from gateway.admission.client_notes import client_notes
from gateway.admission.request import GenerationRequest
from gateway.answers.turns import TurnEvents
from gateway.errors import (
    ApiError,
    Draining,
    Gone,
    InvalidRequestError,
    RateLimited,
    to_api_error,
)
from gateway.generation.answer import Answer
from gateway.generation.generation import Generation, Generations
from gateway.schemas import ws
from gateway.sockets.outbox import SocketChannel
from gateway.sockets.session import Shared, SocketSession
from gateway.sockets.turn import Turn, is_last
from gateway.streams.log import StreamReader
from gateway.streams.streams import Streams
from gateway.transport import bodies, body_shape
from tenants.request_ids import new_request_id
from tenants.types import Principal

logger = logging.getLogger(__name__)

_TURN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_decoder: msgspec.json.Decoder[ws.ClientMessage] = msgspec.json.Decoder(ws.ClientMessage)


class ChatSession(SocketSession):
    """Runs the turns of one WebSocket, several at once."""

    def __init__(
        self,
        socket: WebSocket,
        api_key: str | None,
        shared: Shared,
        admission: Admission,
        generations: Generations,
        streams: Streams,
    ) -> None:
        super().__init__(socket, api_key, shared)
        self._admission = admission
        self._generations = generations
        self._streams = streams
        self._turns: dict[str, Turn] = {}

    # -- reading

    async def _read(self) -> None:
        principal, models = await self._admitted("chat"), self._admission.models
        names = models.names(principal, generating=True)
        await self._send(
            None,
            ws.Ready(
                models=list(names),
                image_models=[name for name in names if models.find(principal, name).base.vision],
                max_model_len=models.default.max_model_len,
                max_turns=self._config.ws_max_turns,
                max_message_bytes=self._config.ws_max_message_bytes,
            ),
        )
        while True:
            await self._handle(await self._receive())

    async def _handle(self, text: str) -> None:
        try:
            await body_shape.check(text.encode())
            message = _decode(text)
            match message:
                case ws.Chat() | ws.Resume():
                    self._begin(message, await self._authenticate())
                case ws.Cancel():
                    if (turn := self._turns.get(message.id)) is not None:
                        turn.cancel()
                case ws.Ping():
                    await self._send(None, ws.Pong(message.data))
                case ws.Auth():
                    raise InvalidRequestError("This socket is authenticated already.")
        except ApiError as exc:
            turn_id = _turn_id_in(text)
            if turn_id is None or turn_id in self._turns:
                await self._send_error(exc)
            else:  # In no turn's queue: this turn never began, and there may be any number of them.
                await self._outbox.put(None, _error_of(TurnEvents(turn_id), exc))

    # -- turns

    def _begin(self, message: ws.Chat | ws.Resume, principal: Principal) -> None:
        if _TURN_ID.fullmatch(message.id) is None:
            raise InvalidRequestError(
                "Must be 1 to 64 characters of A-Z, a-z, 0-9 and _ . : -", param="id"
            )
        if message.id in self._turns:
            raise InvalidRequestError(
                f"The turn {message.id!r} is still running.", param="id", code="duplicate_turn_id"
            )
        if len(self._turns) >= self._config.ws_max_turns:
            raise RateLimited(
                f"This socket runs {len(self._turns)} turns already, the most there may be.",
                code="too_many_turns",
            )
        if self._draining:
            raise Draining("The server is shutting down.")
        turn = Turn(message)
        self._turns[message.id] = turn
        self._begin_task(self._run_turn(turn, principal), name=f"turn {message.id}")

    async def _run_turn(self, turn: Turn, principal: Principal) -> None:
        turn_id = turn.message.id
        try:
            last = await self._answer(turn, principal)
        except Exception as exc:  # Whatever it is, the client must learn of it.
            last = _error_of(turn.encoder, to_api_error(exc))
        finally:
            # Before the last frame is sent: a client that has read it may use the id again.
            del self._turns[turn_id]
        await self._outbox.put(turn_id, last)

    async def _answer(self, turn: Turn, principal: Principal) -> bytes:
        """Send all frames of the turn but the last one, and return that."""
        message = turn.message
        if isinstance(message, ws.Resume):
            return await self._relay(turn, await self._resume(message, principal))
        asked = GenerationRequest(
            id=new_request_id(), principal=principal, model=message.model, fields=message
        )
        admitted = await self._admission.admit(asked)
        if notes := client_notes(message):
            fields = {"request_id": str(admitted.id), **notes}
            logger.info("turn", extra={"fields": fields})
        generation = self._generations.begin(admitted)
        turn.on_cancel(generation.end)
        answer = Answer(generation, turn.encoder)
        if message.resumable:
            stream_id = self._streams.new_id()
            _begin(turn.encoder, generation, stream_id=stream_id)
            reader = await self._streams.open(
                stream_id, answer, tenant_id=principal.tenant.id, kind="ws"
            )
            return await self._relay(turn, reader)
        _begin(turn.encoder, generation)
        try:
            channel = SocketChannel(self._outbox, message.id)
            async with aclosing(_frames(answer, channel)) as frames:
                return await self._send_all_but_last(message.id, frames)
        finally:
            answer.close()

    async def _resume(self, message: ws.Resume, principal: Principal) -> StreamReader:
        return await self._streams.follow(
            message.stream_id, principal.tenant.id, kind="ws", after=message.last_seq + 1
        )

    async def _relay(self, turn: Turn, reader: StreamReader) -> bytes:
        async def frames() -> AsyncGenerator[bytes, None]:
            async for some in reader:
                if _turn_of(some[0]) != turn.message.id:
                    raise InvalidRequestError("Must be the id of the stream's turn.", param="id")
                reader.divert(self._take)
                for frame in some:
                    yield frame

        turn.on_cancel(reader.stop)
        try:
            async with aclosing(frames()) as running:
                return await self._send_all_but_last(turn.message.id, running)
        finally:
            reader.close()

    def _take(self, frame: bytes, now: float) -> bool:
        """Send a frame of a stream at once, unless it is its last."""
        return not is_last(frame) and self._outbox.offer(frame, now)

    async def _send_all_but_last(self, turn_id: str, frames: AsyncGenerator[bytes, None]) -> bytes:
        async for frame in frames:
            if is_last(frame):
                return frame
            await self._outbox.put(turn_id, frame)
        raise Gone("The turn has ended, and you have read all of it.", code="stream_ended")

    # -- sending

    async def _send(self, turn: str | None, message: msgspec.Struct) -> None:
        await self._outbox.put(turn, msgspec.json.encode(message))

    def _error_frame(self, error: ApiError) -> bytes:
        event = ws.SocketError(
            status=error.status,
            retryable=error.retryable,
            error=error.object(),
            headers=error.limit_headers() or msgspec.UNSET,
        )
        return msgspec.json.encode(event)


def _begin(encoder: TurnEvents, generation: Generation, *, stream_id: str | None = None) -> None:
    admitted = generation.admitted
    encoder.begin(
        request_id=str(admitted.id),
        model=admitted.model,
        created=generation.created,
        prompt_tokens=admitted.num_prompt_tokens,
        stream_id=stream_id,
        ignored=admitted.ignored,
    )


async def _frames(answer: Answer, channel: SocketChannel) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer.events(channel)) as running:
        async for events in running:
            for event in events:
                yield event.data


def _error_of(encoder: TurnEvents, error: ApiError) -> bytes:
    return encoder.failure(error)[-1].data


def _decode(text: str) -> ws.ClientMessage:
    return bodies.decode(_decoder, text.encode(), what="message")


def _turn_id_in(text: str) -> str | None:
    """The turn that a refused message would have begun; None if that cannot be known."""
    try:
        message = msgspec.json.decode(text, type=_Envelope)
    except (msgspec.DecodeError, RecursionError):
        return None
    is_turn = message.type in ("chat", "resume") and _TURN_ID.fullmatch(message.id)
    return message.id if is_turn else None


def _turn_of(frame: bytes) -> str:
    return msgspec.json.decode(frame, type=_Envelope).id


class _Envelope(msgspec.Struct):
    type: str
    id: str
