"""``python -m gateway.bench.revocations``: measures how soon all workers know of a change.

It starts PostgreSQL, several workers on one port, and one engine with the bundled model. Each round
creates a key, opens streams and WebSockets with it on any workers, sends requests with it all the
time, and revokes it through the admin API. The time is that from sending the revocation to the last
byte under the key. A change of limits is measured in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

import migrations
from engine.demo import MODEL_DIR
from gateway import config as configuration
from gateway import secrets
from gateway.admin import provisioning
from gateway.bench.figures import percentile
from gateway.processes import supervisor
from tenants.embedded import EmbeddedPostgres
from tenants.store import Store

NUM_STREAMS, NUM_BUSY_SOCKETS, NUM_IDLE_SOCKETS, NUM_ASKING = 6, 3, 6, 4
TARGET_MS = 1000.0
_QUESTION = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True}
_PATIENCE_S = 20.0

Found = dict[str, list[float]]
"""What was timed, and the milliseconds."""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Site(NamedTuple):
    """A server with an administrator's key."""

    host: str
    port: int
    admin_key: str

    async def ask(self, method: str, path: str, key: str, body: Any = None) -> Answer:
        """One request on a connection of its own, so that any worker may get it."""
        reader, writer = await self._send(method, path, key, body)
        try:
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.close()
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return Answer(int(first.split()[1]), headers, rest)

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, f"/admin/v1{path}", self.admin_key, body)
        assert answer.status < 300, answer
        return msgspec.json.decode(answer.body)

    async def stream(self, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream that has begun to answer; it closes when its writer is dropped."""
        body = _QUESTION | {"model": "demo", "stream": True}
        reader, writer = await self._send("POST", "/v1/chat/completions", key, body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        await reader.readuntil(b"data:")
        return reader, writer

    async def socket(self, key: str, *, is_busy: bool) -> ClientConnection:
        """A WebSocket that is open, with a turn that has begun to answer if ``is_busy``."""
        headers = {"authorization": f"Bearer {key}"}
        socket = await connect(f"ws://{self.host}:{self.port}/v1/chat", additional_headers=headers)
        await socket.recv()
        if is_busy:
            await socket.send(msgspec.json.encode({"type": "chat", "id": "t"} | _QUESTION).decode())
            while b'"delta"' not in await socket.recv(decode=False):
                pass
        return socket

    async def _send(
        self, method: str, path: str, key: str, body: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        data = b"" if body is None else msgspec.json.encode(body)
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(
            f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\nconnection: close\r\n"
            f"authorization: Bearer {key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return reader, writer


@asynccontextmanager
async def serving(folder: Path, num_workers: int) -> AsyncIterator[Site]:
    """A site in an empty folder."""
    postgres = EmbeddedPostgres(folder / "postgres")
    try:
        dsn = await asyncio.to_thread(postgres.start)
        await migrations.upgrade(dsn)
        pepper = secrets.create(folder / "secrets.json").key_pepper
        store = await Store.connect(dsn)
        admin_key = await provisioning.bootstrap(store, pepper, "admin", name="bench")
        await store.close()
        config = configuration.parse(
            {
                "engine": {"model": str(MODEL_DIR), "num_threads": 1},
                "server": {
                    "port": 0,
                    "workers": num_workers,
                    "shutdown_timeout_s": 2,
                    "log_level": "error",
                },
                "models": {"served_model_name": "demo"},
                "tenants": {"dsn": dsn, "secrets_file": str(folder / "secrets.json")},
            }
        )
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(supervisor.serve(config, on_ready=url.set_result))
        await asyncio.wait((running, url), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        try:
            host, port = (await url).removeprefix("http://").split(":")
            yield Site(host, int(port), admin_key)
        finally:
            running.cancel()
            await asyncio.wait((running,))
    finally:
        await asyncio.to_thread(postgres.stop)


async def revocation(site: Site, tenant_id: str) -> Found:
    """One round, with a key of its own."""
    made = await site.admin("POST", f"/tenants/{tenant_id}/keys", {"name": "bench"})
    key = made["key"]
    streams = await asyncio.gather(*(site.stream(key) for _ in range(NUM_STREAMS)))
    busy = [await site.socket(key, is_busy=True) for _ in range(NUM_BUSY_SOCKETS)]
    idle = [await site.socket(key, is_busy=False) for _ in range(NUM_IDLE_SOCKETS)]
    found: Found = defaultdict(list)

    async def ended(reader: asyncio.StreamReader) -> None:
        last = await reader.read()
        assert b"invalid_api_key" in last, f"a stream ended otherwise: {last[-300:]!r}"
        found["running stream ends"].append(1000 * (time.perf_counter() - began))

    async def closed(socket: ClientConnection, what: str) -> None:
        try:
            while True:
                await socket.recv()
        except ConnectionClosed:
            assert socket.close_code == 4401, socket.close_code
        found[what].append(1000 * (time.perf_counter() - began))

    def accepted(answer: Answer) -> bool:
        return answer.status == 200

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        asking = [
            group.create_task(_last(lambda: site.ask("GET", "/v1/models", key), accepted))
            for _ in range(NUM_ASKING)
        ]
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        for reader, _ in streams:
            group.create_task(ended(reader))
        for socket in busy:
            group.create_task(closed(socket, "WebSocket with a turn closes"))
        for socket in idle:
            group.create_task(closed(socket, "open WebSocket closes"))
        await site.admin("DELETE", f"/tenants/{tenant_id}/keys/{made['public_id']}")
        found["the revocation is answered"].append(1000 * (time.perf_counter() - began))
    for _, writer in streams:
        writer.close()
    found["last request accepted"] = [1000 * max(0.0, await task - began) for task in asking]
    return found


async def limits(site: Site, tenant_id: str, key: str, number: int) -> Found:
    """Limits change under requests; each says which it met."""
    body = _QUESTION | {"model": "demo", "max_tokens": 1}

    def is_old(answer: Answer) -> bool:
        return answer.headers.get("x-ratelimit-limit-requests") != str(number)

    async with asyncio.timeout(_PATIENCE_S), asyncio.TaskGroup() as group:
        asking = [
            group.create_task(
                _last(lambda: site.ask("POST", "/v1/chat/completions", key, body), is_old)
            )
            for _ in range(NUM_ASKING)
        ]
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await site.admin("PUT", f"/tenants/{tenant_id}/limits", {"requests_per_minute": number})
    ends = [1000 * max(0.0, await task - began) for task in asking]
    return {"last request under the old limits": ends}


async def _last(ask: Callable[[], Awaitable[Answer]], is_old: Callable[[Answer], bool]) -> float:
    """When the last answer came that was still the old one: none of the next 40 is."""
    last, num_new = time.perf_counter(), 0
    while num_new < 40:
        if is_old(await ask()):
            last, num_new = time.perf_counter(), 0
        else:
            num_new += 1
    return last


async def run(site: Site, num_rounds: int) -> Found:
    """All rounds, one after the other."""
    tenant_id = (await site.admin("POST", "/tenants", {"name": "bench"}))["id"]
    key = (await site.admin("POST", f"/tenants/{tenant_id}/keys", {"name": "limits"}))["key"]
    found: Found = defaultdict(list)
    for number in range(num_rounds):
        for part in (
            await revocation(site, tenant_id),
            await limits(site, tenant_id, key, 100_000 + number),
        ):
            for what, times in part.items():
                found[what] += times
    return found


def main() -> int:
    """1 when a p99 is above the target."""
    parser = argparse.ArgumentParser(
        prog="python -m gateway.bench.revocations", description=__doc__
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()

    async def work() -> Found:
        async with serving(folder, given.workers) as site:
            return await run(site, given.rounds)

    folder = Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    try:
        found = asyncio.run(work())
    finally:
        shutil.rmtree(folder)
    table = Table(title=f"from the revocation on, {given.workers} workers", title_justify="left")
    for heading in ("", "times", "p50 ms", "p99 ms", "most ms"):
        table.add_column(heading, justify="right" if heading else "left")
    for what, times in found.items():
        values = (percentile(times, 50), percentile(times, 99), max(times))
        table.add_row(what, str(len(times)), *(f"{value:.0f}" for value in values))
    Console().print(table)
    return int(any(percentile(times, 99) > TARGET_MS for times in found.values()))


if __name__ == "__main__":
    sys.exit(main())
