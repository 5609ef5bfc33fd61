"""An attacker in a process of its own, mostly without a key: ``python -m tests.attack.flooding``.

It keeps a number of connections that send as fast as they are read, and opens them anew when they
are closed. A line on stdout tells that the flood has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, get_args

from tenants.keys import mint

Kind = Literal[
    "pongs",
    "pings",
    "texts",
    "fragments",
    "pipelined",
    "chunks",
    "extensions",
    "reconnects",
    "handshakes",
    "bursts",
    "drips",
    "refusals",
    "strangers",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

ROOT = Path(__file__).parents[2]
UPGRADE = (
    b"GET /v1/chat HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
CHUNKED = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
KEYLESS = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"content-length: 100000\r\n\r\n"
)
MASK = bytes(4)
UNITS: dict[Kind, tuple[bytes, bytes]] = {
    "pongs": (UPGRADE, b"\x8a\x80" + MASK),
    "pings": (UPGRADE, b"\x89\x80" + MASK),
    "texts": (UPGRADE, b"\x81\x80" + MASK),
    "fragments": (UPGRADE + b"\x01\x80" + MASK, b"\x00\x80" + MASK),
    "pipelined": (b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"),
    "chunks": (CHUNKED, b"1\r\nx\r\n"),
    "extensions": (CHUNKED, b"1;" + b"e" * 1000 + b"\r\nx\r\n"),
    "reconnects": (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET ", b""),
    "handshakes": (UPGRADE, b""),
    "bursts": (b"", b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"),
    "drips": (KEYLESS, b"x"),
    "refusals": (KEYLESS, b""),
    "strangers": (b"", b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n\r\n"),
}
"""What each connection sends first, and then over and over; if that is nothing, it is closed and
the next one opened at once. Those of ``bursts`` send at the same moments, those of ``drips`` one
byte at a time, those of ``strangers`` another well-formed key that nobody has each time."""
NUM_SOCKETS: dict[Kind, int] = {"bursts": 500, "drips": 200, "refusals": 200}
FEW_SOCKETS = 24
BURST_S = 2.0
"""From one burst to the next."""
DRIP_S = 0.01
"""From one byte to the next."""
READ_BYTES = 65536
PAUSE_S = 0.2
"""Before a connection is opened again."""


async def flood(host: str, port: int, kind: str) -> None:
    """Send for ever on one connection after the other. kind: one of ``KINDS``, or a request as
    hexadecimal digits."""
    head, unit = UNITS[kind] if kind in KINDS else (b"", bytes.fromhex(kind))
    block = unit if kind == "drips" else unit * (READ_BYTES // len(unit)) if unit else b""
    while True:
        with contextlib.suppress(OSError):
            if not unit:
                await _knock(host, port, head)
                continue
            reader, writer = await asyncio.open_connection(host, port)
            reading = asyncio.create_task(_drain(reader))
            try:
                writer.write(head)
                if head.startswith(UPGRADE):  # The server reads no frames before its answer.
                    await asyncio.sleep(PAUSE_S)
                while not reading.done():
                    if kind == "bursts":
                        await asyncio.sleep(BURST_S - time.monotonic() % BURST_S)
                    elif kind == "drips":
                        await asyncio.sleep(DRIP_S)
                    writer.write(_with_keys(unit) if kind == "strangers" else block)
                    await writer.drain()
            finally:
                reading.cancel()
                writer.transport.abort()
        await asyncio.sleep(PAUSE_S)


def _with_keys(unit: bytes) -> bytes:
    return b"".join(unit % mint(b"a pepper of no server").text.encode() for _ in range(100))


async def _knock(host: str, port: int, head: bytes) -> None:
    """Connect, send a little, read what comes, and reset the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head)
        await reader.read(READ_BYTES)
    finally:
        writer.transport.abort()


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(READ_BYTES):
            pass


@asynccontextmanager
async def flooding(
    host: str, port: int, kind: Kind | bytes, *, num: int | None = None
) -> AsyncIterator[None]:
    """Flood while the block runs. kind: one of those above, or a request, sent over and over.
    num: of connections; None: as many as are usual of the kind."""
    name = kind.hex() if isinstance(kind, bytes) else kind
    if num is None:
        num = FEW_SOCKETS if isinstance(kind, bytes) else NUM_SOCKETS.get(kind, FEW_SOCKETS)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.attack.flooding", host, str(port), name, str(num)),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline()
        yield
        assert process.returncode is None, "the attacker has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def main() -> None:
    host, port, kind, num = sys.argv[1:]
    print("flooding", flush=True)
    await asyncio.gather(*(flood(host, int(port), kind) for _ in range(int(num))))


if __name__ == "__main__":
    asyncio.run(main())
