"""Frames that no client should send: the socket closes with the code that says why, and no client
can fill the log with errors."""

from __future__ import annotations

import asyncio
import logging
import struct

import pytest
from uvicorn.protocols.utils import ClientDisconnected

from gateway.transport.websocket import BoundedWebSocketProtocol
from tests.gateway.raw_http import RawClient
from tests.gateway.serving import Gateway, until

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


def frame(
    opcode: int,
    data: bytes,
    *,
    fin: int = 1,
    rsv: int = 0,
    mask: int = 1,
    length: int | None = None,
) -> bytes:
    """RFC 6455, section 5.2; the mask is 0."""
    size = len(data) if length is None else length
    head = bytes([fin << 7 | rsv << 4 | opcode])
    if size < 126:
        head += bytes([mask << 7 | size])
    elif size < 2**16:
        head += bytes([mask << 7 | 126]) + struct.pack(">H", size)
    else:
        head += bytes([mask << 7 | 127]) + struct.pack(">Q", size)
    return head + bytes(4 * mask) + data


BROKEN: dict[str, tuple[bytes, int]] = {
    "without a mask": (frame(TEXT, b"{}", mask=0), 1002),
    "with reserved bits": (frame(TEXT, b"{}", rsv=4), 1002),
    "of no kind": (frame(5, b"{}"), 1002),
    "of nearly all bytes there are": (frame(TEXT, b"", length=2**63 - 1), 1009),
    "of more than that": (frame(TEXT, b"", length=2**64 - 1), 1009),
    "that goes on with nothing": (frame(0, b"x"), 1002),
    "a long ping": (frame(PING, b"x" * 126), 1002),
    "a ping in parts": (frame(PING, b"x", fin=0), 1002),
    "not UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "half a pair of surrogates": (frame(TEXT, b"\xed\xa0\x80"), 1007),
    "not UTF-8, in parts": (frame(TEXT, b"\xc3", fin=0) + frame(0, b"\x28"), 1007),
    "half a code": (frame(CLOSE, b"x"), 1002),
    "a code that is never sent": (frame(CLOSE, struct.pack(">H", 1005)), 1002),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/v1/chat", "/v1/responses"])
async def test_a_broken_frame_closes_the_socket_and_is_no_error_of_ours(
    path: str, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (data, code) in BROKEN.items():
        client = await RawClient.connect(gateway)
        client.send(
            f"GET {path} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            "sec-websocket-version: 13\r\nsec-websocket-key: c2l4dGVlbiBieXRlcy4uLg==\r\n"
            f"authorization: Bearer {gateway.api_key}\r\n\r\n".encode()
        )
        assert (await client.head()).status == 101
        client.send(data)
        async with asyncio.timeout(30):
            answer = await client.reader.read()
        await client.close()
        close = answer[answer.rindex(b"\x88") :]
        assert struct.unpack(">H", close[2:4])[0] == code, name
    await until(lambda: not gateway.app.state.services.lifecycle.sessions)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


class Failed(BoundedWebSocketProtocol):
    """Of a client that has just broken the protocol."""

    def __init__(self) -> None:
        self._has_failed = True


@pytest.mark.asyncio
async def test_what_was_on_its_way_meanwhile_finds_the_client_gone() -> None:
    """uvicorn takes it for a bug of the application."""
    with pytest.raises(ClientDisconnected):
        await Failed().send({"type": "websocket.send", "text": "{}"})
