"""Clients over real sockets, which do what their visit says."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from tests.gateway.departures.answers import Heard, is_beginning
from tests.gateway.departures.plan import STALL_S, HttpVisit, Leave, SocketVisit, Visit
from tests.gateway.raw_http import RawClient, bodiless, get, post
from tests.gateway.serving import MODEL, Gateway, chat_body, encode

GONE = (OSError, asyncio.IncompleteReadError, ConnectionClosed, EOFError)
"""The other side has left."""
FOREVER_S = 100.0
"""Nothing takes as long."""
LATER = "#999 9 0 0#"
"""What the second of two pipelined requests asks for."""


@dataclass
class Guests:
    """All clients of an example, and what they heard."""

    gateways: list[Gateway]
    api_keys: tuple[str, str]
    """One that stays valid, one that may be revoked."""
    heard: list[Heard] = field(default_factory=list)
    named: dict[str, list[Heard]] = field(default_factory=lambda: defaultdict(list))
    """What was heard of each stream or response."""
    deleted: set[str] = field(default_factory=set)
    deleting: set[str] = field(default_factory=set)
    """The same, and perhaps those whose deletion was not answered."""
    ended: set[str] = field(default_factory=set)
    """By a client's wish."""

    def gateway(self, number: int) -> Gateway:
        return self.gateways[number % len(self.gateways)]

    def key(self, visit: Visit) -> str:
        return self.api_keys[visit.has_revoked_key]

    async def come(self, visit: Visit) -> None:
        await asyncio.sleep(visit.begins_s)
        async with asyncio.timeout(FOREVER_S):
            if isinstance(visit, HttpVisit):
                await self._http(visit)
            elif isinstance(visit, SocketVisit):
                await SocketGuest(self, visit).come()

    # -- HTTP

    async def _http(self, visit: HttpVisit) -> None:
        key = {} if visit.idempotency_key is None else {"idempotency_key": visit.idempotency_key}
        gateway = self.gateway(visit.worker)
        request = post(gateway, visit.body, path=visit.path, key=self.key(visit), **key)
        if visit.is_pipelined:
            request += post(gateway, encode(chat_body(LATER)), key=self.key(visit))
        heard = Heard(visit)
        self.heard.append(heard)
        ending = asyncio.create_task(self._end(visit, heard))
        try:
            for number in range(len(visit.leaves) + 1):
                leave = (
                    visit.leaves[number] if number < len(visit.leaves) else Leave(moment="never")
                )
                with contextlib.suppress(*GONE):
                    await self._ask(self.gateway(visit.worker + number), request, leave, heard)
                if heard.is_whole or heard.name is None:
                    break
                self.named[heard.name].append(heard)
                if not (visit.resumable or (visit.background and visit.stream)):
                    break
                heard.num_leaves += 1
                await asyncio.sleep(visit.pause_s)
                request = self.again(visit, heard.name, heard.whole_events)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        if heard.is_whole and heard.name is not None:
            self.named[heard.name].append(heard)

    def again(self, visit: HttpVisit, name: str, read: bytes = b"") -> bytes:
        """The request of a client that has ``read`` so much of a stream."""
        num_events = read.count(b"\n\n")
        path = f"/v1/streams/{name}?from={num_events}"
        if visit.way == "responses":
            path = f"/v1/responses/{name}?stream=true"
            if num_events:
                path += f"&starting_after={num_events - 1}"
        return bodiless("GET", path, authorization=f"Bearer {self.key(visit)}")

    async def _ask(self, gateway: Gateway, request: bytes, leave: Leave, heard: Heard) -> None:
        client = await RawClient.connect(gateway)
        try:
            if leave.moment == "in the request":
                client.send(request[: int(len(request) * leave.share)])
                await asyncio.sleep(leave.after_s)
                await _leave(client, leave)
                return
            client.send(request)
            after_s = leave.after_s if leave.moment == "after a time" else None
            after_bytes = leave.after_bytes if leave.moment == "after some bytes" else None
            try:
                async with asyncio.timeout(after_s):
                    await _listen(client, heard, after_bytes)
            except TimeoutError:
                pass
            if heard.is_whole and leave.moment == "never" and LATER.encode() in request:
                answer = await client.answer()
                assert answer.status != 200 or answer.json()["usage"]["completion_tokens"] == 9
            await _leave(client, leave)
        finally:
            client.reset()

    async def _end(self, visit: HttpVisit, heard: Heard) -> None:
        if not visit.ends:
            return
        while heard.name is None:  # noqa: ASYNC110 (an answer tells nobody)
            await asyncio.sleep(0.001)
        await asyncio.sleep(visit.ends_after_s)
        name, key = heard.name, f"Bearer {self.key(visit)}"
        path, method = f"/v1/streams/{name}", "DELETE"
        if visit.way == "responses":
            path = f"/v1/responses/{name}"
            if visit.ends != "delete":
                path, method = f"{path}/cancel", "POST"
        self.ended.add(name)
        if visit.ends == "delete":
            self.deleting.add(name)
        with contextlib.suppress(*GONE):
            answer = await get(
                self.gateway(visit.worker + 1), path, method=method, authorization=key
            )
            if answer.status < 300 and visit.ends == "delete" and visit.way == "responses":
                self.deleted.add(name)


async def _listen(client: RawClient, heard: Heard, max_bytes: int | None) -> None:
    """Read on; until the answer's end, or so many bytes."""
    begun = len(heard.body)
    head = await client.head()
    if heard.status == 200 and head.status != 200:  # it cannot be read on: another answer
        heard.is_whole, heard.body = False, b""
        begun = 0
    heard.body = heard.whole_events if heard.is_events else heard.body
    begun = min(begun, len(heard.body))
    heard.status, heard.headers = head.status, heard.headers | head.headers
    if head.headers.get("transfer-encoding") == "chunked":
        while max_bytes is None or len(heard.body) - begun < max_bytes:
            chunk = await client.chunk()
            if not chunk:
                heard.is_whole = True
                return
            heard.body += chunk
    else:
        size = int(head.headers.get("content-length", "0"))
        heard.body = await client.reader.readexactly(size)
        heard.is_whole = True


async def _leave(client: RawClient, leave: Leave) -> None:
    if client.writer.is_closing():
        return
    with contextlib.suppress(*GONE):
        match leave.manner:
            case "reset":
                client.reset()
            case "close":
                await client.close()
            case "half":
                client.writer.write_eof()
                async with asyncio.timeout(FOREVER_S):
                    await client.reader.read()
            case "stall":
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(2 * STALL_S)
                client.reset()


class SocketGuest:
    """A client of one of the WebSockets."""

    def __init__(self, guests: Guests, visit: SocketVisit) -> None:
        self._guests = guests
        self._visit = visit
        self._texts: defaultdict[str, str] = defaultdict(str)
        self._last_seq: dict[str, int] = {}
        self._streams: dict[str, str] = {}
        """Of each turn, where it can be resumed."""
        self._running: set[str] = set()
        self._num_frames = 0

    async def come(self) -> None:
        visit = self._visit
        for number in range(len(visit.leaves) + 1):
            leave = visit.leaves[number] if number < len(visit.leaves) else Leave(moment="never")
            with contextlib.suppress(*GONE, InvalidStatus, InvalidMessage):
                await self._once(number, leave)
            if not self._running or not self._streams or visit.way == "/v1/responses":
                return
            await asyncio.sleep(visit.pause_s)

    async def _once(self, number: int, leave: Leave) -> None:
        gateway = self._guests.gateway(self._visit.worker + number)
        key = self._guests.key(self._visit)
        url = gateway.ws_url.removesuffix("/v1/chat") + self._visit.way
        socket = await connect(
            url,
            compression=None,
            close_timeout=0.3,
            additional_headers={"authorization": f"Bearer {key}"},
        )
        try:
            after_s = leave.after_s if leave.moment == "after a time" else None
            async with asyncio.timeout(after_s):
                await self._talk(socket, number, leave)
        except TimeoutError:
            pass
        finally:
            await self._part(socket, leave)

    async def _talk(self, socket: ClientConnection, number: int, leave: Leave) -> None:
        if number == 0:
            await self._begin(socket)
            if leave.moment == "in the request":
                return
        else:
            await self._resume(socket)
        most = leave.after_bytes // 100 if leave.moment == "after some bytes" else None
        num_read = 0
        while self._running and (most is None or num_read < most):
            if self._visit.cancels_after == self._num_frames:
                await self._cancel(socket)
            frame = json.loads(await socket.recv())
            num_read += 1
            self._num_frames += 1
            self._take(frame)

    async def _begin(self, socket: ClientConnection) -> None:
        for number in range(self._visit.num_turns):
            name = f"t{number}"
            self._running.add(name)
            if self._visit.way == "/v1/chat":
                message = chat_body(self._visit.prompt) | {"type": "chat", "id": name}
                if self._visit.resumable:
                    message["resumable"] = True
            else:
                message = {"type": "response.create", "model": MODEL, "input": self._visit.prompt}
                message["stream_id"] = name
            await socket.send(json.dumps(message))

    async def _resume(self, socket: ClientConnection) -> None:
        self._running &= set(self._streams)
        for name in self._running:
            message = {"type": "resume", "id": name, "stream_id": self._streams[name]}
            await socket.send(json.dumps(message | {"last_seq": self._last_seq[name]}))

    async def _cancel(self, socket: ClientConnection) -> None:
        for name in self._running:
            if self._visit.way == "/v1/chat":
                await socket.send(json.dumps({"type": "cancel", "id": name}))
            elif name in self._streams:
                message = {"type": "response.cancel", "response_id": self._streams[name]}
                await socket.send(json.dumps(message))

    def _take(self, frame: dict[str, Any]) -> None:
        if self._visit.way == "/v1/chat":
            self._take_frame(frame)
        elif (name := frame.get("stream_id")) is not None:
            self._take_event(name, frame)
        assert all(is_beginning(text, self._visit.text) for text in self._texts.values())

    def _take_frame(self, frame: dict[str, Any]) -> None:
        name = frame.get("id")
        if name is None:
            assert frame["type"] in ("ready", "error"), frame
            return
        if frame["type"] != "error" or name in self._last_seq:
            assert frame["seq"] == self._last_seq.get(name, -1) + 1, frame
            self._last_seq[name] = frame["seq"]
        self._texts[name] += frame.get("content") or ""
        if frame["type"] == "started" and frame.get("stream_id"):
            self._streams[name] = frame["stream_id"]
        elif frame["type"] == "done":
            assert frame["finish_reason"] != "stop" or self._texts[name] == self._visit.text
            self._running.discard(name)
        elif frame["type"] == "error":
            self._running.discard(name)

    def _take_event(self, name: str, event: dict[str, Any]) -> None:
        if event["type"] == "error":
            self._running.discard(name)
            return
        assert event["sequence_number"] == self._last_seq.get(name, -1) + 1, event
        self._last_seq[name] = event["sequence_number"]
        self._streams.setdefault(name, event.get("response", {}).get("id"))
        if event["type"] == "response.output_text.delta":
            self._texts[name] += event["delta"]
        elif event["type"] == "response.completed":
            assert self._texts[name] == self._visit.text
        if event["type"].startswith(("response.completed", "response.inc", "response.fail")):
            self._running.discard(name)

    async def _part(self, socket: ClientConnection, leave: Leave) -> None:
        transport = socket.transport
        with contextlib.suppress(*GONE):
            match "gone" if transport.is_closing() else leave.manner:
                case "close":
                    await socket.close()
                case "half" if transport.can_write_eof():
                    transport.write_eof()
                    await socket.wait_closed()
                case "stall":
                    transport.pause_reading()
                    await asyncio.sleep(2 * STALL_S)
        transport.abort()
