"""A tenant without limits makes the gateway hold as much as it can, on hundreds of connections.

A body has up to 4 MB, a conversation 16: what is held of each request, times the connections, must
not be the memory that a worker needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from tests.attack.neighbour import Neighbour
from tests.attack.serving import Deployment, Member, fill_ledger

NUM_CONNECTIONS = 300
NUM_ROWS = 3000
"""In the ledger."""
WATCH_S = 6.0
MOST_BYTES = 400 * 2**20
"""What each worker may hold at most beside what it had: eight requests, each a few times 16 MB, or
the tokenizer's 400 bytes for each token of one text."""
ITEM = {"type": "message", "role": "user", "content": "x " * 500_000}


@pytest.fixture(scope="module")
def deployment(database: str) -> Iterator[Deployment]:
    with Deployment(database, replay_tokens_per_s=20) as deployment:
        yield deployment


def request(member: Member, method: str, path: str, body: bytes = b"", missing: int = 0) -> bytes:
    """The bytes of a request. ``missing``: how many of its body are not sent."""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {member.key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body) + missing}\r\n\r\n"
    )
    return head.encode() + body


@asynccontextmanager
async def connections(deployment: Deployment, sent: bytes) -> AsyncIterator[None]:
    """Connections that have sent this and read nothing, while the block runs."""
    writers: list[asyncio.StreamWriter] = []

    async def connect() -> None:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(deployment.host, deployment.port)
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writers.append(writer)
            writer.write(sent)
            await writer.drain()

    tasks = [asyncio.create_task(connect()) for _ in range(NUM_CONNECTIONS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


async def conversation(deployment: Deployment, member: Member) -> str:
    """One of 16 MB."""
    headers = {"authorization": f"Bearer {member.key}"}
    async with httpx.AsyncClient(base_url=deployment.url, timeout=60, headers=headers) as client:
        made = await client.post("/v1/conversations", json={})
        path = f"/v1/conversations/{made.json()['id']}"
        for _ in range(5):
            added = await client.post(f"{path}/items", json={"items": [ITEM] * 3})
            assert added.status_code == 200, added.text
        return str(made.json()["id"])


def slow_bodies(member: Member, name: str) -> bytes:
    return request(member, "POST", "/v1/chat/completions", b'"' + b"x" * 3_900_000, missing=9)


def slow_readers(member: Member, name: str) -> bytes:
    return request(member, "GET", f"/v1/conversations/{name}/items?limit=100")


def counts(member: Member, name: str) -> bytes:
    body = {"model": "demo", "conversation": name, "input": "x"}
    return request(member, "POST", "/v1/responses/input_tokens", json.dumps(body).encode())


def responses(member: Member, name: str) -> bytes:
    body = {"model": "demo", "conversation": name, "input": "x"}
    return request(member, "POST", "/v1/responses", json.dumps(body).encode())


def texts(member: Member, name: str) -> bytes:
    body = {"model": "demo", "prompt": "x" * 500_000}
    return request(member, "POST", "/v1/tokenize", json.dumps(body).encode())


def exports(member: Member, name: str) -> bytes:
    return request(member, "GET", "/admin/v1/usage/requests?format=csv")


@pytest.mark.nightly
@pytest.mark.pg
@pytest.mark.asyncio
@pytest.mark.parametrize("sent", [slow_bodies, slow_readers, counts, responses, texts, exports])
async def test_a_tenant_holds_only_so_much(
    deployment: Deployment, sent: Callable[[Member, str], bytes]
) -> None:
    hoarder, member = deployment.member("hoarder"), deployment.member("beside a hoarder")
    name = await conversation(deployment, hoarder)
    await fill_ledger(deployment, hoarder, NUM_ROWS)
    before = deployment.memory()
    most = dict.fromkeys(before, 0)
    async with Neighbour(deployment, member.key) as neighbour:
        calm = await neighbour.watch_for(WATCH_S)
        async with neighbour.watch() as attacked, connections(deployment, sent(hoarder, name)):
            for _ in range(int(WATCH_S / 0.1)):
                await asyncio.sleep(0.1)
                most = {pid: max(most[pid], now) for pid, now in deployment.memory().items()}
    more = {pid: most[pid] - was for pid, was in before.items()}
    print(sent.__name__, "calm", calm, "attacked", attacked, "more bytes", more)
    assert max(more.values()) < MOST_BYTES
    attacked.assert_unharmed(calm)
