"""One WebSocket of ``/v1/chat`` after its handshake; the protocol is in ``schemas.ws``.

reader ──► turn ──┐
     └───► turn ──┼──► outbox ──► writer
(one task each)   │
                  └── all in one task group: when reader or writer ends, everything ends
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NoReturn
from uuid import uuid4

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from engine.client import EngineClient
from engine.errors import EngineDead
from gateway import bodies
from gateway.admission import Admission
from gateway.assembler import TurnFrames
from gateway.config import ServerConfig
from gateway.context import RequestContext
from gateway.errors import (
    ApiError,
    Draining,
    Gone,
    InvalidApiKey,
    InvalidRequestError,
    RateLimited,
    to_api_error,
)
from gateway.generation import Generation, Generations
from gateway.outbox import Outbox
from gateway.schemas import ws
from gateway.streams import Reader, Streams, new_stream_id
from gateway.turn import Turn, frames_of, is_last, logged_frames_of
from tenants.access import require_scope, visible_models
from tenants.authenticator import Authenticator
from tenants.errors import AuthenticationFailed, ScopeMissing, TenantsError
from tenants.types import Principal

REFUSED_S = 0.3
"""How long turns of a key that was revoked may take for their last words."""
FLUSH_S = 1.0
"""How long the last frames may take before the socket is closed."""
_TURN_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_decoder: msgspec.json.Decoder[ws.ClientMessage] = msgspec.json.Decoder(ws.ClientMessage)


class _Close(Exception):
    """The session ends with this close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class ChatSession:
    """Serves one accepted WebSocket until either side ends it."""

    def __init__(
        self,
        socket: WebSocket,
        context: RequestContext,
        *,
        api_key: str | None,
        config: ServerConfig,
        model: str,
        engine: EngineClient,
        authenticator: Authenticator,
        admission: Admission,
        generations: Generations,
        streams: Streams,
    ) -> None:
        self._socket = socket
        self._context = context
        self._api_key = api_key
        self._config = config
        self._model = model
        self._engine = engine
        self._authenticator = authenticator
        self._admission = admission
        self._generations = generations
        self._streams = streams
        self._outbox = Outbox(max_bytes=config.ws_outbox_bytes)
        self._turns: dict[str, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_close = asyncio.Event()
        self._draining = False
        self._refused: ApiError | None = None

    @property
    def principal(self) -> Principal | None:
        """Who opened the socket; None until that is known."""
        return self._context.principal

    async def run(self) -> None:
        """Returns when the socket is closed; nothing of the session is left running."""
        writer = asyncio.create_task(self._outbox.run(self._socket.send_text), name="ws writer")
        reader = asyncio.create_task(self._read(), name="ws reader")
        drained = asyncio.create_task(self._may_close.wait(), name="ws drain")
        try:
            await asyncio.wait((writer, reader, drained), return_when=asyncio.FIRST_COMPLETED)
            if self._refused is not None and self._tasks:
                await asyncio.wait(self._tasks, timeout=REFUSED_S)  # their last frames
            await self._end_turns()
            await self._close(writer, reader)
        finally:
            tasks = [writer, reader, drained, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """The server goes down: no more turns; the socket closes after the last one."""
        self._draining = True
        self._close_if_drained()

    def refuse(self, error: ApiError) -> None:
        """The key is good no more: tell, and close with the error's code."""
        self._refused = error
        self._draining = True
        self._may_close.set()

    # -- ending

    def _close_if_drained(self) -> None:
        if self._draining and not self._tasks:
            self._may_close.set()

    def _turn_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._close_if_drained()

    async def _end_turns(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close(self, writer: asyncio.Task[None], reader: asyncio.Task[None]) -> None:
        if writer.done():
            error = writer.exception()
            if error is not None and not isinstance(error, WebSocketDisconnect):
                raise error
            return
        code, reason = 1012, "the server is shutting down"
        if self._refused is not None:
            await self._send_error(self._refused)
            code, reason = self._refused.close_code, self._refused.code or "refused"
        elif reader.done():
            error = reader.exception()
            if not isinstance(error, _Close):
                if error is not None and not isinstance(error, WebSocketDisconnect):
                    raise error
                return
            code, reason = error.code, error.reason
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._outbox.flush()
        except TimeoutError:
            pass
        if self._socket.application_state is WebSocketState.CONNECTED:
            await self._socket.close(code, reason)

    # -- reading

    async def _read(self) -> None:
        if self._api_key is None:
            self._api_key = await self._receive_key()
        try:
            principal = await self._authenticate(self._api_key)
        except ApiError as exc:
            await self._refuse(exc)
        self._context.principal = principal
        try:
            require_scope(principal.key, "chat")
        except ScopeMissing as exc:
            await self._refuse(to_api_error(exc))
        await self._send(
            None,
            ws.Ready(
                models=list(visible_models(principal.key, (self._model,))),
                max_model_len=self._max_model_len(),
                max_turns=self._config.ws_max_turns,
                max_message_bytes=self._config.ws_max_message_bytes,
            ),
        )
        while True:
            await self._handle(await self._receive(), self._api_key)

    async def _receive_key(self) -> str:
        try:
            async with asyncio.timeout(self._config.ws_auth_timeout_s):
                message = _decode(await self._receive())
        except TimeoutError:
            raise _Close(4401, "no authentication in time") from None
        except ApiError as exc:
            await self._refuse(InvalidApiKey(f"The first message must be auth: {exc.message}"))
        if not isinstance(message, ws.Auth):
            await self._refuse(InvalidApiKey("The first message must be auth."))
        return message.api_key

    async def _authenticate(self, api_key: str) -> Principal:
        """Asked again for each turn: a key may be revoked while the socket is open."""
        try:
            return await self._authenticator.authenticate(api_key)
        except AuthenticationFailed as exc:
            await self._refuse(to_api_error(exc))
        except TenantsError as exc:
            raise to_api_error(exc) from exc

    async def _receive(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        text = message.get("text")
        if text is None:
            raise _Close(1003, "messages are text")
        assert isinstance(text, str)
        return text

    async def _handle(self, text: str, api_key: str) -> None:
        try:
            message = _decode(text)
            match message:
                case ws.Chat() | ws.Resume():
                    self._begin(message, await self._authenticate(api_key))
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
            else:
                await self._outbox.put(turn_id, TurnFrames(turn_id).error(exc))

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
        task = asyncio.create_task(self._run_turn(turn, principal), name=f"turn {message.id}")
        self._tasks.add(task)
        task.add_done_callback(self._turn_ended)

    async def _run_turn(self, turn: Turn, principal: Principal) -> None:
        turn_id = turn.message.id
        try:
            last = await self._answer(turn, principal)
        except Exception as exc:  # the edge of a task: whatever it is, the client learns of it
            last = turn.frames.error(to_api_error(exc))
        finally:
            # Before the last frame: who has read it may use the id again.
            del self._turns[turn_id]
        await self._outbox.put(turn_id, last)

    async def _answer(self, turn: Turn, principal: Principal) -> str:
        """Sends all frames of the turn but the last, which it returns."""
        message = turn.message
        if isinstance(message, ws.Resume):
            return await self._relay(turn, await self._resume(message, principal))
        admitted = await self._admission.admit(
            message, model=message.model, request_id=uuid4(), principal=principal
        )
        generation = self._generations.begin(admitted)
        turn.on_cancel(generation.cancel)
        if message.resumable:
            return await self._relay(turn, await self._open(turn, generation))
        try:
            async with aclosing(frames_of(generation, turn.frames)) as frames:
                return await self._send_all_but_last(turn, frames)
        finally:
            generation.close()

    async def _open(self, turn: Turn, generation: Generation) -> Reader:
        stream_id = new_stream_id()
        return await self._streams.open(
            stream_id,
            generation,
            logged_frames_of(generation, turn.frames, stream_id=stream_id),
            tenant_id=generation.admitted.principal.tenant.id,
            kind="ws",
            cut=lambda error: turn.frames.error(error).encode(),
        )

    async def _resume(self, message: ws.Resume, principal: Principal) -> Reader:
        if message.last_seq < -1:
            raise InvalidRequestError("Must be -1 or more.", param="last_seq")
        return await self._streams.follow(
            message.stream_id, principal.tenant.id, kind="ws", after=message.last_seq + 1
        )

    async def _relay(self, turn: Turn, reader: Reader) -> str:
        async def frames() -> AsyncGenerator[str, None]:
            async for some in reader:
                if _turn_of(some[0]) != turn.message.id:
                    raise InvalidRequestError("Must be the id of the stream's turn.", param="id")
                for frame in some:
                    yield frame.decode()

        turn.on_cancel(reader.stop)
        try:
            async with aclosing(frames()) as running:
                return await self._send_all_but_last(turn, running)
        finally:
            reader.close()

    async def _send_all_but_last(self, turn: Turn, frames: AsyncGenerator[str, None]) -> str:
        async for frame in frames:
            if is_last(frame):
                return frame
            await self._outbox.put(turn.message.id, frame)
        raise Gone("The turn has ended, and you have read all of it.", code="stream_ended")

    # -- sending

    async def _send(self, turn: str | None, message: msgspec.Struct) -> None:
        await self._outbox.put(turn, msgspec.json.encode(message).decode())

    async def _send_error(self, error: ApiError) -> None:
        await self._send(
            None,
            ws.SocketError(
                status=error.status,
                retryable=error.retryable,
                error=error.object(),
                headers=error.limit_headers() or msgspec.UNSET,
            ),
        )

    async def _refuse(self, error: ApiError) -> NoReturn:
        """Tell and close."""
        await self._send_error(error)
        raise _Close(error.close_code, error.code or "refused")

    def _max_model_len(self) -> int | None:
        try:
            return self._engine.info.max_model_len
        except EngineDead:
            return None


def _decode(text: str) -> ws.ClientMessage:
    return bodies.decode(_decoder, text.encode())


def _turn_id_in(text: str) -> str | None:
    """The turn a refused message meant, as far as that can be known."""
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
