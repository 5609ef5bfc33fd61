"""Images that are to hurt who decodes them, and URLs that are to lead inside."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
import struct
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from PIL import Image

from gateway import outbound
from gateway.images import memory
from gateway.services import Services
from tests.attack.neighbour import Neighbour
from tests.attack.serving import MODEL as SERVED
from tests.attack.serving import Deployment, assert_memory_is_back
from tests.engine import seeing
from tests.gateway.images.drawing import data_url, image_part, picture, question, write_model
from tests.gateway.processes.test_listening import certificate, trusting
from tests.gateway.serving import MODEL, Gateway, served_double, until
from tests.gateway.test_outbound import Handler, server

pytestmark = pytest.mark.asyncio
MOST_PIXELS = 1_000_000


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A gray PNG whose header says so, with these chunks behind it."""
    head = struct.pack("!IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [b"\x89PNG\r\n\x1a\n"]
    for kind, data in ((b"IHDR", head), *chunks, (b"IEND", b"")):
        crc = struct.pack("!I", zlib.crc32(kind + data))
        parts.append(struct.pack("!I", len(data)) + kind + data + crc)
    return b"".join(parts)


def zeros(num_bytes: int) -> bytes:
    return zlib.compress(bytes(num_bytes), 9)


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as zipped:
        zipped.writestr("a.html", "<script>alert(1)</script>")
    return file.getvalue()


TEXT_BOMB = b"Comment\0\0" + zeros(80 * 2**20)
WEBP = b"RIFF\x30\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff\x3f\0" * 2 + bytes(30)
BAD: dict[str, bytes] = {
    "a bomb whose header is honest": png(30_000, 30_000, (b"IDAT", zeros(9_000_000))),
    "a bomb of text": png(64, 64, (b"zTXt", TEXT_BOMB), (b"IDAT", zeros(64 * 65))),
    "the largest header": png(2**31 - 1, 2**31 - 1, (b"IDAT", zeros(9))),
    "no pixels": png(0, 5, (b"IDAT", zeros(9))),
    "a GIF of 65535 x 65535": b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b";",
    "a WebP of 16384 x 16384": WEBP,
    "cut short": picture()[:-40],
    "an SVG": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" onload="x()"/>',
    "a PDF": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj",
    "a PostScript file": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "a TIFF": b"II*\0\x08\0\0\0" + bytes(60),
    "a PDF with a PNG in it": b"%PDF-1.7\n" + picture(),
    "HTML": b"<html><img src=x></html>",
    "nothing": b"",
    "a file of zeros": bytes(4096),
}


HARMLESS = {  # the picture is shown, and the rest is not read
    "more pixels than the header says": png(64, 64, (b"IDAT", zeros(80 * 2**20))),
    "a PNG with an archive behind it": picture() + archive(),
    "a GIF with HTML behind it": picture(format="GIF") + b"<script>alert(1)</script>",
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("seeing"))


@asynccontextmanager
async def serving(
    model_dir: Path, *, networks: Sequence[str] = (), **images: Any
) -> AsyncIterator[tuple[Gateway, httpx2.AsyncClient]]:
    limits = {"max_pixels": MOST_PIXELS, "timeout_s": 2.0, **images}
    options: dict[str, Any] = {"images": limits, "outbound_networks": [*networks]}
    async with served_double(model_dir, **options) as (gateway, _):
        headers = {"authorization": f"Bearer {gateway.api_key}"}
        async with httpx2.AsyncClient(
            base_url=gateway.url, headers=headers, timeout=60, trust_env=False
        ) as client:
            yield gateway, client
            found: Services = gateway.app.state.services
            await until(lambda: found.images.room.num_bytes == 0)
            assert not [*memory.SHARED_MEMORY.glob(f"{memory.PREFIX}*/*")]


async def ask(client: httpx2.AsyncClient, *urls: str) -> httpx2.Response:
    body = {"model": MODEL, "messages": question("x", *map(image_part, urls)), "max_tokens": 4}
    return await client.post("/v1/chat/completions", json=body)


async def test_bad_files_are_refused_by_name(model_dir: Path) -> None:
    async with serving(model_dir) as (_, client):
        for name, data in BAD.items():
            answer = await ask(client, data_url(picture()), data_url(data))
            assert answer.status_code == 400, name
            error = answer.json()["error"]
            assert error["param"] == "messages[0].content[2].image_url", name
        for name, data in HARMLESS.items():
            assert (await ask(client, data_url(data))).status_code == 200, name
        answer = await ask(client, *[data_url(picture())] * 100)
        assert answer.json()["error"]["code"] == "too_many_images"
        assert (await ask(client, data_url(picture()))).status_code == 200


REDIRECTS = [
    "http://127.0.0.1/",
    "https://127.0.0.2/",
    "https://169.254.169.254/latest/meta-data/",
    "https://[::1]/",
    "https://[::ffff:127.0.0.2]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[64:ff9b::7f00:2]/",
    "https://[2002:7f00:2::]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://2130706434/",
    "https://0x7f.2/",
    "https://0177.0.0.2/",
    "https://0.0.0.0/",
    "https://mixed.example/",
    "https://inside.example/",
    "https://user:secret@inside.example/",
    "file:///etc/passwd",
    "gopher://127.0.0.1/",
    "data:image/png;base64,AAAA",
    "//127.0.0.2/",
    "https://",
    "https:///missing",
    "https://a b/",
    "https://[::1",
    "https://[::1%25eth0]/",
    "https://xn--/",
    "https://127.0.0.2:99999/",
    "HTTPS://127.0.0.2/",
    "https://127.0.0.2/" + "a" * 3000,
    "https://%31%32%37.0.0.2/",
    "https://127.0.0.2\\@example.com/",
]
DNS = {
    "mixed.example": ["10.0.0.1", "127.0.0.3", "::1"],
    "inside.example": ["192.168.1.1"],
    "127.0.0.1": ["127.0.0.1"],
}


def redirecting(place: list[str], picture: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        path = request.split(b" ")[1]
        if path == b"/picture":
            head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(picture)}\r\n\r\n"
            writer.write(head.encode() + picture)
        elif path == b"/slow":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(b"\x89")
                await writer.drain()
                await asyncio.sleep(0.05)
        elif path == b"/endless":
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                writer.write(bytes(65_536))
                await writer.drain()
        elif path == b"/mute":
            await asyncio.sleep(3600)
        elif path == b"/missing":
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            head = f"HTTP/1.1 302 Found\r\ncontent-length: 0\r\nlocation: {place[0]}\r\n"
            writer.write(head.encode() + b"connection: close\r\n\r\n")
        await writer.drain()

    return handle


def resolving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have DNS answer as ``DNS`` says; numbers in any notation are the system's to read."""
    loop = asyncio.get_running_loop()
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: Any) -> list[Any]:
        if host in DNS:
            return [(0, socket.SOCK_STREAM, 6, "", (one, port)) for one in DNS[host]]
        return await real(host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)


@pytest_asyncio.fixture
async def elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[str, list[str]]]:
    """A server with pictures, its address and, first in the list, where it redirects to."""
    pem, key = certificate(tmp_path, "one")  # for 127.0.0.1
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    monkeypatch.setattr(outbound, "_ssl_context", lambda: trusting(pem))
    resolving(monkeypatch)
    place: list[str] = ["/picture"]
    async with server(redirecting(place, picture()), ssl=context) as port:
        yield f"https://127.0.0.1:{port}", place


def fetching(here: str, **images: Any) -> dict[str, Any]:
    """Settings with which all public hosts are fetched from, and this one."""
    hosts = ["*", here.removeprefix("https://")]
    limits = {"max_bytes": 100_000, "fetch_redirects": 2, "fetch_timeout_s": 30.0, **images}
    return {"networks": ["127.0.0.1/32"], "fetch_hosts": hosts, **limits}


async def test_urls_lead_nowhere_inside(model_dir: Path, elsewhere: tuple[str, list[str]]) -> None:
    here, place = elsewhere
    async with serving(model_dir, **fetching(here)) as (_, client):
        assert (await ask(client, f"{here}/picture")).status_code == 200
        assert (await ask(client, f"{here}/moved")).status_code == 200
        for place[0] in (*REDIRECTS, "/moved"):
            answer = await ask(client, f"{here}/moved")
            assert answer.status_code == 400, place
            assert answer.json()["error"]["param"] == "messages[0].content[1].image_url", place
        for url in REDIRECTS:
            if not url.startswith("data:"):
                assert (await ask(client, url)).status_code == 400, url
    async with serving(model_dir, networks=["127.0.0.1/32"], fetch_hosts=["*.example.com"]) as (
        _,
        client,
    ):
        others = ("example.com", "example.com.evil", "a.example.com:8443")
        for url in (here, *(f"https://{host}/" for host in others)):
            error = (await ask(client, url)).json()["error"]
            assert "images.fetch_hosts" in error["message"], url


async def test_slow_and_endless_servers_are_left(
    model_dir: Path, elsewhere: tuple[str, list[str]]
) -> None:
    here, _ = elsewhere
    async with serving(model_dir, **fetching(here, fetch_timeout_s=0.3)) as (_, client):
        for bad in ("slow", "endless", "mute", "missing"):
            answer = await ask(client, f"{here}/{bad}")
            assert answer.status_code == 400, bad
            assert answer.json()["error"]["param"] == "messages[0].content[1].image_url", bad


@pytest.fixture(scope="module")
def deployment(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    model_dir = seeing.write(seeing.QWEN3_VL, tmp_path_factory.mktemp("whole"))
    settings: dict[str, dict[str, Any]] = {
        "engine": {"model": str(model_dir)},
        "server": {"max_body_bytes": 2**25},
    }
    with Deployment(database, replay_tokens_per_s=20, settings=settings) as deployment:
        yield deployment


@pytest.mark.nightly
@pytest.mark.pg
async def test_a_neighbour_does_not_feel_large_images(deployment: Deployment) -> None:
    """Of 20 megapixels, eight at a time, without an end."""
    attacker, other = deployment.member("attacker"), deployment.member("neighbour")
    noise = Image.effect_noise((1000, 1000), 60).resize((5000, 4000))
    file = io.BytesIO()
    noise.save(file, "JPEG", quality=60)
    body = {
        "model": SERVED,
        "messages": question("x", image_part(data_url(file.getvalue()))),
        "max_tokens": 1,
    }
    before = deployment.memory()
    async with (
        Neighbour(deployment, other.key) as neighbour,
        httpx2.AsyncClient(
            base_url=deployment.url,
            headers={"authorization": f"Bearer {attacker.key}"},
            timeout=120,
            trust_env=False,
        ) as client,
    ):
        statuses: list[int] = []

        async def flood() -> None:
            while True:
                answer = await client.post("/v1/chat/completions", json=body)
                statuses.append(answer.status_code)

        calm = await neighbour.watch_for(5)
        floods = [asyncio.create_task(flood()) for _ in range(8)]
        async with neighbour.watch() as attacked:
            await asyncio.sleep(15)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
    assert statuses
    assert set(statuses) <= {200, 429, 503}
    attacked.assert_unharmed(calm)
    assert_memory_is_back(deployment, before, within_bytes=64 * 2**20)
    assert not [*memory.SHARED_MEMORY.glob(f"{memory.PREFIX}*/*")]
