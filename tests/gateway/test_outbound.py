"""Requests to addresses that tenants name."""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway import outbound
from tests.gateway.processes.test_listening import certificate, trusting

LOOPBACK = ("127.0.0.0/8",)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def server(handle: Handler, **options: Any) -> AsyncIterator[int]:
    """Serves at 127.0.0.1, and yields the port."""
    writers: list[asyncio.StreamWriter] = []

    async def handle_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            await handle(reader, writer)
        writer.close()

    listening = await asyncio.start_server(handle_and_close, "127.0.0.1", 0, **options)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
        for writer in writers:
            writer.transport.abort()


def answering(answer: bytes, seen: list[bytes] | None = None) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if seen is not None:
            seen.append(request)
        writer.write(answer)
        await writer.drain()

    return handle


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok"


def names(monkeypatch: pytest.MonkeyPatch, table: dict[str, list[str]]) -> list[str]:
    """Have DNS answer so; returns a list of the names that are asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        if host not in table:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(0, socket.SOCK_STREAM, 6, "", (one, port)) for one in table[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    return asked


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("10.0.0.1", False),
        ("100.64.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("::7f00:1", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("ff0e::1", False),
        # IPv4 in other clothes: mapped, 6to4, NAT64.
        ("::ffff:10.0.0.1", False),
        ("2002:0a00:0001::", False),
        ("64:ff9b::a00:1", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert outbound.is_allowed(ip_address(address), ()) is is_public
    assert outbound.is_allowed(ip_address(address), map(ip_network, outbound.EVERYWHERE))


def test_an_allowed_network_lets_mapped_addresses_in_too() -> None:
    networks = (ip_network("10.0.0.0/8"),)
    assert outbound.is_allowed(ip_address("::ffff:10.0.0.1"), networks)
    assert not outbound.is_allowed(ip_address("192.168.0.1"), networks)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "example.com",
        "https://",
        "https://user:word@example.com/",
        "https://example.com/#part",
        "https://example.com:x/",
        f"https://example.com/{'a' * 2048}",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"must|URL|most"):
        outbound.check_url(url)
    assert outbound.check_url("https://example.com/hooks?a=b")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433"]
)
async def test_addresses_of_this_host_are_not_connected_to(host: str) -> None:
    seen: list[bytes] = []
    async with server(answering(OK, seen)) as port, outbound.client() as client:
        with pytest.raises(httpx2.ConnectError, match=r"not a public address|Name or service"):
            await outbound.fetch(client, "GET", f"http://{host}:{port}/")
    assert not seen


@pytest.mark.asyncio
async def test_the_address_that_was_looked_at_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = names(
        monkeypatch, {"inside.example": ["10.0.0.1"], "both.example": ["10.0.0.1", "127.0.0.1"]}
    )
    seen: list[bytes] = []
    async with server(answering(OK, seen)) as port, outbound.client(LOOPBACK) as client:
        answer = await outbound.fetch(client, "GET", f"http://both.example:{port}/a")
        with pytest.raises(httpx2.ConnectError, match=r"10\.0\.0\.1.*server\.outbound_networks"):
            await outbound.fetch(client, "GET", f"http://inside.example:{port}/")
        with pytest.raises(httpx2.ConnectError, match="unknown"):
            await outbound.fetch(client, "GET", f"http://nowhere.example:{port}/")
    assert answer.content == b"ok"
    assert f"host: both.example:{port}".encode() in seen[0].lower()
    # Once for each connection: a second answer could be another one.
    assert asked == ["both.example", "inside.example", "nowhere.example"]


@pytest.mark.asyncio
async def test_redirects_are_not_followed() -> None:
    seen: list[bytes] = []
    moved = b"HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
    async with server(answering(moved, seen)) as port, outbound.client(LOOPBACK) as client:
        answer = await outbound.fetch(client, "POST", f"http://127.0.0.1:{port}/", content=b"x")
    assert answer.status_code == 307
    assert len(seen) == 1


@pytest.mark.asyncio
async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with server(answering(OK)) as port, outbound.client(LOOPBACK) as client:
        assert (await outbound.fetch(client, "GET", f"http://127.0.0.1:{port}/")).content == b"ok"


@pytest.mark.asyncio
async def test_a_large_answer_is_not_read_whole() -> None:
    body = bytes(3_000_000)
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
    async with server(answering(head.encode() + body)) as port, outbound.client(LOOPBACK) as client:
        url = f"http://127.0.0.1:{port}/"
        with pytest.raises(outbound.AnswerTooLarge):
            await outbound.fetch(client, "GET", url, max_bytes=1_000_000)
        assert (await outbound.fetch(client, "GET", url, max_bytes=3_000_000)).content == body


@pytest.mark.asyncio
async def test_an_answer_that_would_expand_is_refused() -> None:
    seen: list[bytes] = []
    bomb = gzip.compress(bytes(30_000_000))
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}\r\n\r\n"
    answer = answering(head.encode() + bomb, seen)
    async with server(answer) as port, outbound.client(LOOPBACK) as client:
        with pytest.raises(httpx2.DecodingError):
            await outbound.fetch(client, "GET", f"http://127.0.0.1:{port}/")
    assert b"accept-encoding: identity" in seen[0].lower()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 50_000, b"\0" * 99]
)
async def test_what_is_no_http_is_an_error_of_http(answer: bytes) -> None:
    async with server(answering(answer)) as port, outbound.client(LOOPBACK) as client:
        with pytest.raises(httpx2.HTTPError):
            await outbound.fetch(client, "GET", f"http://127.0.0.1:{port}/")


@pytest.mark.asyncio
async def test_an_answer_that_drips_ends_at_its_time() -> None:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b".")
            await asyncio.sleep(0.01)

    async with server(drip) as port, outbound.client(LOOPBACK) as client:
        with pytest.raises(TimeoutError):
            await outbound.fetch(client, "GET", f"http://127.0.0.1:{port}/", timeout_s=0.1)


@pytest.mark.asyncio
async def test_tls_asks_for_the_name_and_not_for_the_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem, key = certificate(tmp_path, "one")  # for 127.0.0.1

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    monkeypatch.setattr(outbound, "_ssl_context", lambda: trusting(pem))
    names(monkeypatch, {"other.example": ["127.0.0.1"], "127.0.0.1": ["127.0.0.1"]})
    async with server(answering(OK), ssl=context) as port, outbound.client(LOOPBACK) as client:
        assert (await outbound.fetch(client, "GET", f"https://127.0.0.1:{port}/")).content == b"ok"
        with pytest.raises(httpx2.ConnectError, match="Hostname mismatch"):
            await outbound.fetch(client, "GET", f"https://other.example:{port}/")
