"""A server that says what a test tells it to: the page's own files and the WebSocket protocol.

It speaks ``gateway.schemas.ws`` as the real gateway does, so that the page can be driven into
every corner (half answers, refusals, drops) without an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

import gateway
from tests.gateway.web.served import served

WEB = Path(gateway.__file__).parent / "web"
KEY = "sk-slc-scripted"
SESSION = "session.scripted"
MAX_MODEL_LEN = 2048


@dataclass
class Say:
    """One delta of text."""

    text: str
    logprobs: list[dict[str, Any]] | None = None


@dataclass
class Think:
    """One delta of reasoning."""

    text: str


@dataclass
class Call:
    """One fragment of a tool call."""

    arguments: str
    name: str | None = None
    index: int = 0


@dataclass
class Wait:
    """Wait until the test opens ``server.gate`` (or the turn is cancelled)."""


@dataclass
class Fail:
    """End the turn with an error."""

    message: str
    status: int = 503
    retryable: bool = True
    code: str = "engine_unavailable"


@dataclass
class Drop:
    """Close the connection without a word about the turn."""

    code: int = 1012


@dataclass
class Done:
    finish_reason: str = "stop"
    usage: dict[str, Any] = field(
        default_factory=lambda: {
            "prompt_tokens": 21,
            "completion_tokens": 13,
            "total_tokens": 34,
            "prompt_tokens_details": {"cached_tokens": 16},
        }
    )


Step = Say | Think | Call | Wait | Fail | Drop | Done


class Gate:
    """Lets one waiting script pass each time the test opens it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def set(self) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    def shut(self) -> None:
        self._loop.call_soon_threadsafe(self._event.clear)

    async def passage(self) -> None:
        await self._event.wait()
        self._event.clear()


@dataclass
class Stream:
    """A turn's frames, which outlive its socket if it is resumable."""

    socket: WebSocket | None
    frames: list[dict[str, Any]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    async def send(self, **frame: Any) -> None:
        frame["seq"] = len(self.frames)
        self.frames.append(frame)
        if self.socket is not None:
            await self.socket.send_json(frame)


class ScriptedServer:
    """Set ``script`` to what the next turns shall do; read ``received`` for what clients sent."""

    def __init__(self) -> None:
        self.script: Callable[[dict[str, Any]], list[Step]] = lambda _: [Say("Hello."), Done()]
        self.received: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """Those that clients have signed in with, or tried to."""
        self._loop = asyncio.new_event_loop()
        self.gate = Gate(self._loop)
        self.accepting = True
        self.models = ["scripted"]
        self.deaf = False
        """Ignore cancels."""
        self.forgetful = False
        """Know of no stream to resume."""
        self.url = ""
        self._sockets: set[WebSocket] = set()
        self._streams: dict[str, Stream] = {}

    def say(self, *steps: Step | str) -> None:
        """Answer every turn with these steps; a bare string is a ``Say``."""
        script = [Say(step) if isinstance(step, str) else step for step in steps]
        if not isinstance(script[-1], Fail | Drop | Done):
            script.append(Done())
        self.script = lambda _: script

    def turns(self) -> list[dict[str, Any]]:
        return [message for message in self.received if message["type"] == "chat"]

    def drop_all(self, code: int = 1012) -> None:
        """Close every connection, as a restart of the gateway would."""

        async def close() -> None:
            for socket in list(self._sockets):
                with contextlib.suppress(RuntimeError):  # its client went first
                    await socket.close(code)

        asyncio.run_coroutine_threadsafe(close(), self._loop).result(5)

    def reset(self) -> None:
        """As new, once nobody is connected any more and no script of theirs waits at the gate."""
        self.drop_all()
        deadline = time.monotonic() + 30
        while self._sockets:
            assert time.monotonic() < deadline, "a connection stays"
            time.sleep(0.005)
        for stream in self._streams.values():
            if stream.task is not None:
                self._loop.call_soon_threadsafe(stream.task.cancel)
        self._streams.clear()
        self.script = lambda _: [Say("Hello."), Done()]
        self.models = ["scripted"]
        self.accepting, self.deaf, self.forgetful = True, False, False
        self.received.clear()
        self.keys.clear()
        self.gate.shut()

    @contextlib.contextmanager
    def serve(self) -> Iterator[ScriptedServer]:
        app = Starlette(
            routes=[
                WebSocketRoute("/v1/chat", self._chat),
                Route("/auth/session", self._session, methods=["GET", "POST"]),
                Route("/auth/sign-out", _sign_out, methods=["POST"]),
                Mount("/", StaticFiles(directory=WEB, html=True)),
            ]
        )
        with served(app, self._loop) as self.url:
            yield self

    async def _session(self, request: Request) -> Response:
        if request.method == "GET":
            name = "test" if request.cookies.get("sluice") == SESSION else None
            return JSONResponse({"is_offered": False, "name": name})
        key = (await request.json())["api_key"]
        self.keys.append(key)
        if key != KEY:
            return JSONResponse({"error": {"message": "This API key is unknown."}}, 401)
        response = JSONResponse({"is_offered": False, "name": "test"})
        response.set_cookie("sluice", SESSION, httponly=True)
        return response

    async def _chat(self, socket: WebSocket) -> None:
        if not self.accepting:
            await socket.close()
            return
        given = socket.headers.get("authorization")  # of the client in the terminal
        if given != f"Bearer {KEY}" and socket.cookies.get("sluice") != SESSION:
            body = {"error": {"message": "This API key is unknown."}}
            await socket.send_denial_response(JSONResponse(body, 401))
            return
        await socket.accept()
        self._sockets.add(socket)
        turns: dict[str, Stream] = {}
        try:
            await self._welcome(socket)
            while True:
                message = json.loads(await socket.receive_text())
                if message["type"] == "ping":  # by the clock: not of the script
                    await socket.send_json({"type": "pong"})
                    continue
                self.received.append(message)
                if message["type"] == "chat":
                    stream = turns[message["id"]] = Stream(socket)
                    if message.get("resumable"):
                        self._streams[f"stream_{message['id']}"] = stream
                    stream.task = asyncio.create_task(self._turn(stream, message))
                elif message["type"] == "resume":
                    await self._resume(socket, message, turns)
                elif message["id"] in turns and not self.deaf:
                    _cancel(turns[message["id"]])
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            self._sockets.discard(socket)
            for stream in turns.values():
                if stream not in self._streams.values():
                    _cancel(stream)
                elif stream.socket is socket:
                    stream.socket = None

    async def _welcome(self, socket: WebSocket) -> None:
        self.received.append({"type": "connected"})
        await socket.send_json(
            {
                "type": "ready",
                "models": self.models,
                "image_models": [],
                "max_model_len": MAX_MODEL_LEN,
                "max_turns": 16,
                "max_message_bytes": 1 << 20,
            }
        )

    async def _resume(
        self, socket: WebSocket, message: dict[str, Any], turns: dict[str, Stream]
    ) -> None:
        stream = self._streams.get(message["stream_id"])
        if stream is None or self.forgetful:
            error = {"message": "There is no such stream.", "type": "t", "code": "not_found"}
            frame = {"type": "error", "id": message["id"], "seq": 0, "error": error}
            await socket.send_json({**frame, "status": 404, "retryable": False})
            return
        place = message["last_seq"] + 1
        while place < len(stream.frames):
            await socket.send_json(stream.frames[place])
            place += 1
        stream.socket = socket
        turns[message["id"]] = stream

    async def _turn(self, stream: Stream, message: dict[str, Any]) -> None:
        async def send(kind: str, **fields: Any) -> None:
            await stream.send(type=kind, id=message["id"], **fields)

        named = {"stream_id": f"stream_{message['id']}"} if message.get("resumable") else {}
        about = {"request_id": "r", "model": "scripted", "created": 0, "prompt_tokens": 21}
        await send("started", **about, **named)
        try:
            for step in self.script(message):
                match step:
                    case Say(text, None):
                        await send("delta", content=text)
                    case Say(text, logprobs):
                        await send("delta", content=text, logprobs={"content": logprobs})
                    case Think(text):
                        await send("delta", reasoning_content=text)
                    case Call(arguments, name, index):
                        named = {"id": "call_1", "type": "function"} if name else {}
                        function = {"name": name, "arguments": arguments}
                        call = {"index": index, **named, "function": function}
                        await send("delta", tool_calls=[call])
                    case Wait():
                        await self.gate.passage()
                    case Fail(words, status, retryable, code):
                        error = {"message": words, "type": "t", "param": None, "code": code}
                        await send("error", status=status, retryable=retryable, error=error)
                    case Drop(code):
                        assert stream.socket is not None
                        dropped, stream.socket = stream.socket, None
                        await dropped.close(code)
                    case Done(reason, usage):
                        await send("done", finish_reason=reason, usage=usage)
        except asyncio.CancelledError:
            await send("done", finish_reason="cancelled", usage=Done().usage)


def _sign_out(request: Request) -> Response:
    response = Response(status_code=204)
    response.delete_cookie("sluice")
    return response


def _cancel(stream: Stream) -> None:
    assert stream.task is not None
    stream.task.cancel()
