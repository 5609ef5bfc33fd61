"""A client of ``/v1/chat`` that checks the protocol's order while it reads."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.gateway.serving import Gateway

Frame = dict[str, Any]


class WsClient:
    """One socket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._next_seq: defaultdict[str, int] = defaultdict(int)

    async def send(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def chat(self, turn_id: str, text: str = "hi", **fields: Any) -> None:
        messages = [{"role": "user", "content": text}]
        await self.send(type="chat", id=turn_id, messages=messages, **fields)

    async def resume(self, turn_id: str, stream_id: str, last_seq: int) -> None:
        self._next_seq[turn_id] = last_seq + 1
        await self.send(type="resume", id=turn_id, stream_id=stream_id, last_seq=last_seq)

    async def receive(self, *, within_s: float = 30.0) -> Frame:
        async with asyncio.timeout(within_s):
            frame: Frame = json.loads(await self.socket.recv())
        self._check(frame)
        return frame

    async def turn(self, turn_id: str) -> list[Frame]:
        """All frames of one turn; no other may come in between."""
        frames: list[Frame] = []
        while not frames or frames[-1]["type"] not in ("done", "error"):
            frames.append(await self.receive())
            assert frames[-1]["id"] == turn_id
        return frames

    async def closed(self, *, within_s: float = 30.0) -> int:
        """The close code; whatever comes before is dropped."""
        async with asyncio.timeout(within_s):
            await self.socket.wait_closed()
        code = self.socket.close_code
        assert code is not None
        return code

    def _check(self, frame: Frame) -> None:
        turn_id = frame.get("id")
        if turn_id is None:
            assert "seq" not in frame
            return
        assert frame["seq"] == self._next_seq[turn_id], frame
        assert (frame["type"] == "started") == (frame["seq"] == 0) or frame["type"] == "error"
        self._next_seq[turn_id] += 1
        if frame["type"] in ("done", "error"):
            del self._next_seq[turn_id]


def text_of(frames: list[Frame]) -> str:
    return "".join(frame.get("content", "") for frame in frames if frame["type"] == "delta")


@asynccontextmanager
async def connected(
    gateway: Gateway, *, path: str = "/v1/chat", ticket: str | None = None, **options: Any
) -> AsyncIterator[WsClient]:
    """Before authentication, unless a ``ticket`` or the options have it."""
    query = "" if ticket is None else f"?ticket={ticket}"
    url = gateway.ws_url.removesuffix("/v1/chat") + path
    async with connect(f"{url}{query}", compression=None, **options) as socket:
        yield WsClient(socket)


@asynccontextmanager
async def ready(gateway: Gateway, *, api_key: str | None = None) -> AsyncIterator[WsClient]:
    """After authentication."""
    async with connected(gateway) as client:
        await client.send(type="auth", api_key=api_key or gateway.api_key)
        frame = await client.receive()
        assert frame["type"] == "ready"
        yield client
