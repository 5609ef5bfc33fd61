"""A client below HTTP libraries: it sends what they would not, and leaves when it likes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from tests.gateway.serving import Gateway


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cookies: list[str] = field(default_factory=list)
    """Each ``set-cookie``."""

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Of a failed request: all four fields are there, as SDKs expect."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["type"]
        found: dict[str, Any] = error
        return found


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, gateway: Gateway) -> RawClient:
        return cls(*await asyncio.open_connection(gateway.host, gateway.port))

    def send(self, data: bytes) -> None:
        if not self.writer.is_closing():  # uvloop's transports refuse what asyncio's ignore
            self.writer.write(data)

    async def head(self) -> Answer:
        """The status line and the headers."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(": ") for line in lines[1:] if line]
        headers = {name.lower(): value for name, _, value in pairs}
        cookies = [value for name, _, value in pairs if name.lower() == "set-cookie"]
        return Answer(int(lines[0].split()[1]), headers, b"", cookies)

    async def chunk(self) -> bytes:
        """One chunk of a body; empty at its end. Raises ``IncompleteReadError`` where it breaks."""
        size = int((await self.reader.readuntil(b"\r\n")).strip(), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def answer(self) -> Answer:
        """A whole answer, ended by its length, its last chunk or the end of the connection."""
        answer = await self.head()
        if answer.headers.get("transfer-encoding") == "chunked":
            answer.body = await self._chunks()
        elif answer.status == 204:
            pass
        elif "content-length" in answer.headers:
            answer.body = await self.reader.readexactly(int(answer.headers["content-length"]))
        else:
            answer.body = await self.reader.read()
        return answer

    async def _chunks(self) -> bytes:
        chunks = []
        while chunk := await self.chunk():
            chunks.append(chunk)
        return b"".join(chunks)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def reset(self) -> None:
        self.writer.transport.abort()


def post(
    gateway: Gateway,
    body: bytes,
    *,
    path: str = "/v1/chat/completions",
    key: str | None = None,
    **headers: str,
) -> bytes:
    """A POST, of a chat by default. Header names are given with underscores."""
    lines = {
        "host": "x",
        "content-type": "application/json",
        "authorization": f"Bearer {key or gateway.api_key}",
        "content-length": str(len(body)),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def upload(gateway: Gateway, content: bytes, *, key: str | None = None, **fields: str) -> bytes:
    """A POST of a file, of which clients may send the fields after it. A field is left out if it
    is empty."""
    parts = [b'form-data; name="file"; filename="a.jsonl"\r\n\r\n' + content]
    for name, value in ({"purpose": "batch"} | fields).items():
        if value:
            parts.append(f'form-data; name="{name}"\r\n\r\n{value}'.encode())
    form = b"".join(b"--x\r\ncontent-disposition: " + part + b"\r\n" for part in parts)
    return post(
        gateway,
        form + b"--x--\r\n",
        path="/v1/files",
        key=key,
        content_type="multipart/form-data; boundary=x",
    )


async def exchange(gateway: Gateway, request: bytes) -> Answer:
    client = await RawClient.connect(gateway)
    try:
        client.send(request)
        async with asyncio.timeout(30):
            return await client.answer()
    finally:
        await client.close()


async def get(gateway: Gateway, path: str, *, method: str = "GET", **headers: str) -> Answer:
    return await exchange(gateway, bodiless(method, path, **headers))


def bodiless(method: str, path: str, **headers: str) -> bytes:
    """A request without a body. Header names are given with underscores."""
    lines = {"host": "x"} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode()


async def chat(gateway: Gateway, body: object) -> Answer:
    """POST ``body``, JSON or bytes, with the gateway's own key."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await exchange(gateway, post(gateway, data))


def events(body: bytes) -> list[Any]:
    """The data of each server-sent event; the only field there may be."""
    found: list[Any] = []
    for block in body.decode().split("\n\n")[:-1]:
        name, _, data = block.partition(": ")
        assert name == "data", block
        assert "\n" not in data
        found.append(data if data == "[DONE]" else json.loads(data))
    assert body.endswith(b"\n\n") or not body
    return found
