"""One WebSocket after its handshake, with any protocol.

reader ──► work ──┐
     └───► work ──┼──► outbox ──► writer
(one task each)   │
                  └── all of one session: when reader or writer ends, everything ends
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, NamedTuple, NoReturn

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from gateway import context
from gateway.concurrency.fair_starts import FairStarts
from gateway.config import ServerConfig
from gateway.errors import ApiError, InvalidApiKey, to_api_error
from gateway.schemas.ws import Auth
from gateway.sockets.outbox import Outbox
from gateway.transport import bodies
from tenants.access import require_scope
from tenants.authenticator import Authenticator
from tenants.errors import AuthenticationFailed, NotAllowed, TenantsError
from tenants.types import Principal, Scope

REFUSED_S = 0.3
"""How long the tasks of a revoked key may take to send their last frames."""
FLUSH_S = 1.0
"""How long sending the last frames may take before the socket is closed."""

_auth_decoder = msgspec.json.Decoder(Auth)


class Close(Exception):
    """The session ends with this close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Shared(NamedTuple):
    """What all sessions of a worker share."""

    config: ServerConfig
    authenticator: Authenticator
    starts: FairStarts


class SocketSession(ABC):
    """Serves one accepted WebSocket until either side ends it.

    A subclass reads (``_read``), begins work of its own (``_begin_task``), writes to ``_outbox``
    and says how an error looks (``_error_frame``).
    """

    def __init__(self, socket: WebSocket, api_key: str | None, shared: Shared) -> None:
        """api_key: None if the first message must contain it."""
        self._socket = socket
        self._context = request = context.of(socket.scope)
        self._api_key = api_key
        self._config, self._authenticator, self._starts = shared
        self._outbox = Outbox(
            self._send_frame, max_bytes=self._config.ws_outbox_bytes, write=request.write
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._may_close = asyncio.Event()
        self._draining = False
        self._refused: ApiError | None = None

    @abstractmethod
    async def _read(self) -> None:
        """Handle messages forever. May raise ``Close``."""

    @abstractmethod
    def _error_frame(self, error: ApiError) -> bytes:
        """The frame for an error that concerns the socket itself."""

    @property
    def principal(self) -> Principal | None:
        """Who opened the socket; None until that is known."""
        return self._context.principal

    async def run(self) -> None:
        """Returns when the socket is closed; nothing of the session is left running."""
        writer = asyncio.create_task(self._outbox.run(), name="ws writer")
        reader = asyncio.create_task(self._read(), name="ws reader")
        drained = asyncio.create_task(self._may_close.wait(), name="ws drain")
        try:
            await asyncio.wait((writer, reader, drained), return_when=asyncio.FIRST_COMPLETED)
            if self._refused is not None and self._tasks:
                await asyncio.wait(self._tasks, timeout=REFUSED_S)  # their last frames
            await self._end_tasks()
            await self._close(writer, reader)
        finally:
            tasks = [writer, reader, drained, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del self._outbox  # It refers to this object, and that to all of the connection.

    def drain(self) -> None:
        """The server shuts down: take no more work, and close the socket after the last task."""
        self._draining = True
        self._close_if_drained()

    def refuse(self, error: ApiError) -> None:
        """The key is no longer valid: send the error, and close with its code."""
        self._refused = error
        self._draining = True
        self._may_close.set()

    # -- ending

    def _close_if_drained(self) -> None:
        if self._draining and not self._tasks:
            self._may_close.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._close_if_drained()

    async def _end_tasks(self) -> None:
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
            if not isinstance(error, Close):
                if error is not None and not isinstance(error, WebSocketDisconnect):
                    raise error
                return
            code, reason = error.code, error.reason
        await self._flush(writer)
        if self._socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect):  # the client was quicker
                await self._socket.close(code, reason)

    async def _flush(self, writer: asyncio.Task[None]) -> None:
        """Wait until everything is sent, or cannot be."""
        flushed = asyncio.create_task(self._outbox.flush(), name="ws flush")
        self._tasks.add(flushed)  # ends with the session
        await asyncio.wait((flushed, writer), timeout=FLUSH_S, return_when=asyncio.FIRST_COMPLETED)

    # -- working

    def _begin_task(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        """Start a task. The session closes only when the task has ended, or ends it itself."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    # -- reading

    async def _admitted(self, scope: Scope) -> Principal:
        """Authenticate the client. Raises ``Close`` unless its key has the scope."""
        if self._api_key is None:
            self._api_key = await self._receive_key()
        try:
            principal = await self._authenticate()
        except ApiError as exc:
            await self._refuse(exc)
        self._context.principal = principal
        if self._context.trust is not None:
            try:
                self._context.trust()
            except ApiError as exc:  # The tenant has too many sockets.
                await self._refuse(exc)
        try:
            require_scope(principal.key, scope)
        except NotAllowed as exc:
            await self._refuse(to_api_error(exc))
        return principal

    async def _receive_key(self) -> str:
        try:
            async with asyncio.timeout(self._config.ws_auth_timeout_s):
                text = await self._receive()
            return bodies.decode(_auth_decoder, text.encode(), what="message").api_key
        except TimeoutError:
            raise Close(4401, "no authentication in time") from None
        except ApiError as exc:
            await self._refuse(InvalidApiKey(f"The first message must be auth: {exc.message}"))

    async def _authenticate(self) -> Principal:
        """The principal, checked again for each task: a key may be revoked while the socket is
        open."""
        assert self._api_key is not None
        try:
            principal = await self._authenticator.authenticate(self._api_key)
        except AuthenticationFailed as exc:
            await self._refuse(to_api_error(exc))
        except TenantsError as exc:
            raise to_api_error(exc) from None
        await self._starts.next(principal.tenant.id)
        return principal

    async def _receive(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message["code"], message.get("reason"))
        text = message.get("text")
        if text is None:
            raise Close(1003, "messages are text")
        assert isinstance(text, str)
        return text

    # -- sending

    async def _send_frame(self, frame: bytes) -> None:
        """Send a frame past the middleware and Starlette's own checks, which would cost as much as
        a chunk."""
        try:
            await self._context.send({"type": "websocket.send", "text": frame.decode()})
        except OSError:  # how a server says that the client is gone
            raise WebSocketDisconnect(1006) from None

    async def _send_error(self, error: ApiError) -> None:
        await self._outbox.put(None, self._error_frame(error))

    async def _refuse(self, error: ApiError) -> NoReturn:
        """Send the error and close."""
        await self._send_error(error)
        raise Close(error.close_code, error.code or "refused")
