"""Listeners of other kinds: TLS whose certificate changes, Unix sockets, systemd, proxies."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from engine.text.tokenizer import Tokenizer
from gateway.config import ServerConfig
from gateway.errors import AddressInUse, ConfigError
from gateway.processes import listening
from tests.gateway.engine_double import EngineDouble
from tests.gateway.raw_http import RawClient, chat, post
from tests.gateway.serving import (
    Gateway,
    chat_body,
    double_client,
    encode,
    make_config,
    served,
    until,
)

ROOT = Path(__file__).parents[3]


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority for 127.0.0.1, and its key."""
    pem, key = folder / "tls.pem", folder / "tls.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-out", str(pem), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    return pem, key


def trusting(pem: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pem))


@asynccontextmanager
async def served_with(model_dir: Path, **settings: Any) -> AsyncIterator[Gateway]:
    config = make_config(model_dir, **settings)
    double = EngineDouble(Tokenizer.load(model_dir))
    async with served(config, double_client(config, double)) as gateway:
        yield gateway


async def tls_client(gateway: Gateway, trusted: ssl.SSLContext) -> RawClient:
    streams = await asyncio.open_connection(gateway.host, gateway.port, ssl=trusted)
    return RawClient(*streams)


@pytest.mark.asyncio
async def test_chats_and_sockets_over_tls(model_dir: Path, tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "one")
    tls = {"tls_certificate": str(pem), "tls_key": str(key)}
    async with served_with(model_dir, **tls) as gateway:
        for stream in (False, True):
            client = await tls_client(gateway, trusting(pem))
            client.send(post(gateway, encode(chat_body(stream=stream))))
            assert b"You said: hi" in (await client.answer()).body or stream
            await client.close()
        await gateway.usage(requests=2)
        url = gateway.ws_url.replace("ws://", "wss://")
        bearer = {"Authorization": f"Bearer {gateway.api_key}"}
        async with connect(url, ssl=trusting(pem), additional_headers=bearer) as ws:
            await ws.send(json.dumps({"type": "chat", "id": "t", **chat_body()}))
            async for message in ws:
                if json.loads(message)["type"] == "done":
                    break


@pytest.mark.asyncio
async def test_a_certificate_that_changes_is_read_again(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "TLS_POLL_S", 0.01)
    pem, key = certificate(tmp_path, "one")
    first = trusting(pem)
    tls = {"tls_certificate": str(pem), "tls_key": str(key)}
    async with served_with(model_dir, **tls) as gateway:
        context = gateway.server.config.ssl
        assert context is not None
        following = asyncio.create_task(
            listening.follow_certificate(gateway.app.state.services.config.server, context)
        )
        open_before = await tls_client(gateway, first)
        good_key = key.read_bytes()
        key.write_text("no key")
        await asyncio.sleep(0.05)
        await (await tls_client(gateway, first)).close()  # The pair before is in use.
        key.write_bytes(good_key)
        certificate(tmp_path, "two")
        second = trusting(pem)

        async def has_changed() -> bool:
            try:
                await (await tls_client(gateway, second)).close()
            except ssl.SSLError:
                return False
            return True

        await until(has_changed)
        with pytest.raises(ssl.SSLError):
            await tls_client(gateway, first)
        open_before.send(post(gateway, encode(chat_body())))
        assert (await open_before.answer()).status == 200
        await open_before.close()
        following.cancel()


def test_a_certificate_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    pem, key = certificate(tmp_path, "one")
    other = tmp_path / "other"
    other.mkdir()
    _, foreign = certificate(other, "two")
    for certificate_file, key_file, cause in (
        (pem, foreign, "are not a certificate and its key"),
        (pem, tmp_path / "none", r"server\.tls_key: .* cannot be read"),
    ):
        config = ServerConfig(tls_certificate=str(certificate_file), tls_key=str(key_file))
        with pytest.raises(ConfigError, match=cause):
            listening.check_tls(config)
    with pytest.raises(ConfigError, match=r"server\.tls_key is missing"):
        ServerConfig(tls_certificate=str(pem))
    listening.check_tls(ServerConfig(tls_certificate=str(pem), tls_key=str(key)))


@pytest.mark.asyncio
async def test_a_unix_socket(model_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "sluice.sock"
    async with served_with(model_dir, unix_socket=str(path)):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
        with pytest.raises(AddressInUse, match="is taken"):
            listening.unix_socket(str(path))
    listening.unix_socket(str(path)).close()  # Left behind by a server that was killed.
    path.unlink()
    path.write_text("a file")
    with pytest.raises(AddressInUse, match="is a file that is no socket"):
        listening.unix_socket(str(path))
    assert path.read_text() == "a file"
    with pytest.raises(ConfigError, match="one worker"):
        ServerConfig(unix_socket=str(path), workers=2)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("trusted", "address"), [(["127.0.0.0/8"], "192.0.2.7"), ([], "127.0.0.1")]
)
async def test_only_trusted_proxies_tell_of_their_clients(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, trusted: list[str], address: str
) -> None:
    async with served_with(model_dir, trusted_proxies=trusted) as gateway:
        seen: list[str] = []
        strangers = gateway.app.state.services.strangers
        enter = type(strangers).enter

        def watched(self: object, address: str) -> object:
            seen.append(address)
            return enter(strangers, address)

        monkeypatch.setattr(type(strangers), "enter", watched)
        forwarded = {"X-Forwarded-For": "203.0.113.9, 192.0.2.7"}
        async with connect(gateway.ws_url, additional_headers=forwarded):
            pass
        assert seen == [address]
        assert (await chat(gateway, chat_body())).status == 200


_ACTIVATED = """
import os, sys
os.environ["LISTEN_PID"] = str(os.getpid())
from gateway.config import ServerConfig
from gateway.processes import listening, server
listener = server.bind(ServerConfig())
assert not listening.is_activated(), "not for our own children"
listening.notify("READY=1")
listener.setblocking(True)
connection, _ = listener.accept()
connection.sendall(b"served")
"""


def test_systemd_keeps_connections_while_the_service_restarts(tmp_path: Path) -> None:
    """As systemd does it: the socket outlives the processes, which get it as descriptor 3."""
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(tmp_path / "notify"))
    with socket.create_server(("127.0.0.1", 0)) as kept, told:
        for _ in range(2):
            address = kept.getsockname()[:2]
            with socket.create_connection(address, timeout=30) as client:  # nobody serves yet
                env = os.environ | {"LISTEN_FDS": "1", "NOTIFY_SOCKET": str(tmp_path / "notify")}
                as_three = f'exec "$0" "$@" 3<&{kept.fileno()}'
                process = subprocess.Popen(
                    ["bash", "-c", as_three, sys.executable, "-c", _ACTIVATED],
                    env=env,
                    cwd=ROOT,
                    pass_fds=[kept.fileno()],
                )
                try:
                    assert client.recv(100) == b"served"
                    assert process.wait(30) == 0
                finally:
                    process.kill()
                    process.wait()
                assert told.recv(100, socket.MSG_DONTWAIT) == b"READY=1"


def test_what_systemd_passes_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", "2")
    assert listening.is_activated()
    with pytest.raises(ConfigError, match="must have one Listen"):
        listening.activated()
